package kinds

import (
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"

	"sluice.dev/sluice/allocate/pools"
)

// Pool is a pool whose addresses may be announced.
type Pool struct {
	*pools.Pool
	Labels labels.Set
	ref    Ref
	spec   pools.Spec // as parsed
}

// SavedPool is the last readable version of a pool. The next process needs it: if it cannot read
// the pool, this version stays in force, and no address outside of it is announced.
type SavedPool struct {
	Ref    Ref        `json:"ref"`
	Labels labels.Set `json:"labels,omitempty"`
	Spec   pools.Spec `json:"spec"`
}

// SavedPools returns the pools of the set, in their order.
func (s *Set) SavedPools() (list []SavedPool) {
	for _, p := range s.Pools {
		list = append(list, SavedPool{p.ref, p.Labels, p.spec})
	}
	return list
}

// Resume sets the pools that the previous process saved. Call it before Read. A pool that this
// version cannot parse is left out.
func (r *Reader) Resume(list []SavedPool) {
	if r.last == nil {
		r.last = map[Ref]any{}
	}
	for _, s := range list {
		if p, err := newPool(s.Ref, s.Labels, &s.Spec); err == nil {
			r.last[s.Ref] = p
		}
	}
}

func newPool(ref Ref, l labels.Set, s *pools.Spec) (*Pool, error) {
	p, err := pools.New(ref.Name, *s)
	if err != nil {
		return nil, err
	}
	return &Pool{Pool: p, Labels: l, ref: ref, spec: *s}, nil
}

func (r *reading) pool(o *unstructured.Unstructured) {
	ref := RefOf(o)
	r.pools[o.GetName()] = true
	p, ok := readOne(r, o, func(s *pools.Spec) (*Pool, error) { return newPool(ref, o.GetLabels(), s) })
	if !ok {
		return
	}
	now := *p // p may come from an earlier Read; the labels are current
	now.Labels = o.GetLabels()
	r.next[ref] = &now
	r.set.Pools = append(r.set.Pools, &now)
}

// unlisted keeps MetalLB's pools while they cannot be listed, unless another pool has the name.
func (r *reading) unlisted() {
	refs := slices.Collect(maps.Keys(r.last))
	slices.SortFunc(refs, func(a, b Ref) int { return strings.Compare(a.Name, b.Name) })
	for _, ref := range refs {
		p, there := r.last[ref].(*Pool)
		if !there || !strings.HasPrefix(ref.APIVersion, MetalLB+"/") {
			continue
		}
		if slices.ContainsFunc(r.set.Pools, func(q *Pool) bool { return q.Name == p.Name }) {
			continue
		}
		r.pools[ref.Name], r.next[ref] = true, p
		r.set.Pools = append(r.set.Pools, p)
	}
}

package allocate

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"sluice.dev/sluice/allocate/pools"
)

// poolSet reads the objects of both kinds of pools. One that cannot be read keeps what it said
// before, so that a mistake takes no address away. What it said before this process is not known:
// then Services keep what they have (pools.Remains).
type poolSet struct {
	last map[types.UID]*pools.Pool // what each said when it could be read
	told map[types.UID]string      // what was said of each, so that it is said once
	tell func(about corev1.ObjectReference, reason, note string)
	// nodesIn, unless nil, returns what is to be said of addresses of Nodes that a pool has, or "".
	nodesIn func(p *pools.Pool) string
}

// Reasons of Events about pools.
const (
	poolInvalid   = string(pools.PoolInvalid)
	poolNameTaken = "PoolNameTaken" // another one has the name, and is used
	poolsOverlap  = "PoolsOverlap"
	fieldNotDone  = "FieldNotDone"
)

// read returns the pools of all objects, and says what is wrong with them. Own kinds come first:
// where two have a name, the first one that can be read is used. Unreadable are those that cannot
// be read and never were.
func (s *poolSet) read(objects []*unstructured.Unstructured) (list, unreadable []*pools.Pool) {
	objects = slices.Clone(objects)
	slices.SortFunc(objects, func(a, b *unstructured.Unstructured) int {
		return cmp.Or(-strings.Compare(a.GetAPIVersion(), b.GetAPIVersion()), // sluice.dev, metallb.io
			strings.Compare(a.GetNamespace(), b.GetNamespace()), strings.Compare(a.GetName(), b.GetName()))
	})
	last, told := map[types.UID]*pools.Pool{}, map[types.UID]string{}
	for _, o := range objects {
		var problems []string
		note := func(reason, format string, args ...any) {
			problems = append(problems, reason+"\x00"+fmt.Sprintf(format, args...))
		}
		p, unknown, err := readPool(o)
		if err != nil {
			state, remains := "what it said before stays in force", p
			if p = s.last[o.GetUID()]; p == nil {
				state = "it gives no addresses, and while it cannot be read Services keep those that no other pool has"
				unreadable = append(unreadable, remains)
			}
			note(poolInvalid, "%v; %s", err, state)
		}
		if len(unknown) > 0 {
			note(fieldNotDone, "Sluice does not read %s", strings.Join(unknown, ", "))
		}
		if p != nil {
			last[o.GetUID()] = p
			list = s.add(list, p, note)
			if text := s.nodes(p); text != "" {
				note(nodeAddress, "%s", text)
			}
		}
		told[o.GetUID()] = strings.Join(problems, "\x01")
		if told[o.GetUID()] != s.told[o.GetUID()] {
			s.say(o, problems)
		}
	}
	s.last, s.told = last, told
	return list, unreadable
}

func (s *poolSet) nodes(p *pools.Pool) string {
	if s.nodesIn == nil {
		return ""
	}
	return s.nodesIn(p)
}

// add appends a pool, if its name is free.
func (s *poolSet) add(list []*pools.Pool, p *pools.Pool, note func(reason, format string, args ...any)) []*pools.Pool {
	for _, q := range list {
		if q.Name == p.Name {
			note(poolNameTaken, "another pool has the name %s, and this one is not used: rename one", p.Name)
			return list
		}
	}
	for _, text := range pools.OverlapsWith(p, list) {
		note(poolsOverlap, "%s", text)
	}
	return append(list, p)
}

func (s *poolSet) say(o *unstructured.Unstructured, problems []string) {
	for _, p := range problems {
		reason, text, _ := strings.Cut(p, "\x00")
		s.tell(corev1.ObjectReference{APIVersion: o.GetAPIVersion(), Kind: o.GetKind(), Namespace: o.GetNamespace(),
			Name: o.GetName(), UID: o.GetUID()}, reason, text)
	}
}

// readPool returns a pool, and the fields of its specification that are not known here. With an
// error the pool is what can be read of it.
func readPool(o *unstructured.Unstructured) (p *pools.Pool, unknown []string, err error) {
	raw, there := o.Object["spec"].(map[string]any)
	if !there {
		return pools.Remains(o.GetName(), pools.Spec{}), nil, errors.New("spec is missing")
	}
	unknown = pools.Unread(raw)
	text, err := json.Marshal(raw)
	var spec pools.Spec
	if err == nil {
		err = json.Unmarshal(text, &spec)
	}
	if err != nil {
		return pools.Remains(o.GetName(), spec), unknown, fmt.Errorf("spec: %w", err)
	}
	if p, err = pools.New(o.GetName(), spec); err != nil {
		p = pools.Remains(o.GetName(), spec)
	}
	return p, unknown, err
}

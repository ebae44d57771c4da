package tracker

import (
	"cmp"
	"slices"
	"time"

	"sluice.dev/sluice/control/objects"
)

// waitingChange is about an object that may differ from the version that Changes returned last.
type waitingChange struct {
	read     uint64 // the batch that changed it first
	at       time.Time
	together bool // that batch has objects of several Services, which must be returned together
}

// serviceKey names a Service; the zero key is of objects that belong to none.
type serviceKey struct{ namespace, name string }

// Costs are counted in endpoints times ports, each of which takes about 0.2 us to compile. A
// frontend takes some microseconds. Each change of a Service counts as at least leastCost.
const (
	frontendCost = 10
	leastCost    = 100
)

// cost is a cost of compiling: fixed, and perNode for each Node. Each Node is an endpoint of each
// port of a direct Service, and all of them are compiled after any change of it.
type cost struct{ fixed, perNode int }

// total returns a cost with the present number of Nodes.
func (t *Tracker) total(c cost) int { return c.fixed + c.perNode*t.nodes }

// belongs returns the Service that a good version belongs to, and its cost.
func belongs(good any) (key serviceKey, c cost) {
	switch o := good.(type) {
	case *objects.Service:
		c.fixed = frontendCost * len(o.Ports) * len(o.VIPs)
		if o.Direct {
			c.perNode = len(o.Ports)
		}
		return serviceKey{o.ID.Namespace, o.ID.Name}, c
	case *objects.Slice:
		if o.Service != "" {
			c.fixed = len(o.Endpoints) * len(o.Ports)
			return serviceKey{o.ID.Namespace, o.Service}, c
		}
	}
	return serviceKey{}, c
}

// good returns the good version in use, nil if there is none.
func (o *tracked) good() any {
	if w := o.winner(); w != nil {
		return w.good
	}
	return nil
}

// service returns the Service that an object belongs to, by its version in use or, if it is
// deleted, by the version that Changes last returned.
func (o *tracked) service() serviceKey {
	key, _ := belongs(o.good())
	if key == (serviceKey{}) {
		key, _ = belongs(o.given)
	}
	return key
}

// addCost adds the cost of a version to its Service, or counts it if it is a Node; factor -1
// subtracts it.
func (t *Tracker) addCost(good any, factor int) {
	if _, is := good.(*objects.Node); is {
		t.nodes += factor
	}
	key, c := belongs(good)
	if c == (cost{}) {
		return
	}
	sum := t.costs[key]
	sum.fixed += factor * c.fixed
	sum.perNode += factor * c.perNode
	if t.costs[key] = sum; sum == (cost{}) {
		delete(t.costs, key)
	}
}

// together reports whether a batch has objects of several Services.
func (t *Tracker) together(b *Batch) bool {
	var first serviceKey
	n := 0
	for i := range b.ops {
		if b.ops[i].reports { // it has no object, and takes effect at once
			continue
		}
		key, _ := belongs(b.ops[i].object)
		if o := t.objects[b.ops[i].id]; key == (serviceKey{}) && o != nil {
			key = o.service()
		}
		if n++; n == 1 {
			first = key
		} else if key != first || key == (serviceKey{}) {
			return true
		}
	}
	return false
}

// group has the changed objects of one Service.
type group struct {
	key  serviceKey
	ids  []objects.ObjectID
	cost int
	read uint64 // the first of its batches
}

// ChangesWithin is Changes, but returns a part of the changes if they cost more than a limit, in
// endpoints times ports. Of the namespaces that wait, it serves first the one that was served
// least, and of its Services the one that has waited longest. The changes of one Service are
// returned together, and so are the objects of a batch. A Service that costs more than the limit is
// returned alone, so that cheap changes do not wait for it. Read is then the number of the last
// batch up to which nothing waits. Wake has a value as long as anything waits.
func (t *Tracker) ChangesWithin(limit int) *objects.Changes {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.dirty)*leastCost <= limit && t.dirtyCost() <= limit {
		return t.takeAll()
	}
	at, namespaces := t.groups()
	spent := 0
	for _, g := range at {
		spent += g.cost
	}
	for first := true; len(namespaces) > 0 && spent < limit; first = false {
		next := ""
		for name := range namespaces {
			if _, ok := namespaces[next]; !ok || cmp.Or(cmp.Compare(t.tags[name], t.tags[next]),
				cmp.Compare(name, next)) < 0 {
				next = name
			}
		}
		g := namespaces[next][0]
		if !first && spent+g.cost > limit {
			break
		}
		at, spent = append(at, g), spent+g.cost
		t.virtual = max(t.virtual, t.tags[next])
		t.tags[next] = t.virtual + uint64(g.cost)
		if namespaces[next] = namespaces[next][1:]; len(namespaces[next]) == 0 {
			delete(namespaces, next)
		}
	}
	if len(namespaces) == 0 {
		return t.takeAll()
	}
	for name, tag := range t.tags { // a namespace that waits for nothing keeps no credit, but its debt
		if _, waits := namespaces[name]; !waits && tag <= t.virtual {
			delete(t.tags, name)
		}
	}
	return t.takeGroups(at)
}

// dirtyCost returns the cost of all waiting changes.
func (t *Tracker) dirtyCost() (sum int) {
	seen := map[serviceKey]bool{}
	for id := range t.dirty {
		o := t.objects[id]
		key := o.service()
		if !seen[key] {
			seen[key] = true
			sum += leastCost + t.total(t.costs[key])
		}
		_, before := belongs(o.given)
		sum += t.total(before)
	}
	return sum
}

// groups returns the waiting changes by Service: first the groups that must be returned at once,
// then the others by namespace, oldest first.
func (t *Tracker) groups() (atOnce []*group, namespaces map[string][]*group) {
	byService := map[serviceKey]*group{}
	together := map[*group]bool{}
	for id, d := range t.dirty {
		o := t.objects[id]
		key := o.service()
		g := byService[key]
		if g == nil {
			g = &group{key: key, cost: leastCost + t.total(t.costs[key]), read: d.read}
			byService[key] = g
		}
		_, before := belongs(o.given)
		g.ids, g.cost, g.read = append(g.ids, id), g.cost+t.total(before), min(g.read, d.read)
		if d.together || key == (serviceKey{}) {
			together[g] = true
		}
	}
	namespaces = map[string][]*group{}
	for key, g := range byService {
		if together[g] {
			atOnce = append(atOnce, g)
			continue
		}
		namespaces[key.namespace] = append(namespaces[key.namespace], g)
		if _, ok := t.tags[key.namespace]; !ok {
			t.tags[key.namespace] = t.virtual
		}
	}
	for _, list := range namespaces {
		slices.SortFunc(list, func(a, b *group) int {
			return cmp.Or(cmp.Compare(a.read, b.read), cmp.Compare(a.key.name, b.key.name))
		})
	}
	return atOnce, namespaces
}

// takeGroups returns the changes of some groups.
func (t *Tracker) takeGroups(list []*group) *objects.Changes {
	ch := &objects.Changes{Queued: t.queued}
	for _, g := range list {
		for _, id := range g.ids {
			t.take(ch, id)
			delete(t.dirty, id)
		}
	}
	ch.Sort()
	ch.Triggers = t.takeTriggers(ch)
	ch.Read = t.read
	t.queued, t.waiting = time.Time{}, Waiting{}
	for id, d := range t.dirty {
		ch.Read = min(ch.Read, d.read-1)
		if t.queued.IsZero() || d.at.Before(t.queued) {
			t.queued = d.at
		}
		t.waiting.add(id)
	}
	t.wake.Raise()
	return ch
}

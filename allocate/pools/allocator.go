package pools

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// claim is the set of addresses that one Service has, or that Reserve keeps from Services.
type claim struct {
	key       string
	uid       types.UID
	pool      string // "" for reserved addresses
	addresses []netip.Addr
	ports     map[Port]bool // a Service may have tens of thousands
	sharing   Sharing
	// presumed: no readable pool has all addresses, but a pool that cannot be read may.
	presumed bool
	// reserved: the addresses are reserved (Reserve). holder names the holder in messages. Only the
	// Service allowedKey may get them.
	reserved           bool
	holder, allowedKey string
}

// Allocator has the pools and all claims on their addresses. Before the first call of SetPools the
// pools are unknown, and the Allocator decides nothing.
type Allocator struct {
	ready bool
	pools []*Pool // by name
	// unreadable are pools whose ranges are not known (Remains, Unlisted).
	unreadable []*Pool
	byName     map[string]*Pool // of pools
	claims     map[string]*claim
	occupancy
	waits *waits // nil: FollowWaiting was not called
}

// SetPools replaces the pools. It releases claims that no pool contains; a claim whose pool no
// longer admits the Service is released when Adopt or Converge is called for that Service.
//
// unreadable are pools that could never be read since this process started, as Remains and Unlisted
// return them.
func (a *Allocator) SetPools(pools []*Pool, unreadable ...*Pool) {
	a.pools, a.unreadable, a.ready = slices.Clone(pools), slices.Clone(unreadable), true
	byName := func(p, q *Pool) int { return strings.Compare(p.Name, q.Name) }
	slices.SortFunc(a.pools, byName)
	slices.SortFunc(a.unreadable, byName)
	a.byName = make(map[string]*Pool, len(a.pools))
	for _, p := range slices.Backward(a.pools) {
		a.byName[p.Name] = p
	}
	for _, key := range a.keys() {
		c := a.claims[key]
		if c.reserved {
			continue
		}
		p := a.poolWith(c.addresses, c.pool)
		if c.presumed = p == nil; c.presumed {
			p = a.presumed("", c.addresses)
		}
		if p == nil {
			a.Release(key)
			continue
		}
		c.pool = p.Name
	}
}

func (a *Allocator) keys() []string {
	keys := make([]string, 0, len(a.claims))
	for k := range a.claims {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// Pools returns the pools, by name.
func (a *Allocator) Pools() []*Pool { return a.pools }

func (a *Allocator) pool(name string) *Pool { return a.byName[name] }

// poolWith returns a pool that has all addresses: the preferred one if possible.
func (a *Allocator) poolWith(addresses []netip.Addr, preferred string) *Pool {
	if p := a.pool(preferred); p != nil && p.containsAll(addresses) {
		return p
	}
	for _, p := range a.pools {
		if p.containsAll(addresses) {
			return p
		}
	}
	return nil
}

// Claimed returns the addresses that a Service has, and the name of their pool.
func (a *Allocator) Claimed(key string) (addresses []netip.Addr, pool string) {
	if c := a.claims[key]; c != nil && !c.reserved {
		return c.addresses, c.pool
	}
	return nil, ""
}

// Release drops a claim and reports whether there was one.
func (a *Allocator) Release(key string) bool {
	c := a.claims[key]
	if c == nil {
		return false
	}
	delete(a.claims, key)
	a.leave(c)
	a.waits.note(c.addresses)
	return true
}

// hold stores a claim in place of the one with the same key.
func (a *Allocator) hold(c *claim) {
	if before := a.claims[c.key]; before != nil && before.same(c) {
		before.uid, before.pool, before.presumed, before.holder = c.uid, c.pool, c.presumed, c.holder
		return
	}
	a.Release(c.key)
	if a.claims == nil {
		a.claims = map[string]*claim{}
	}
	a.claims[c.key] = c
	a.enter(c)
	a.waits.note(c.addresses)
}

// Reserve replaces the addresses reserved under key. No Service gets a reserved address, except the
// one with the key except, if that is not empty. Services that already have one keep it. by names
// the holder in messages.
func (a *Allocator) Reserve(key, by, except string, addresses []netip.Addr) {
	if len(addresses) == 0 {
		a.Release(key)
		return
	}
	a.hold(&claim{key: key, addresses: addresses, reserved: true, holder: by, allowedKey: except})
}

// Reserved returns the addresses reserved under key.
func (a *Allocator) Reserved(key string) []netip.Addr {
	if c := a.claims[key]; c != nil && c.reserved {
		return c.addresses
	}
	return nil
}

// Holders returns the Services that have an address, in the order in which they got it.
func (a *Allocator) Holders(address netip.Addr) (keys []string) {
	if at := a.at[address]; at != nil {
		for _, c := range at.claims {
			if !c.reserved {
				keys = append(keys, c.key)
			}
		}
	}
	return keys
}

// ReservedBy returns the holder of a reserved address if its name begins with prefix, else "".
func (a *Allocator) ReservedBy(address netip.Addr, prefix string) string {
	if at := a.at[address]; at != nil {
		for _, c := range at.claims {
			if c.reserved && strings.HasPrefix(c.holder, prefix) {
				return c.holder
			}
		}
	}
	return ""
}

// free returns why a Service cannot have an address; nil: it can. With adopt, because the Service's
// status lists the address, a reservation does not prevent it.
func (a *Allocator) free(r *Request, address netip.Addr, adopt bool) *Refusal {
	at := a.at[address]
	c, p := at.conflict(r, adopt)
	switch {
	case c == nil:
		return nil
	case c.reserved:
		return refuse(AddressTaken, "%s: %s has it", address, c.holder)
	case p != Port{}:
		return refuse(PortTaken, "%s: Service %s has port %s of it", address, c.key, p)
	}
	reason, why := r.Sharing.with(&c.sharing)
	return refuse(reason, "%s: "+why, address, c.key)
}

// Assign gives a Service certain addresses, in place of the ones that it has.
func (a *Allocator) Assign(r *Request, addresses []netip.Addr) *Refusal {
	return a.assign(r, addresses, false)
}

func (a *Allocator) assign(r *Request, addresses []netip.Addr, adopt bool) *Refusal {
	pool, refusal := a.poolFor(r, addresses)
	presumed := false
	if refusal != nil {
		if pool = a.presumed(r.Pool, addresses); !adopt || pool == nil {
			return refusal
		}
		presumed = true
	}
	for _, address := range addresses {
		if why := a.free(r, address, adopt); why != nil {
			return why
		}
	}
	ports := make(map[Port]bool, len(r.Ports))
	for _, p := range r.Ports {
		ports[p] = true
	}
	a.hold(&claim{key: r.Key, uid: r.UID, pool: pool.Name, addresses: slices.Clone(addresses), ports: ports,
		sharing: r.Sharing, presumed: presumed})
	return nil
}

// poolFor returns the pool that contains the addresses: the pool that the Service asks for, else
// the pool of its claim, else the first by name.
func (a *Allocator) poolFor(r *Request, addresses []netip.Addr) (*Pool, *Refusal) {
	var refusal *Refusal
	has := func(p *Pool) bool {
		if p == nil || !p.containsAll(addresses) {
			return false
		}
		why, ok := p.admits(r)
		if !ok && refusal == nil {
			refusal = refuse(PoolNotAllowed, "%s: %s", Join(addresses), why)
		}
		return ok
	}
	if r.Pool != "" {
		p := a.pool(r.Pool)
		switch {
		case p == nil:
			return nil, a.unknownPool(r.Pool)
		case has(p):
			return p, nil
		case refusal != nil:
			return nil, refusal
		}
		return nil, refuse(OutsidePools, "%s: not in pool %s, which the Service asks for", Join(addresses), r.Pool)
	}
	if _, current := a.Claimed(r.Key); has(a.pool(current)) {
		return a.pool(current), nil
	}
	for _, p := range a.pools {
		if has(p) {
			return p, nil
		}
	}
	switch {
	case refusal != nil:
		return nil, refusal
	case len(addresses) > 1:
		return nil, refuse(OutsidePools, "%s: no pool has all of them", Join(addresses))
	}
	return nil, refuse(OutsidePools, "%s: no pool has it", Join(addresses))
}

func (a *Allocator) unknownPool(name string) *Refusal {
	switch p := a.unreadableNamed(name); {
	case p == nil:
	case p.anyName:
		return refuse(PoolInvalid, "pool %s may exist: %s cannot be listed (see the log of sluice-controller)", name,
			p.Name)
	default:
		return refuse(PoolInvalid, "pool %s cannot be read: its Events say why", name)
	}
	return refuse(UnknownPool, "there is no pool %s", name)
}

// Allocate gives a Service the addresses that it asks for, or the ones that it already has, or the
// first free ones of the first pool that admits it.
func (a *Allocator) Allocate(r *Request) ([]netip.Addr, *Refusal) {
	if a.keepsPresumed(r) {
		return a.claims[r.Key].addresses, nil
	}
	if len(r.Addresses) > 0 {
		return r.Addresses, a.Assign(r, r.Addresses)
	}
	if current, _ := a.Claimed(r.Key); current != nil {
		v4, v6 := families(current)
		if v4 && !r.V4 || v6 && !r.V6 {
			return nil, refuse(WrongFamily, "has %s, and its ClusterIPs are %s", Join(current), familyNames(r.V4, r.V6))
		}
		if refusal := a.assign(r, current, true); refusal != nil {
			return nil, refusal
		}
		if v4 == r.V4 && v6 == r.V6 {
			return current, nil
		}
		if all, refusal := a.extend(r); refusal == nil {
			return all, nil
		} else if r.oneFamilyEnough() {
			return current, nil
		} else {
			return nil, refusal
		}
	}
	tiers, refusal := a.tiers(r)
	if refusal != nil {
		return nil, refusal
	}
	for _, tier := range append([][]*Pool{a.ofGroup(r, tiers)}, tiers...) {
		if addresses := a.best(r, tier); addresses != nil {
			return addresses, a.Assign(r, addresses)
		}
	}
	return nil, refuse(PoolEmpty, "no free %s address in %s%s", familyNames(r.V4, r.V6), poolNames(tiers),
		a.unreadableToo())
}

func poolNames(tiers [][]*Pool) string {
	var names []string
	for _, tier := range tiers {
		for _, p := range tier {
			names = append(names, p.Name)
		}
	}
	const most = 5
	if len(names) > most {
		names = append(names[:most], "others")
	}
	if len(names) == 1 {
		return "pool " + names[0]
	}
	return "pools " + strings.Join(names, ", ")
}

// tiers returns the pools that a Service may have addresses from, the dedicated ones first.
func (a *Allocator) tiers(r *Request) ([][]*Pool, *Refusal) {
	if r.Pool != "" {
		p := a.pool(r.Pool)
		if p == nil {
			return nil, a.unknownPool(r.Pool)
		}
		if why, ok := p.admits(r); !ok {
			return nil, refuse(PoolNotAllowed, "%s", why)
		}
		return [][]*Pool{{p}}, nil
	}
	var dedicated, general []*Pool
	for _, p := range a.pools {
		_, admits := p.admits(r)
		switch {
		case !p.autoAssign || !admits:
		case p.dedicated():
			dedicated = append(dedicated, p)
		case p.only == nil:
			general = append(general, p)
		}
	}
	slices.SortStableFunc(dedicated, func(p, q *Pool) int { return cmp.Compare(p.priority(), q.priority()) })
	if len(dedicated)+len(general) == 0 {
		return nil, refuse(NoPool, "none of the %d pools is for this Service: one must have autoAssign, and name "+
			"its namespace and labels in serviceAllocation, or have none%s", len(a.pools), a.unreadableToo())
	}
	return [][]*Pool{dedicated, general}, nil
}

// best returns addresses from one of the pools, or nil if no pool has enough. If the Service asks
// for two families, a pool that has both wins; with policy PreferDualStack one family is better
// than none.
func (a *Allocator) best(r *Request, pools []*Pool) []netip.Addr {
	var firstChoice, secondChoice []netip.Addr
	for _, p := range pools {
		v4, v6 := a.first(r, p)
		switch {
		case !r.dual() && r.V4 && v4 != nil:
			return v4
		case !r.dual() && r.V6 && v6 != nil:
			return v6
		case !r.dual() || !r.oneFamilyEnough() && (v4 == nil || v6 == nil):
			continue
		case v4 != nil && v6 != nil:
			return append(v4, v6...)
		}
		if r.V6First {
			v4, v6 = v6, v4
		}
		if firstChoice == nil {
			firstChoice = v4
		}
		if secondChoice == nil {
			secondChoice = v6
		}
	}
	if firstChoice == nil {
		return secondChoice
	}
	return firstChoice
}

// extend adds an address of the missing family, from a pool that also has the current address.
func (a *Allocator) extend(r *Request) ([]netip.Addr, *Refusal) {
	current, _ := a.Claimed(r.Key)
	v4, _ := families(current)
	missing := *r
	missing.V4, missing.V6 = !v4, v4
	candidates := a.extending(r)
	more := a.best(&missing, candidates)
	if more == nil {
		return nil, refuse(PoolEmpty, "no free %s address in %s, which has %s", familyNames(missing.V4, missing.V6),
			poolNames([][]*Pool{candidates}), Join(current))
	}
	all := append(slices.Clone(current), more...)
	return all, a.assign(r, all, true)
}

// extending returns the pools that may provide a second address for a Service that has one: the
// pool of its claim, and other pools that contain the current address.
func (a *Allocator) extending(r *Request) []*Pool {
	current, name := a.Claimed(r.Key)
	list := []*Pool{a.pool(name)}
	for _, p := range a.pools {
		if _, admits := p.admits(r); admits && p.Name != name && p.containsAll(current) && r.Pool == "" {
			list = append(list, p)
		}
	}
	return list
}

// Use is how many addresses of a pool are claimed, and how many it has (Pool.Size).
type Use struct{ Used4, Used6, Size4, Size6 int64 }

// Usage returns the use of each pool. An address that several Services share counts once; an
// address that is in several pools counts in the pool of its claim.
func (a *Allocator) Usage() map[string]Use {
	all := make(map[string]Use, len(a.pools))
	for _, p := range a.pools {
		v4, v6 := p.Size()
		all[p.Name] = Use{Size4: v4, Size6: v6}
	}
	for address, at := range a.at {
		c := at.given()
		if c == nil {
			continue
		}
		u := all[c.pool]
		if address.Is4() {
			u.Used4++
		} else {
			u.Used6++
		}
		all[c.pool] = u
	}
	return all
}

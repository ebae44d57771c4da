package endpointhealth

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"sluice.dev/sluice/control/compiler"
	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/internal/duequeue"
	"sluice.dev/sluice/nat/header"
)

// Config configures a Tracker.
type Config struct {
	// Passive: endpoints without a check are checked when they are suspected.
	Passive bool
	// ChecksPerSecond bounds active checks; one namespace may have NamespaceShare percent of this
	// bound (0 is all).
	ChecksPerSecond, NamespaceShare int
	// MostUnderWay bounds the checks under way, of all namespaces; 0 stands for the constant of the
	// same name. One namespace may have NamespaceShare percent of this bound.
	MostUnderWay int
	// Unresolved reports whether the kernel must resolve an address on a link before a check. At
	// most MostUnresolved such addresses are checked at a time; one namespace may have
	// NamespaceShare percent of this bound. nil: no bound.
	Unresolved     func(netip.Addr) bool
	MostUnresolved int
	// Random returns a number from 0 to n-1.
	Random func(n int64) int64
}

// Tracker is the state of all endpoints that are checked.
type Tracker struct {
	cfg    Config
	ports  []*compiler.CheckedPort // of the last SetPorts
	active map[*compiler.CheckedPort][]*endpoint
	by     map[compiler.Endpoint]*endpoint
	// generation counts the calls of SetPorts.
	generation uint64
	queue      duequeue.Queue[*endpoint]
	slow       map[*endpoint]bool // in slow start
	exempt     map[port]bool      // ports with CheckNone
	change     map[compiler.Endpoint]compiler.EndpointHealth
	passed     passive
	counts     Counts
	denied     []Denial
	remembered []*endpoint // until the first SetPorts

	// Bounds of checks under way, see admit.go. waiting are the lanes with endpoints in their
	// queue, left is the processor time left for all checks, served the virtual time of the lane
	// that was served last.
	usages   map[usageKey]*usage
	waiting  []*lane
	underWay int
	lookups  []lookup
	left     bucket
	served   time.Duration
	retry    time.Time
	late     map[port]time.Time
}

// Counts are totals since the start, except for Checked, Down, Unchecked and Waiting, which are
// numbers of endpoints now.
type Counts struct {
	Checks, Failures uint64 // finished, and failed
	NotMade          uint64 // could not be made by this host
	WentDown, CameUp uint64
	// Suspected counts suspicions of passive checks. Cleared counts suspicions that an answer
	// ended.
	Suspected, Cleared uint64
	// Checked are the endpoints with an active check now. Down are the endpoints that are down by
	// any check. Unchecked are the endpoints that have no place in ChecksPerSecond, and the
	// suspicious endpoints that have no room.
	Checked, Down, Unchecked int
	// Waiting are the endpoints whose check is due and has no room yet.
	Waiting int
}

// Denial names a service port with endpoints that are not checked, are checked late, or whose
// answers do not return.
type Denial struct{ Namespace, Service, PortName string }

// port names a service port.
type port struct {
	namespace, service, name string
	proto                    uint8
}

func portOf(e *compiler.Endpoint) port { return port{e.Namespace, e.Service, e.PortName, e.Proto} }

// endpoint is a checked endpoint.
type endpoint struct {
	duequeue.Timer // of the next check

	name    compiler.Endpoint
	target  netip.AddrPort
	check   objects.Check
	passive bool // it is checked because it was suspected
	gone    bool // no longer checked; the result of a check may still arrive
	// generation is the number of the SetPorts call that last set this check. ref is the suspected
	// backend.
	generation uint64
	ref        services.BackendRef
	// routed is the service port of a suspected endpoint if it is routed, else 0.
	routed services.ServiceID

	lane    *lane // it waits in the lane's queue; nil if not
	running bool
	started time.Time

	down   bool
	count  uint8 // successes in a row while it is down, failures while it is up
	since  time.Time
	last   Result
	lastAt time.Time
	// share is the part of the weight in slow start, in tenths, 0 when it is over; raised is when
	// the next tenth is.
	share  uint8
	raised time.Time
}

// Result is the result of a check.
type Result struct {
	OK     bool
	Detail string // such as "connected", "refused", "no answer in 750ms", "status 503"
	Took   time.Duration
	// Skipped: the endpoint must not be checked, for the reason in Detail. It counts as up.
	Skipped bool
	// NotMade: this host could not make the check, for the reason in Detail, such as no free
	// descriptor. The endpoint stays up or down.
	NotMade bool
	// Spent is the processor time that the check cost; 0 stands for CheckCost.
	Spent time.Duration
}

// Start is a check to start. Done must be called with it when it is over.
type Start struct {
	Target netip.AddrPort
	Check  objects.Check
	// Namespace is the namespace of the Service.
	Namespace string

	of   *endpoint
	lane *lane
	// reserved is the processor time that is set aside for it.
	reserved time.Duration
}

// New returns a Tracker without endpoints.
func New(cfg Config) *Tracker {
	return &Tracker{cfg: cfg, by: map[compiler.Endpoint]*endpoint{}, slow: map[*endpoint]bool{},
		exempt: map[port]bool{}, change: map[compiler.Endpoint]compiler.EndpointHealth{},
		passed: newPassive(), usages: map[usageKey]*usage{}, late: map[port]time.Time{}}
}

// Configure changes the configuration.
func (t *Tracker) Configure(cfg Config, now time.Time) {
	cfg.Random, cfg.MostUnderWay = t.cfg.Random, t.cfg.MostUnderWay
	cfg.Unresolved, cfg.MostUnresolved = t.cfg.Unresolved, t.cfg.MostUnresolved
	was := t.cfg
	t.cfg = cfg
	if was.Passive && !cfg.Passive {
		t.endPassive(func(*endpoint) bool { return true })
		t.passed.unchecked = 0
		clear(t.passed.denied)
		clear(t.passed.unreturned)
	}
	if was.ChecksPerSecond != cfg.ChecksPerSecond || was.NamespaceShare != cfg.NamespaceShare {
		t.SetPorts(t.ports, now)
	}
}

// SetPorts replaces the endpoints with active checks, in the order of their Services' age, oldest
// first. An endpoint that stays keeps its state, or starts again if its kind of check changed. An
// endpoint that is no longer checked is up. The first check of a new endpoint is within an
// interval, at random.
func (t *Tracker) SetPorts(ports []*compiler.CheckedPort, now time.Time) {
	t.ports, t.denied = ports, nil
	t.counts.Checked, t.counts.Unchecked = 0, 0
	clear(t.exempt)
	t.generation++
	before := t.active
	t.active = make(map[*compiler.CheckedPort][]*endpoint, len(ports))
	budget := newBudget(t.cfg.ChecksPerSecond, t.cfg.NamespaceShare)
	for _, p := range ports {
		if p.Check.Kind == objects.CheckNone {
			t.exempt[port{p.Namespace, p.Service, p.PortName, p.Proto}] = true
			continue
		}
		if !budget.take(p) {
			t.counts.Unchecked += len(p.Endpoints)
			t.denied = append(t.denied, Denial{p.Namespace, p.Service, p.PortName})
			continue
		}
		t.counts.Checked += len(p.Endpoints)
		list, same := before[p]
		if !same {
			list = make([]*endpoint, len(p.Endpoints))
			for i, a := range p.Endpoints {
				list[i] = t.activate(p, a, now)
			}
		}
		t.active[p] = list
		delete(before, p)
	}
	for _, list := range before {
		for _, e := range list {
			if e.generation != t.generation && !e.gone {
				t.remove(e)
			}
		}
	}
	t.forget()
	t.endPassive(func(e *endpoint) bool { return t.exempt[portOf(&e.name)] })
}

// activate gives an endpoint its active check.
func (t *Tracker) activate(p *compiler.CheckedPort, a netip.AddrPort, now time.Time) *endpoint {
	name := compiler.Endpoint{Namespace: p.Namespace, Service: p.Service, PortName: p.PortName, Proto: p.Proto,
		Addr: header.AddrFrom(a.Addr()), Port: a.Port()}
	e := t.by[name]
	if e != nil && !e.passive && e.check.Kind == p.Check.Kind {
		remembered := e.generation == 0
		e.check, e.generation = p.Check, t.generation
		if remembered {
			t.resume(e, now)
		}
		return e
	}
	if e != nil {
		t.remove(e)
	}
	e = &endpoint{name: name, target: a, check: p.Check, since: now,
		generation: t.generation}
	t.by[name] = e
	t.schedule(e, together(now.Add(time.Duration(t.cfg.Random(int64(p.Check.Interval))))))
	return e
}

// remove ends the checks of an endpoint, which is up then.
func (t *Tracker) remove(e *endpoint) {
	e.gone = true
	delete(t.by, e.name)
	delete(t.slow, e)
	t.unqueue(e)
	if e.down {
		t.counts.Down--
	}
	t.passed.remove(e)
	if e.down || e.share != 0 {
		t.change[e.name] = compiler.EndpointHealth{Endpoint: e.name}
	}
}

func (t *Tracker) schedule(e *endpoint, at time.Time) {
	switch {
	case e.running:
	case e.lane != nil: // it waits, and keeps its place
	default:
		t.queue.Schedule(e, at)
	}
}

// Due appends the checks that are to be started now to list. A check that is due waits in the lane
// of its namespace while there is no room for it.
func (t *Tracker) Due(now time.Time, list []Start) []Start {
	for {
		e, ok := t.queue.First()
		if !ok || e.Due().After(now) {
			break
		}
		t.queue.Remove(e)
		t.wait(e)
	}
	list = t.admit(now, list)
	for e := range t.slow {
		for e.share != 0 && !e.raised.After(now) {
			t.raise(e)
		}
	}
	return list
}

// Next returns when Due has something to do; false if never.
func (t *Tracker) Next() (at time.Time, ok bool) {
	if first, queued := t.queue.First(); queued {
		at, ok = first.Due(), true
	}
	if !t.retry.IsZero() && (!ok || t.retry.Before(at)) {
		at, ok = t.retry, true
	}
	for e := range t.slow {
		if !ok || e.raised.Before(at) {
			at, ok = e.raised, true
		}
	}
	return at, ok
}

// Done records the result of a check.
func (t *Tracker) Done(s Start, r Result, now time.Time) {
	e := s.of
	t.release(&s, &r)
	if e.gone {
		return
	}
	e.running = false
	e.last, e.lastAt = r, now
	if r.NotMade {
		t.counts.NotMade++
		t.schedule(e, t.next(e, now))
		return
	}
	t.counts.Checks++
	switch {
	case r.Skipped:
		t.skipped(e, now)
		return
	case !r.OK:
		t.counts.Failures++
	default:
		t.accepts(e, now)
	}
	if r.OK == e.down {
		e.count++
	} else {
		e.count = 0
	}
	switch {
	case !e.down && e.count >= e.check.Fall:
		t.fall(e, now)
	case e.down && e.count >= e.check.Rise:
		t.rise(e, now)
	}
	if e.gone {
		return
	}
	if e.passive && !e.down && r.OK {
		t.clear(e, now) // it accepts connections
		return
	}
	t.schedule(e, t.next(e, now))
}

// next returns the time of the next check of an endpoint whose last check is over.
func (t *Tracker) next(e *endpoint, now time.Time) time.Time {
	i := e.check.Interval
	if e.count == 0 {
		i += time.Duration(t.cfg.Random(int64(i/5))) - i/10
		return together(e.started.Add(i))
	}
	if at := e.started.Add(i / 2); at.After(now) {
		return at
	}
	return now
}

// together returns a time close to at, at which other checks are started as well. That costs less
// than one check at a time: the process sleeps and wakes up less often, and answers come together.
// The result keeps at's monotonic reading, which Round drops: a step of the wall clock delays no
// check.
func together(at time.Time) time.Time {
	const grid = 100 * time.Millisecond
	return at.Add(at.Round(grid).Sub(at.Round(0)))
}

// skipped: an endpoint that must not be checked counts as up.
func (t *Tracker) skipped(e *endpoint, now time.Time) {
	if e.passive {
		t.remove(e)
		return
	}
	e.count = 0
	if e.down {
		t.rise(e, now)
	}
	t.schedule(e, t.next(e, now))
}

func (t *Tracker) fall(e *endpoint, now time.Time) {
	e.down, e.count, e.since, e.share = true, 0, now, 0
	delete(t.slow, e)
	t.counts.WentDown++
	t.counts.Down++
	t.note(e)
}

func (t *Tracker) rise(e *endpoint, now time.Time) {
	e.down, e.count, e.since = false, 0, now
	t.counts.CameUp++
	t.counts.Down--
	if e.passive {
		t.note(e)
		t.passed.held[e.name] = now.Add(holdOff)
		t.remove(e)
		return
	}
	if e.check.SlowStart > 0 {
		e.share, e.raised = 1, now.Add(e.check.SlowStart/shares)
		t.slow[e] = true
	}
	t.note(e)
}

const shares = 10 // of a slow start

// raise gives an endpoint in slow start the next tenth of its weight.
func (t *Tracker) raise(e *endpoint) {
	e.raised = e.raised.Add(max(e.check.SlowStart/shares, time.Millisecond))
	if e.share++; e.share == shares {
		e.share = 0
		delete(t.slow, e)
	}
	t.note(e)
}

func (t *Tracker) note(e *endpoint) {
	t.change[e.name] = compiler.EndpointHealth{Endpoint: e.name, Down: e.down, SlowStart: e.share}
}

// Changes returns the health of endpoints that changed since the last call, in order.
func (t *Tracker) Changes() (list []compiler.EndpointHealth) {
	for _, h := range t.change {
		list = append(list, h)
	}
	clear(t.change)
	slices.SortFunc(list, func(a, b compiler.EndpointHealth) int { return compareEndpoints(&a.Endpoint, &b.Endpoint) })
	return list
}

func compareEndpoints(a, b *compiler.Endpoint) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Service, b.Service),
		cmp.Compare(a.PortName, b.PortName), cmp.Compare(a.Proto, b.Proto), objects.CompareAddrs(a.Addr, b.Addr),
		cmp.Compare(a.Port, b.Port))
}

// Counts returns the totals.
func (t *Tracker) Counts() Counts {
	c := t.counts
	c.Unchecked += t.passed.unchecked
	return c
}

// Denied returns the service ports that have no place in the bound of checks.
func (t *Tracker) Denied() []Denial { return t.denied }

// View is the state of a checked endpoint, for display.
type View struct {
	Check   string // in short, such as "http /healthz"
	Passive bool   // it is checked because no client got an answer from it
	Down    bool
	Since   time.Time // when Down last changed, or when the checks began
	// Last is the last result, at At, and OK if it is good; no result yet: At is zero.
	Last string
	OK   bool
	At   time.Time
	// SlowStart is the share of its weight in percent; 0 if it is all.
	SlowStart int
}

// Views calls f for each endpoint that is checked, in no order.
func (t *Tracker) Views(f func(compiler.Endpoint, View)) {
	for name, e := range t.by {
		f(name, e.view())
	}
}

// View returns the state of an endpoint; false if it is not checked.
func (t *Tracker) View(name compiler.Endpoint) (v View, ok bool) {
	e := t.by[name]
	if e == nil {
		return v, false
	}
	return e.view(), true
}

func (e *endpoint) view() View {
	v := View{Check: e.check.String(), Passive: e.passive, Down: e.down, Since: e.since, At: e.lastAt,
		Last: e.last.Detail, OK: e.last.OK, SlowStart: int(e.share) * 100 / shares}
	if e.last.OK {
		v.Last = fmt.Sprintf("%s in %v", e.last.Detail, e.last.Took.Round(10*time.Microsecond))
	}
	return v
}

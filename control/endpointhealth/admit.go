package endpointhealth

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"time"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/internal/duequeue"
)

// MostUnderWay bounds the checks under way of all namespaces. A check has at most four descriptors
// (package control/probe), so all checks have at most 8,192.
const MostUnderWay = 2048

// tcpCost is the processor time of a TCP check, and the unit of Config.ChecksPerSecond.
const tcpCost = 50 * time.Microsecond

// CheckCost returns the processor time of a check that is answered at once, the kernel's part
// included (`go test -bench Cost ./control/probe`, rounded up): an https check resumes its session.
func CheckCost(k objects.CheckKind) time.Duration {
	switch k {
	case objects.CheckHTTP:
		return 3 * tcpCost
	case objects.CheckHTTPS, objects.CheckGRPC:
		return 10 * tcpCost
	}
	return tcpCost
}

// reserve returns the maximum processor time of a check, by the bounds of package control/probe. A
// check reserves it while it is under way, and returns the unspent part.
func reserve(k objects.CheckKind) time.Duration {
	switch k {
	case objects.CheckHTTP, objects.CheckGRPC:
		return 5 * time.Millisecond
	case objects.CheckHTTPS:
		return 10 * time.Millisecond
	case objects.CheckUDP, objects.CheckDNS:
		return 3 * time.Millisecond
	}
	return 4 * tcpCost // as many attempts
}

// usageKey names a usage. The checks of suspected endpoints do not wait behind active checks of the
// namespace, so they have a usage of their own.
type usageKey struct {
	namespace string
	passive   bool
}

// usage has the part of each bound that the active checks, or the passive checks, of a namespace
// use.
type usage struct {
	underWay int
	lookups  int // in Tracker.lookups
	left     bucket
	// resolved and unresolved hold the waiting endpoints: endpoints with a resolved address do not
	// wait behind endpoints whose address is unresolved.
	resolved, unresolved lane
}

// lane holds the endpoints of a usage whose check is due and waits for room, the earliest first.
type lane struct {
	of      *usage
	queue   duequeue.Queue[*endpoint]
	waiting int  // in queue
	listed  bool // in Tracker.waiting; true if waiting > 0
	blocked bool // it has no room, in this call of admit
	// served is the virtual time of start-time fair queueing: the lane's processor time since it
	// began to wait, plus Tracker.served at that time. The lane with the least is served first.
	served time.Duration
}

// bucket holds processor time for checks. It fills with time, up to the amount of bucketTime. A
// check begins while some time is left. Its reserve may leave the bucket in debt.
type bucket struct {
	left time.Duration
	at   time.Time
}

const bucketTime = 2 * time.Second

func (b *bucket) fill(perSecond time.Duration, now time.Time) {
	elapsed := min(max(now.Sub(b.at), 0), bucketTime)
	b.at = now
	b.left += time.Duration(float64(perSecond) * elapsed.Seconds())
	b.left = min(b.left, time.Duration(float64(perSecond)*bucketTime.Seconds()))
}

func (t *Tracker) perSecond() time.Duration { return time.Duration(t.cfg.ChecksPerSecond) * tcpCost }

func (t *Tracker) share(of int64) int64 {
	if t.cfg.NamespaceShare > 0 {
		return of * int64(t.cfg.NamespaceShare) / 100
	}
	return of
}

// wait puts a due endpoint into a lane of its namespace.
func (t *Tracker) wait(e *endpoint) {
	k := usageKey{e.name.Namespace, e.passive}
	u := t.usages[k]
	if u == nil {
		u = &usage{}
		u.resolved.of, u.unresolved.of = u, u
		t.usages[k] = u
	}
	l := &u.resolved
	if t.unresolved(e) {
		l = &u.unresolved
	}
	e.lane = l
	l.queue.Schedule(e, e.Due())
	l.waiting++
	t.counts.Waiting++
	if !l.listed {
		l.listed = true
		l.served = max(l.served, t.served)
		t.waiting = append(t.waiting, l)
	}
}

// unqueue takes an endpoint out of the queue that it is in, if any.
func (t *Tracker) unqueue(e *endpoint) {
	if l := e.lane; l != nil {
		l.queue.Remove(e)
		l.waiting--
		t.counts.Waiting--
		e.lane = nil
		return
	}
	t.queue.Remove(e)
}

// admit starts checks of the lanes, until none has room. Checks that wait for processor time or
// lookups are tried again at retry; checks that wait for the end of other checks are tried after
// Done.
func (t *Tracker) admit(now time.Time, list []Start) []Start {
	t.retry = time.Time{}
	t.endLookups(now)
	t.left.fill(t.perSecond(), now)
	t.waiting = slices.DeleteFunc(t.waiting, func(l *lane) bool {
		l.blocked, l.listed = false, l.waiting > 0
		return !l.listed
	})
	for {
		var least *lane
		for _, l := range t.waiting {
			if !l.blocked && l.waiting > 0 && (least == nil || l.served < least.served) {
				least = l
			}
		}
		if least == nil {
			return list
		}
		e, _ := least.queue.First()
		switch {
		case t.room(least.of, e, now):
			list = append(list, t.begin(least, e, now))
		case least == &least.of.resolved && t.unresolved(e): // the kernel has removed the entry meanwhile
			t.unqueue(e)
			t.wait(e)
		default:
			least.blocked = true
		}
	}
}

// retryAfter is how long Due waits for processor time, or for the end of lookups.
const retryAfter = 10 * time.Millisecond

// allows reports whether a usage that has some of a limit may have more, if all usages together
// have total. A usage may have at most the namespace's share, and no more than is free: if n
// namespaces take as much as they can, 1/(n+1) stays free, so that checks of another namespace
// start at once.
func (t *Tracker) allows(has, total, limit int) bool {
	return has < min(max(int(t.share(int64(limit))), 1), limit-total)
}

// room reports whether the first endpoint of a lane may be checked now. If so, it counts the
// lookup.
func (t *Tracker) room(u *usage, e *endpoint, now time.Time) bool {
	if !t.allows(u.underWay, t.underWay, cmp.Or(t.cfg.MostUnderWay, MostUnderWay)) {
		return false
	}
	if !e.passive { // mostSuspects bounds passive checks
		u.left.fill(time.Duration(t.share(int64(t.perSecond()))), now)
	}
	if !e.passive && (t.left.left <= 0 || u.left.left <= 0) || !t.lookUp(u, e, now) {
		t.retry = now.Add(retryAfter)
		return false
	}
	return true
}

func (t *Tracker) begin(l *lane, e *endpoint, now time.Time) Start {
	t.unqueue(e)
	e.running, e.started = true, now
	t.underWay++
	l.of.underWay++
	t.served = max(t.served, l.served)
	s := Start{Target: e.target, Check: e.check, Namespace: e.name.Namespace, of: e, lane: l}
	s.reserved = reserve(e.check.Kind)
	l.served += s.reserved
	if !e.passive {
		t.left.left -= s.reserved
		l.of.left.left -= s.reserved
	}
	return s
}

// release frees the room of a finished check, even if its endpoint is gone, and the processor time
// that it did not spend.
func (t *Tracker) release(s *Start, r *Result) {
	l, unspent := s.lane, s.reserved-cmp.Or(r.Spent, CheckCost(s.Check.Kind))
	t.underWay--
	l.of.underWay--
	l.served -= unspent
	if !s.of.passive {
		t.left.left += max(unspent, 0) // a debt of one namespace must not stop all
		l.of.left.left += unspent
	}
}

// sweepUsages deletes empty usages.
func (t *Tracker) sweepUsages(now time.Time) {
	for k, u := range t.usages {
		if u.underWay > 0 || u.lookups > 0 || u.resolved.listed || u.unresolved.listed {
			continue
		}
		if now.Sub(u.left.at) > bucketTime {
			delete(t.usages, k)
		}
	}
}

// lateFor is how long Late and DeniedSuspects name a port after its last check was late or denied,
// so that the answer does not change with each check.
const lateFor = time.Minute

// Late returns the service ports whose checks begin late because the checks of the namespace, or
// all checks, have no room: by more than a second and a tenth of the interval, now or within the
// last minute. Meanwhile their endpoints stay up or down. Late also removes entries that are no
// longer needed.
func (t *Tracker) Late(now time.Time) []Denial {
	for _, l := range t.waiting {
		l.queue.All(func(e *endpoint) {
			if !e.passive && now.Sub(e.Due()) > time.Second+e.check.Interval/10 {
				t.late[portOf(&e.name)] = now
			}
		})
	}
	t.sweepUsages(now)
	return lately(t.late, now)
}

// lately returns the ports with a time within lateFor, in order, and deletes the others.
func lately(ports map[port]time.Time, now time.Time) []Denial {
	maps.DeleteFunc(ports, func(_ port, at time.Time) bool { return now.Sub(at) > lateFor })
	return denials(maps.Keys(ports))
}

// denials returns service ports in order, without repeats.
func denials(ports iter.Seq[port]) (list []Denial) {
	for p := range ports {
		list = append(list, Denial{p.namespace, p.service, p.name})
	}
	slices.SortFunc(list, func(a, b Denial) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Service, b.Service),
			cmp.Compare(a.PortName, b.PortName))
	})
	return slices.Compact(list)
}

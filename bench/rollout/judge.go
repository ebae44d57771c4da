package rollout

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"sluice.dev/sluice/test/bed/observer"
)

// connection is the common part of all SYNs of one connection to one pod.
type connection struct {
	src, dst netip.AddrPort
	sequence uint32
}

// arrivals are the first SYNs of connections, as they arrived at pods' hosts.
type arrivals struct {
	mu   sync.Mutex
	seen map[connection]bool
	list []observer.Packet
}

// add may be called by any goroutine.
func (a *arrivals) add(p observer.Packet) {
	a.mu.Lock()
	defer a.mu.Unlock()
	c := connection{p.Src, p.Dst, p.Sequence}
	if a.seen[c] {
		return // a retransmission
	}
	if a.seen == nil {
		a.seen = map[connection]bool{}
	}
	a.seen[c] = true
	a.list = append(a.list, p)
}

// all returns the packets that have arrived.
func (a *arrivals) all() []observer.Packet {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.list)
}

// stale describes connections to old endpoints.
type stale struct {
	terminating, dead int           // connections whose first SYN arrived at such a pod
	longest           time.Duration // longest time from a pod's termination to a connection to it
	converged         time.Duration // time from the last pod's termination to the last such connection
	last              time.Time     // time of the last of these connections; zero if there were none
}

// judge finds the connections that arrived at pods that were terminating or dead.
func judge(pods []*pod, list []observer.Packet) (s stale) {
	byAddr := map[netip.Addr]*pod{}
	var change time.Time
	for _, p := range pods {
		if !p.left.IsZero() {
			byAddr[p.addr] = p
			if p.left.After(change) {
				change = p.left
			}
		}
	}
	for _, syn := range list {
		p := byAddr[syn.Dst.Addr()]
		if p == nil || syn.At.Before(p.left) {
			continue
		}
		if !p.died.IsZero() && syn.At.After(p.died) {
			s.dead++
		} else {
			s.terminating++
		}
		s.longest = max(s.longest, syn.At.Sub(p.left))
		s.converged = max(s.converged, syn.At.Sub(change))
		if syn.At.After(s.last) {
			s.last = syn.At
		}
	}
	return s
}

// slow is the least duration of a connection whose first SYN was lost: the retransmission timeout
// (RFC 6298 section 2.1).
const slow = time.Second

// tally holds the clients' results.
type tally struct {
	Tried    int
	Failed   int
	Slow     int // answered, but connected only after a second or more
	Failures map[string]int
	// Times to connect, of answered connections.
	P50, P99, Max time.Duration
}

// count summarizes the attempts that began in an interval.
func count(list []attempt, rolling bool, from, to time.Time) (t tally) {
	var took []time.Duration
	for i := range list {
		a := &list[i]
		if a.rolling != rolling || a.began.Before(from) || a.began.After(to) {
			continue
		}
		t.Tried++
		if a.failure != "" {
			if t.Failures == nil {
				t.Failures = map[string]int{}
			}
			t.Failed++
			t.Failures[a.failure]++
			continue
		}
		if a.connect >= slow {
			t.Slow++
		}
		took = append(took, a.connect)
	}
	if len(took) > 0 {
		slices.Sort(took)
		t.P50, t.P99, t.Max = took[len(took)/2], took[len(took)*99/100], took[len(took)-1]
	}
	return t
}

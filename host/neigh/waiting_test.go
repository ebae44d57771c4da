package neigh

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vishvananda/netlink"
)

// invented returns the n-th address of a flood from spoofed sources.
func invented(n int) string {
	return netip.AddrFrom4([4]byte{10, byte(100 + n>>16), byte(n >> 8), byte(n)}).String()
}

// flood makes a worker's requests for invented destinations.
func (m *mirror) flood(from, packets int) {
	for n := range packets {
		m.table.Resolve(addr(invented(from + n)))
		synctest.Wait()
	}
}

// askedOf returns the number of requests to the kernel for invented destinations.
func (k *fakeKernel) askedOf(from, packets int) (asked int) {
	for n := range packets {
		asked += k.asked(netip.MustParseAddr(invented(from + n)))
	}
	return asked
}

// TestSpoofedSourcesDoNotStarveBackends: during a flood, a backend on the link is resolved at its
// first request, and is resolved again after it failed.
func TestSpoofedSourcesDoNotStarveBackends(t *testing.T) {
	inBubble(t, Config{}, func(m *mirror, k *fakeKernel) {
		backend := netip.MustParseAddr("10.0.0.77")
		state := func(s int) {
			k.ch <- []event{{neighbourChanged, neighbourEvent(backend.String(), s, 2, 0, 0, 0, 0, 7)}}
			synctest.Wait()
		}
		m.flood(0, 10_000)
		m.table.ResolveFirst(addr(backend.String()))
		synctest.Wait()
		if k.asked(backend) != 1 {
			t.Error("a backend on the link is not resolved")
		}
		m.flood(10_000, 10_000)
		state(netlink.NUD_REACHABLE)
		if r := m.lookup(backend.String()); r.Hop == 0 || !m.table.Hop(r.Hop).Ready {
			t.Errorf("answered and not used: %+v", r)
		}
		asked := k.asked(backend)
		state(netlink.NUD_FAILED)
		m.settle(2 * time.Second)
		m.flood(20_000, 10_000)
		m.table.ResolveFirst(addr(backend.String()))
		synctest.Wait()
		if k.asked(backend) == asked {
			t.Error("a backend that failed is not resolved again")
		}
		state(netlink.NUD_REACHABLE)
		if r := m.lookup(backend.String()); r.Hop == 0 || !m.table.Hop(r.Hop).Ready {
			t.Errorf("answered again and not used: %+v", r)
		}
	})
}

// TestEvictedHost: of unknown hosts, the one with the oldest request of the largest prefix is
// dropped; hosts of first requests have a separate list.
func TestEvictedHost(t *testing.T) {
	var w waiting
	host := func(a string, first bool) *neighbour {
		return &neighbour{key: neighKey{1, addr(a)}, host: true, first: first}
	}
	var flooded []*neighbour
	other := host("10.0.0.77", false)
	w.requested(other)
	for n := range maxPending - 1 { // of four prefixes, the first one larger
		a := netip.AddrFrom4([4]byte{10, 1, byte(n / 256), byte(n)})
		if n >= 256 {
			a = netip.AddrFrom4([4]byte{10, 1, byte(1 + n%4), byte(n / 4)})
		}
		flooded = append(flooded, host(a.String(), false))
		if got := w.requested(flooded[n]); got != nil {
			t.Fatalf("%v was dropped, and there is room", got.key)
		}
	}
	w.requested(flooded[0]) // again, so that the second is the oldest
	for n := range 20 {
		new := netip.AddrFrom4([4]byte{10, 9, byte(n), 1})
		if got := w.requested(host(new.String(), false)); got != flooded[1+n] {
			t.Fatalf("%v was dropped, want %v", got.key, flooded[1+n].key)
		}
	}
	if other.place == nil || w.len() != maxPending {
		t.Errorf("%d wait", w.len())
	}
	known := host("10.0.0.1", true)
	w.requested(known)
	for n := range maxFirst - 1 {
		a := netip.AddrFrom4([4]byte{10, 1, byte(n >> 8), byte(n)})
		if got := w.requested(host(a.String(), true)); got != nil {
			t.Fatalf("%v was dropped, and there is room", got.key)
		}
	}
	if got := w.requested(host("10.0.0.2", true)); got != known {
		t.Errorf("%v was dropped", got.key)
	}
	other.first = true // by a first request
	if w.requested(other); w.unknowns != maxPending-1 || other.list != &w.first {
		t.Errorf("%d unknown", w.unknowns)
	}
}

// TestLookupsOfRandomDestinationsAreBounded: a flood of 10,000 destinations a second leads to so
// few requests that the kernel's neighbour table has room, also while routes change. A flood to one
// prefix leaves requests for others. First requests are no exception: the author of an
// EndpointSlice invents endpoints.
func TestLookupsOfRandomDestinationsAreBounded(t *testing.T) {
	for name, first := range map[string]bool{"clients": false, "endpoints": true} {
		t.Run(name, func(t *testing.T) { lookupsOfRandomDestinations(t, first) })
	}
}

func lookupsOfRandomDestinations(t *testing.T, first bool) {
	inBubble(t, Config{}, func(m *mirror, k *fakeKernel) {
		resolve, most := m.table.Resolve, mostUnknown
		if first {
			resolve, most = m.table.ResolveFirst, mostFirst
		}
		request := func(ip string) {
			resolve(addr(ip))
			synctest.Wait()
		}
		m.settle(500 * time.Millisecond) // between two ticks
		const seconds, perSecond = 5, 10_000
		var asked [seconds]int // in all, after each second
		for second := range seconds {
			for n := range perSecond {
				request(invented(second*perSecond + n))
			}
			k.set(func() {
				k.top.routes = append(k.top.routes, route("192.0.2.0/24", via("10.0.0.1")))
			})
			k.ch <- []event{{kind: topologyChanged}}
			m.settle(time.Second)
			asked[second] = k.askedOf(0, seconds*perSecond)
			before := 0 // the kernel still asks for those of the last 3 s
			if second >= 3 {
				before = asked[second-3]
			}
			if asked[second]-before > most {
				t.Errorf("second %d: the kernel asks for %d, want at most %d", second, asked[second]-before, most)
			}
		}
		if all := asked[seconds-1]; all < most {
			t.Errorf("asked %d times, want at least %d", all, most)
		}
		m.settle(unansweredFor)
		for n := range 2 * mostUnknown {
			request(netip.AddrFrom4([4]byte{10, 77, 0, byte(n)}).String())
		}
		request("10.78.0.1")
		if k.asked(netip.MustParseAddr("10.78.0.1")) != 1 {
			t.Error("one prefix takes all requests")
		}
	})
}

// TestDeadEndpointsLeaveRoom: while 1,000 endpoints in a /22 do not answer and packets to all of
// them continue, an endpoint in each of its networks that is requested for the first time is
// looked up at once.
func TestDeadEndpointsLeaveRoom(t *testing.T) {
	inBubble(t, Config{}, func(m *mirror, k *fakeKernel) {
		const seconds = 90 // until all were requested once
		for second := range seconds {
			for n := range 1000 {
				m.table.ResolveFirst(addr(netip.AddrFrom4([4]byte{10, 0, byte(n / 250), byte(n % 250)}).String()))
				synctest.Wait()
			}
			if second >= seconds-4 {
				honest := netip.AddrFrom4([4]byte{10, 0, byte(seconds - 1 - second), 254})
				m.table.ResolveFirst(addr(honest.String()))
				synctest.Wait()
				if k.asked(honest) != 1 {
					t.Errorf("second %d: %v is not looked up", second, honest)
				}
			}
			m.settle(time.Second)
		}
	})
}

// TestNewRequestsLeaveRoomForRepeatedOnes: during a flood of destinations that were never requested
// before, in one prefix at a time or in many, a host that missed its first request is asked for
// again after 4 s and 8 s.
func TestNewRequestsLeaveRoomForRepeatedOnes(t *testing.T) {
	for name, c := range map[string]struct{ perSecond, prefixes int }{
		"one prefix": {128, 1}, "many prefixes": {640, 40},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, Config{}, func(m *mirror, k *fakeKernel) {
				m.settle(500 * time.Millisecond) // between two ticks
				for n := range 13 * c.perSecond {
					if n%c.perSecond == 0 {
						m.table.Resolve(addr("10.0.0.77"))
						synctest.Wait()
					}
					m.flood(n%c.prefixes<<8+n/c.prefixes, 1)
					m.settle(time.Second / time.Duration(c.perSecond))
				}
				if asked := k.asked(netip.MustParseAddr("10.0.0.77")); asked != 3 {
					t.Errorf("asked %d times in 13 s, want 3", asked)
				}
			})
		})
	}
}

// TestRemovedEntryOfSilentHost: when the kernel removes the failed entry of a host that has never
// answered, the host is not asked for again before its interval is over.
func TestRemovedEntryOfSilentHost(t *testing.T) {
	inBubble(t, Config{}, func(m *mirror, k *fakeKernel) {
		m.settle(500 * time.Millisecond) // between two ticks
		host := netip.MustParseAddr("10.0.0.77")
		for second := range 13 {
			m.table.ResolveFirst(addr(host.String()))
			m.settle(time.Second)
			if second%4 == 2 {
				failed := neighbourEvent(host.String(), netlink.NUD_FAILED)
				k.ch <- []event{{neighbourChanged, failed}, {neighbourGone, failed}}
				synctest.Wait()
			}
		}
		if asked := k.asked(host); asked != 3 {
			t.Errorf("asked %d times in 13 s, want 3", asked)
		}
	})
}

// TestBudget: new and repeated requests together stay within the budget and leave room to each
// other, whichever come first.
func TestBudget(t *testing.T) {
	for name, repeated := range map[string]bool{"new first": false, "repeated first": true} {
		t.Run(name, func(t *testing.T) {
			b, now := newBudget(mostFirst), time.Now()
			take := func(dev int32, repeated bool) (taken int) {
				for n := range 100 {
					g := groupOf(neighKey{dev, addr(netip.AddrFrom4([4]byte{10, 0, byte(n), 1}).String())})
					for b.take(g, repeated, now) != nil {
						taken++
					}
				}
				return taken
			}
			first, second := take(1, repeated), take(2, !repeated)
			if first+second != mostFirst || min(first, second) < mostFirst/4 {
				t.Errorf("took %d and then %d of %d", first, second, mostFirst)
			}
			if b.allows(group{}, repeated, now) || !b.allows(group{}, repeated, now.Add(unansweredFor)) {
				t.Error("the requests do not count until their end")
			}
		})
	}
}

// TestManyNewBackends: endpoints that answer take no room, so 1,000 at once, in one network, are
// looked up without delay.
func TestManyNewBackends(t *testing.T) {
	inBubble(t, Config{}, func(m *mirror, k *fakeKernel) {
		var asked []netip.Addr
		k.onUse = func(a netip.Addr) { asked = append(asked, a) }
		for n := range 1000 {
			m.table.ResolveFirst(addr(netip.AddrFrom4([4]byte{10, 0, byte(n / 250), byte(n % 250)}).String()))
			synctest.Wait()
		}
		for n := 0; n < len(asked); n++ { // an answer makes room for another request
			k.ch <- []event{{neighbourChanged, neighbourEvent(asked[n].String(), netlink.NUD_REACHABLE, 2, 1, 1, 1, 1,
				1)}}
			synctest.Wait()
		}
		if len(asked) != 1000 {
			t.Errorf("%d were looked up, want 1000", len(asked))
		}
	})
}

// TestGatewayDoesNotWait: a waiting host that becomes a gateway stays tracked, whatever else is
// requested.
func TestGatewayDoesNotWait(t *testing.T) {
	inBubble(t, Config{}, func(m *mirror, k *fakeKernel) {
		m.table.Resolve(addr("10.0.0.77"))
		synctest.Wait()
		k.set(func() { k.top.routes = append(k.top.routes, route("192.0.2.0/24", via("10.0.0.77"))) })
		k.ch <- []event{{kind: topologyChanged}}
		m.settle(time.Second)
		for n := range 2 * maxPending {
			m.table.Resolve(addr(invented(n)))
			synctest.Wait()
		}
		k.ch <- []event{{neighbourChanged, neighbourEvent("10.0.0.77", netlink.NUD_REACHABLE, 2, 0, 0, 0, 0, 7)}}
		synctest.Wait()
		if hop := m.table.Hop(m.lookup("192.0.2.9").Hop); hop == nil || !hop.Ready {
			t.Errorf("the gateway was dropped: %+v", hop)
		}
	})
}

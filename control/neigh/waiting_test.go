package neigh

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vishvananda/netlink"
)

// invented is the n-th address of a flood from spoofed sources.
func invented(n int) string {
	return netip.AddrFrom4([4]byte{10, byte(100 + n>>16), byte(n >> 8), byte(n)}).String()
}

// TestSpoofedSourcesDoNotStarveBackends: with the waiting places taken and the flood going on, a
// backend on the link is resolved at its first request.
func TestSpoofedSourcesDoNotStarveBackends(t *testing.T) {
	inBubble(t, Config{}, func(m *mirror, k *fakeKernel) {
		n := 0
		flood := func(packets int) {
			for range packets {
				m.table.Resolve(addr(invented(n)))
				synctest.Wait()
				n++
			}
		}
		flood(3 * maxPending)
		m.settle(time.Second)
		m.table.Resolve(addr("10.0.0.77"))
		synctest.Wait()
		if k.asked(netip.MustParseAddr("10.0.0.77")) != 1 {
			t.Error("a backend on the link is not resolved")
		}
		// Before the answer is here the flood takes all places: asked again, it is used.
		flood(maxPending)
		k.ch <- []event{{neighbourChanged, neighbourEvent("10.0.0.77", netlink.NUD_REACHABLE, 2, 0, 0, 0, 0, 7)}}
		m.table.Resolve(addr("10.0.0.77"))
		synctest.Wait()
		if r := m.lookup("10.0.0.77"); r.Hop == 0 || !m.table.Hop(r.Hop).Ready {
			t.Errorf("answered and not used: %+v", r)
		}
		m.settle(time.Second)
		if s := m.Status(); s.Waiting != maxPending || s.Neighbours != maxPending+1 {
			t.Errorf("%+v", s)
		}
	})
}

// TestOldestWaitingGivesWay: a neighbour that is requested repeatedly keeps its place.
func TestOldestWaitingGivesWay(t *testing.T) {
	inBubble(t, Config{}, func(m *mirror, k *fakeKernel) {
		for n := range maxPending + 50 { // the places are taken, and no request came since
			m.table.Resolve(addr(invented(n)))
			if n%100 == 0 {
				m.table.Resolve(addr("10.0.0.77"))
			}
			m.settle(time.Millisecond)
		}
		k.ch <- []event{{neighbourChanged, neighbourEvent("10.0.0.77", netlink.NUD_REACHABLE, 2, 0, 0, 0, 0, 7)}}
		synctest.Wait()
		if r := m.lookup("10.0.0.77"); r.Hop == 0 {
			t.Error("a neighbour that is requested all the time was replaced")
		}
	})
}

// TestLookupsOfRandomDestinationsAreBounded: a flood does not become as many
// questions to the kernel.
func TestLookupsOfRandomDestinationsAreBounded(t *testing.T) {
	inBubble(t, Config{}, func(m *mirror, k *fakeKernel) {
		m.settle(500 * time.Millisecond) // between two ticks
		const flood = 4 * displacementsPerTick
		for n := range flood {
			m.table.Resolve(addr(invented(n)))
			synctest.Wait()
		}
		asked := 0
		for n := range flood {
			asked += k.asked(netip.MustParseAddr(invented(n)))
		}
		if want := maxPending + displacementsPerTick; asked != want {
			t.Errorf("asked %d times, want %d", asked, want)
		}
	})
}

// TestGatewayDoesNotWait: a host that waits and becomes a gateway keeps its place among the
// neighbours with any other requests.
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
			t.Errorf("the gateway gave way: %+v", hop)
		}
	})
}

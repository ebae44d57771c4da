package neigh

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/fastpath/nexthop"
)

// TestEventsFromBeforeAnOverrunAreDiscarded: an event from before the overrun must not be applied
// after the newer reading.
func TestEventsFromBeforeAnOverrunAreDiscarded(t *testing.T) {
	inBubble(t, Config{}, func(m *mirror, k *fakeKernel) {
		m.table.ResolveFirst(addr("10.0.0.9"))
		synctest.Wait()
		old := k.ch
		old <- []event{{neighbourChanged, neighbourEvent("10.0.0.9", netlink.NUD_REACHABLE, 2, 0, 0, 0, 0, 1)}}
		k.set(func() {
			k.ch = make(chan []event)
			k.neigh = []netlink.Neigh{neighbourEvent("10.0.0.9", netlink.NUD_REACHABLE, 2, 0, 0, 0, 0, 2)}
		})
		stale := event{neighbourChanged, neighbourEvent("10.0.0.9", netlink.NUD_STALE, 2, 0, 0, 0, 0, 1)}
		// In one batch with the error, before the reading, and after it.
		old <- []event{{kind: eventsLost}, stale}
		for range 2 {
			select {
			case old <- []event{stale}:
			case <-time.After(50 * time.Millisecond): // correct: the mirror no longer receives
			}
		}
		if hop := m.table.Hop(m.lookup("10.0.0.9").Hop); hop == nil || hop.DstMAC[5] != 2 {
			t.Fatalf("the hop is %+v, the kernel has MAC ...:02", hop)
		}
		k.ch <- []event{{neighbourChanged, neighbourEvent("10.0.0.9", netlink.NUD_REACHABLE, 2, 0, 0, 0, 0, 3)}}
		synctest.Wait()
		if hop := m.table.Hop(m.lookup("10.0.0.9").Hop); hop.DstMAC[5] != 3 {
			t.Errorf("the new subscription is not followed: %+v", hop)
		}
	})
}

// TestContinuousOverruns: readings stay paced, periodic work continues, requests of workers are
// handled, and no generation is made.
func TestContinuousOverruns(t *testing.T) {
	inBubble(t, Config{}, func(m *mirror, k *fakeKernel) {
		m.settle(time.Second)
		m.table.ResolveFirst(addr("10.0.0.9"))
		synctest.Wait()
		generation, readings := m.table.View().Generation, k.read()
		for range 5000 { // 5 s
			select {
			case k.ch <- []event{{kind: eventsLost}}:
			default:
			}
			m.settle(time.Millisecond)
		}
		if n := k.read() - readings; n < 1000 || n > int(5*time.Second/minReadingGap)+1 {
			t.Errorf("%d readings in 5 s", n)
		}
		if n := k.asked(netip.MustParseAddr("10.0.0.9")); n != 2 {
			t.Errorf("a neighbour that does not answer was requested %d times in 5 s, want 2", n)
		}
		if g := m.table.View().Generation; g != generation {
			t.Error("an overrun made a new generation")
		}
	})
}

// TestInterruptedReadingAfterAnOverrunIsRepeated: tables that change fast enough to lose events
// also interrupt dumps, which are repeated at the pace of readings.
func TestInterruptedReadingAfterAnOverrunIsRepeated(t *testing.T) {
	inBubble(t, Config{}, func(m *mirror, k *fakeKernel) {
		m.settle(time.Second)
		k.set(func() { k.fail, k.top.routes = netlink.ErrDumpInterrupted, nil })
		k.ch <- []event{{kind: eventsLost}}
		m.settle(100 * time.Millisecond)
		if r := m.lookup("10.0.0.1"); r.Kind != nexthop.OnLink {
			t.Fatal("an interrupted reading was taken for the truth")
		}
		k.set(func() { k.fail = nil })
		m.settle(50 * time.Millisecond)
		if r := m.lookup("10.0.0.1"); r != unreachable {
			t.Errorf("not repeated: %+v", r)
		}
	})
}

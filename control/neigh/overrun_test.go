package neigh

import (
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/fastpath/nexthop"
)

// setMACs returns a function that gives 10.0.hi.lo on dev a permanent MAC. It must
// be called in a namespace.
func setMACs(dev string) (func(host int, mac byte) error, error) {
	link, err := netlink.LinkByName(dev)
	if err != nil {
		return nil, err
	}
	return func(host int, mac byte) error {
		return netlink.NeighSet(&netlink.Neigh{
			LinkIndex: link.Attrs().Index, IP: net.IPv4(10, 0, byte(host>>8), byte(host)),
			State: netlink.NUD_PERMANENT, HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, mac},
		})
	}, nil
}

// TestKernelLosesInSilenceAfterENOBUFS pins what the mirror is built on: the error
// comes before what is queued, and what is announced until the queue is empty is
// lost without another error (net/netlink/af_netlink.c, netlink_overrun).
func TestKernelLosesInSilenceAfterENOBUFS(t *testing.T) {
	s, peer := newSpace(t), newSpace(t)
	s.veth("eth0", peer, "eth0")
	s.address("eth0", "10.0.0.1/16")
	s.do(func() error {
		set, err := setMACs("eth0")
		if err != nil {
			return err
		}
		socket, err := nl.Subscribe(unix.NETLINK_ROUTE, groups[:]...)
		if err != nil {
			return err
		}
		defer socket.Close()
		if err := socket.SetReceiveBufferSize(16<<10, true); err != nil {
			return err
		}
		if err := socket.SetReceiveTimeout(&unix.Timeval{Usec: 200_000}); err != nil {
			return err
		}
		for host := 2; host < 400; host++ {
			if err := set(host, 1); err != nil {
				return err
			}
		}
		if _, _, err := socket.Receive(); !errors.Is(err, unix.ENOBUFS) {
			t.Fatalf("first: %v", err)
		}
		if err := set(5, 99); err != nil {
			return err
		}
		queued := 0
		for {
			messages, _, err := socket.Receive()
			if errors.Is(err, unix.EAGAIN) {
				break
			}
			if err != nil {
				t.Fatalf("a second error: %v", err)
			}
			for i := range messages {
				queued++
				if n, err := netlink.NeighDeserialize(messages[i].Data); err == nil && len(n.HardwareAddr) == 6 && n.HardwareAddr[5] == 99 {
					t.Error("the change was announced")
				}
			}
		}
		if queued == 0 {
			t.Error("nothing was queued behind the error")
		}
		return nil
	})
}

// stagedKernel is the real kernel; the stages of a test run inside its readings of
// neighbours, after the reading, while the mirror does not listen.
type stagedKernel struct {
	kernel
	stages <-chan func()
}

func (k stagedKernel) neighbours() ([]netlink.Neigh, error) {
	all, err := k.kernel.neighbours()
	select {
	case stage := <-k.stages:
		stage()
	default:
	}
	return all, err
}

// TestChangeAfterAnOverrunIsSeen: the socket overruns while the mirror is busy, and
// a neighbour changes right after the reading that makes up for it.
func TestChangeAfterAnOverrunIsSeen(t *testing.T) {
	s, peer := newSpace(t), newSpace(t)
	s.veth("eth0", peer, "eth0")
	s.address("eth0", "10.0.0.1/16")
	peer.address("eth0")
	var set func(host int, mac byte) error
	s.do(func() (err error) {
		if set, err = setMACs("eth0"); err != nil {
			return err
		}
		return set(5, 1)
	})
	settle(s, peer)
	stages, changed := make(chan func(), 2), make(chan struct{})
	m := s.followWith(Config{Links: []LinkConfig{{"eth0"}}}, func(log *slog.Logger) (kernel, error) {
		k, err := openKernel(log)
		if err != nil {
			return nil, err
		}
		return stagedKernel{k, stages}, k.(*rtnetlink).socket.SetReceiveBufferSize(1<<20, true)
	})
	_, id := m.resolved("10.0.0.5")
	stages <- func() { // three times what the buffer holds
		s.do(func() error {
			for n := range 8000 {
				if err := set(6+n%2, byte(2+n/2%2)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	stages <- func() {
		s.do(func() error { return set(5, 99) })
		close(changed)
	}
	s.do(func() error { // makes the mirror read everything
		r := netlink.NewRule()
		r.Priority, r.Table, r.Family = 100, 100, netlink.FAMILY_V4
		return netlink.RuleAdd(r)
	})
	select {
	case <-changed:
	case <-time.After(10 * time.Second):
		t.Fatal("no second reading")
	}
	m.eventually("the MAC set after the reading", func() bool { return m.table.Hop(id).DstMAC[5] == 99 })
}

// TestWhatWasQueuedBeforeAnOverrunIsDiscarded: an older event must not be applied
// over the newer reading.
func TestWhatWasQueuedBeforeAnOverrunIsDiscarded(t *testing.T) {
	inBubble(t, Config{}, func(m *mirror, k *fakeKernel) {
		m.table.Resolve(addr("10.0.0.9"))
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
			case <-time.After(50 * time.Millisecond): // nobody listens: right
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

// TestOverrunsWithoutEnd: readings stay paced, what runs once a second runs,
// workers are answered, and no generation is made.
func TestOverrunsWithoutEnd(t *testing.T) {
	inBubble(t, Config{}, func(m *mirror, k *fakeKernel) {
		m.settle(time.Second)
		m.table.Resolve(addr("10.0.0.9"))
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
		if n := k.asked(netip.MustParseAddr("10.0.0.9")); n < 5 || n > 7 {
			t.Errorf("a neighbour that does not answer was asked for %d times in 5 s", n)
		}
		if g := m.table.View().Generation; g != generation {
			t.Error("an overrun made a new generation")
		}
	})
}

// TestInterruptedReadingAfterAnOverrunIsRepeated at the pace of readings: tables
// that change so fast that events are lost interrupt dumps too.
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

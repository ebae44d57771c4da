//go:build root

package neigh

import (
	"errors"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/heartbeat"
)

// setMACs returns a function that sets a permanent MAC for 10.0.hi.lo on dev. It must be called in
// a namespace.
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

// TestKernelDropsEventsAfterENOBUFS pins the kernel's behaviour that the mirror relies on: the
// error arrives before the queued events, and later events are lost without another error until the
// queue is empty (net/netlink/af_netlink.c, netlink_overrun).
func TestKernelDropsEventsAfterENOBUFS(t *testing.T) {
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
				if n, err := netlink.NeighDeserialize(messages[i].Data); err == nil && len(n.HardwareAddr) == 6 &&
					n.HardwareAddr[5] == 99 {
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

// stagedKernel is the real kernel. The stages of a test run at the end of its readings of
// neighbours, while the mirror receives no events.
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

// TestChangeAfterAnOverrunIsSeen: the socket overruns while the mirror is busy, and a neighbour
// changes directly after the reading that follows.
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
	m := s.followWith(Config{Links: []LinkConfig{{"eth0"}}}, func(log *slog.Logger, _ *heartbeat.Beat) (kernel, error) {
		k, err := openKernel(log, nil)
		if err != nil {
			return nil, err
		}
		return stagedKernel{k, stages}, k.(*rtnetlink).socket.SetReceiveBufferSize(1<<20, true)
	})
	_, id := m.resolved("10.0.0.5")
	stages <- func() { // three times the size of the buffer
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

// TestReaderStalls: the reader of the subscription is late while its events are not received, and
// no longer after that.
func TestReaderStalls(t *testing.T) {
	s := newSpace(t)
	var beats heartbeat.Set
	s.do(func() error {
		k, err := openKernel(slog.New(slog.DiscardHandler),
			beats.Add("reader", heartbeat.Bounds{Unready: 100 * time.Millisecond, Restart: time.Hour}))
		if err != nil {
			return err
		}
		defer k.close()
		for n := 0; len(beats.Late()) == 0; n++ {
			if n == 500 {
				t.Error("not late, and nobody takes its events")
				break
			}
			r := netlink.NewRule()
			r.Priority, r.Table, r.Family = 100+n, 100, netlink.FAMILY_V4
			if err := netlink.RuleAdd(r); err != nil {
				return err
			}
			time.Sleep(10 * time.Millisecond)
		}
		for end := time.Now().Add(time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
			for len(k.events()) > 0 {
				<-k.events()
			}
		}
		if late := beats.Unready(); len(late) > 0 {
			t.Errorf("late while it waits for the kernel: %v", late)
		}
		return nil
	})
}

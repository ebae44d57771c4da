//go:build root

package xdpprog

import (
	"testing"
	"time"

	"github.com/vishvananda/netlink"
)

// xdpContext is struct xdp_md of a test run (include/uapi/linux/bpf.h).
type xdpContext struct {
	_, dataEnd, _, ingress, queue, _ uint32
}

// TestQueuesWithoutSocket: while the daemon lives and has no socket yet, service packets are
// dropped on queues that are to have one, and pass to the kernel on others.
func TestQueuesWithoutSocket(t *testing.T) {
	isolate(t)
	const queues = 4
	device := func(name string) (ifindex int) {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.NumRxQueues, attrs.NumTxQueues = name, queues, queues
		must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: name + "-peer"}))
		return up(t, name)
	}
	nic, other := device("nic"), device("other")
	s := load(t, Config{})
	defer func() { must(t, s.Close(true)) }()
	_, err := s.Reconcile(fixture())
	must(t, err)
	p := attach(t, s, nic, "nic", Auto)
	unbounded := attach(t, s, other, "other", Auto)
	frame := (&pkt{src: client4, dst: vip4, proto: tcp, dport: 80}).frame()
	beat := func(b int64) { must(t, s.Heartbeat(uint64(b))) }
	action := func(p *Port, queue int) uint32 {
		return run(t, p.program, frame, xdpContext{dataEnd: uint32(len(frame)), ingress: uint32(p.ifindex),
			queue: uint32(queue)})
	}
	check := func(name string, drops ...int) {
		t.Helper()
		for q := range queues {
			want := uint32(xdpPass)
			for _, d := range drops {
				if d == q {
					want = xdpDrop
				}
			}
			if got := action(p, q); got != want {
				t.Errorf("%s: queue %d: action %d, want %d", name, q, got, want)
			}
		}
	}
	beat(bootNanos(t))
	check("nothing said", 0, 1, 2, 3)
	must(t, p.SetQueues(2))
	check("two", 0, 1)
	must(t, p.SetQueues(3))
	check("three", 0, 1, 2)
	must(t, p.SetQueues(queues+1))
	check("more than there are", 0, 1, 2, 3)
	must(t, p.SetQueues(1))
	beat(bootNanos(t) - int64(2*DefaultPassAfter/time.Nanosecond))
	check("heartbeat old")
	if c, err := s.Counters(); err != nil || c.MissedDropped != 4+2+3+4 || c.MissedPassed != 2+1+4 {
		t.Errorf("counters %+v, %v", c, err)
	}
	beat(bootNanos(t))
	if got := action(unbounded, queues-1); got != xdpDrop {
		t.Errorf("another interface: action %d, want %d", got, xdpDrop)
	}
}

// TestNodesOwnFragmentsWithoutSocket: during a restart the node's own fragmented traffic (large DNS
// answers, big pings) is not dropped. A service's fragments to an address that is not the node's
// are dropped like other service packets.
func TestNodesOwnFragmentsWithoutSocket(t *testing.T) {
	b := newRig(t, Settings{SNATFirst: snatFirst, SNATCount: snatCount}, fixture())
	b.beat(time.Second)
	for _, c := range []struct {
		name string
		p    pkt
		want uint32
	}{
		{"UDP to the node", pkt{src: client4, dst: node4, proto: udp, sport: 53, dport: 61000, fragMore: true},
			xdpPass},
		{"ICMP to the node", pkt{src: client4, dst: node4, proto: 1, fragMore: true}, xdpPass},
		{"UDP to a VIP", pkt{src: client4, dst: vip4, proto: udp, sport: 53, dport: 53, fragMore: true}, xdpDrop},
		{"whole, to a node port", pkt{src: client4, dst: node4, proto: tcp, sport: 53, dport: 30080}, xdpDrop},
	} {
		if got := run(t, b.steer, c.p.frame(), nil); got != c.want {
			t.Errorf("%s: action %d, want %d", c.name, got, c.want)
		}
	}
}

package daemon

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/cmd/sluice/internal/frames"
	"sluice.dev/sluice/control/config"
	"sluice.dev/sluice/control/ethtool"
	"sluice.dev/sluice/xdpprog"
)

// portLab is one open port whose device changes.
type portLab struct {
	t     *testing.T
	d     *datapath
	steer *steering
	p     *port
}

func newPortLab(t *testing.T, c *config.Configuration) *portLab {
	t.Helper()
	s, err := xdpprog.Load(xdpprog.Config{})
	must(t, err)
	d, endWorkers := testDatapath(t, c)
	l := &portLab{t: t, d: d, steer: &steering{s: s}, p: d.ports[0]}
	t.Cleanup(func() {
		endWorkers()
		must(t, l.steer.close(true))
		must(t, d.close())
	})
	must(t, d.openPort(t.Context(), l.steer, l.p))
	return l
}

// want looks at the port as the watcher does, and holds its state: how many queues
// are served, why it is not open, what is reported about it.
func (l *portLab) want(when string, served int, why string, conditions ...string) {
	l.t.Helper()
	l.d.check(l.t.Context(), l.steer, l.p)
	if open := l.p.isOpen(); open != (why == "") || !strings.Contains(l.p.reason(), why) {
		l.t.Fatalf("%s: open %v (%s), want %q", when, open, l.p.reason(), why)
	}
	if why == "" {
		if v := l.p.view(); len(v.Queues) != served {
			l.t.Errorf("%s: %d queues are served, want %d", when, len(v.Queues), served)
		}
	}
	for _, sl := range l.p.slots {
		if bound := sl.socket.Load() != nil; bound != (why == "" && sl.queue < served) {
			l.t.Errorf("%s: queue %d has a socket: %v", when, sl.queue, bound)
		}
	}
	var got []string
	for _, c := range l.p.conditions(l.d.frames) {
		got = append(got, c.Level+" "+c.Name+": "+c.Detail)
	}
	ok := len(got) == len(conditions)
	for i := range min(len(got), len(conditions)) {
		ok = ok && strings.Contains(got[i], conditions[i])
	}
	if !ok {
		l.t.Errorf("%s: conditions %q, want %q", when, got, conditions)
	}
}

func setQueues(t *testing.T, n uint32) {
	t.Helper()
	// The end without the program never sends on more queues than the other receives on
	// (drivers/net/veth.c): it shrinks first and grows last.
	order := []string{nic, "peer0"}
	if c, err := ethtool.ReadChannels(nic); err == nil && c.Rx > n {
		slices.Reverse(order)
	}
	for _, name := range order {
		c, err := ethtool.ReadChannels(name)
		must(t, err)
		c.Rx, c.Tx = n, n
		must(t, ethtool.SetChannels(name, c))
	}
}

// TestFewerQueuesWanted: what arrives on the others is the kernel's, and that is said.
func TestFewerQueuesWanted(t *testing.T) {
	isolate(t)
	addNIC(t, 4)
	c := smallConfig()
	c.Interfaces[0].Queues = 2
	l := newPortLab(t, c)
	l.want("two of four", 2, "", "warn queues: interface nic0 receives on 4 queues and 2 are served")
	setQueues(t, 2)
	l.want("two of two", 2, "")
}

// TestQueuesAdded: workers and their memory are made at the start. What is added
// later goes to the kernel, and that is a failure to report.
func TestQueuesAdded(t *testing.T) {
	isolate(t)
	addNIC(t, 4)
	setQueues(t, 2)
	l := newPortLab(t, smallConfig())
	l.want("at the start", 2, "")
	setQueues(t, 4)
	l.want("two more", 2, "", "fail queues: interface nic0 receives on 4 queues and 2 are served")
}

// TestDeviceWithFewerQueues: it is served with what it has while every worker gets
// a queue, and in full when it has them again.
func TestDeviceWithFewerQueues(t *testing.T) {
	isolate(t)
	addNIC(t, 4)
	c := smallConfig()
	c.Workers = 2
	l := newPortLab(t, c)
	l.want("at the start", 4, "")
	for _, step := range []struct {
		queues, served int
		why            string
		conditions     []string
	}{
		{3, 3, "", []string{"warn queues: interface nic0 has 3 queues and had 4"}},
		{1, 0, "has 1 queues now, and each of 2 workers needs one", nil},
		{4, 4, "", nil},
	} {
		deleteNIC(t)
		addNIC(t, step.queues)
		l.want("created again", step.served, step.why, step.conditions...)
	}
	// More queues of the same device, as many as there are places for.
	deleteNIC(t)
	addNIC(t, 4)
	setQueues(t, 2)
	l.want("half of them", 2, "", "warn queues: interface nic0 has 2 queues and had 4")
	setQueues(t, 4)
	l.want("the rest", 4, "")
}

// TestMTURaised: the port takes packets in several frames then, and what cannot be received is said.
func TestMTURaised(t *testing.T) {
	isolate(t)
	addNIC(t, 1)
	l := newPortLab(t, smallConfig())
	l.want("at the start", 1, "")
	link, err := netlink.LinkByName(nic)
	must(t, err)
	long := func() bool { return l.p.slots[0].socket.Load().Long() }
	if long() {
		t.Error("an MTU of 1500 needs several frames")
	}
	must(t, netlink.LinkSetMTU(link, 9000))
	l.want("raised", 1, "")
	if why := l.p.view().Queues[0].Reason; !long() || !strings.Contains(why, "MTU 9000 takes 6 frames of 2048 bytes a packet") {
		t.Errorf("raised: several frames %v, because %s", long(), why)
	}
	must(t, netlink.LinkSetMTU(link, 40000))
	l.want("raised too far", 1, "", "fail mtu: interface nic0 has MTU 40000, but 17 frames of 2048 bytes, which are the most that a packet may have, take at most 30442")
	must(t, netlink.LinkSetMTU(link, 1500))
	l.want("as before", 1, "")
}

// TestRefusedForTheMTU: what a driver or the configuration rules out is refused by name, before anything is changed.
func TestRefusedForTheMTU(t *testing.T) {
	for _, tc := range []struct {
		name string
		d    device
		f    config.Interface
		want string
	}{
		{"zero-copy", device{name: "left", driver: "igb", mtu: 9000}, config.Interface{ZeroCopy: config.ZeroCopyRequire},
			"interface left: zeroCopy is require, but MTU 9000 takes 3 frames of 4096 bytes a packet"},
		{"native", device{name: "left", driver: "igb", mtu: 9000, generic: "driver igb gives no packets in several buffers"}, config.Interface{Mode: config.ModeNative},
			"interface left: mode is native, but driver igb gives no packets in several buffers: set mode to auto or generic, or: ip link set left mtu 3818"},
		{"generic is fine", device{name: "left", driver: "igb", mtu: 9000, generic: "driver igb gives no packets in several buffers"}, config.Interface{Mode: config.ModeGeneric}, ""},
		{"native is fine", device{name: "left", driver: "veth", mtu: 9000}, config.Interface{Mode: config.ModeNative}, ""},
		{"more than any packet", device{name: "left", driver: "veth", mtu: 65259}, config.Interface{}, "take at most 65258"},
	} {
		err := checkDevice(tc.d, tc.f, frames.Choice{Size: frames.Large})
		if got := fmt.Sprint(err); (tc.want == "") != (err == nil) || !strings.Contains(got, tc.want) {
			t.Errorf("%s: %v, want %q", tc.name, err, tc.want)
		}
	}
}

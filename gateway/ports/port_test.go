//go:build root

package ports

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/fastpath/xsk/xsktest"
	"sluice.dev/sluice/host/nic/devices"
	"sluice.dev/sluice/host/nic/ethtool"
	"sluice.dev/sluice/host/nic/frames"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/test/bed/machine"
	"sluice.dev/sluice/xdpprog"
)

// portLab is one open port whose device changes.
type portLab struct {
	*rig
	t     *testing.T
	steer *xdpprog.Steering
	p     *port
	left  bool
}

func newPortLab(t *testing.T, c *config.Configuration) *portLab { return newPinnedLab(t, c, "") }

// newPinnedLab is newPortLab whose program stays for a successor that has the same directory of
// pins.
func newPinnedLab(t *testing.T, c *config.Configuration, pinDir string) *portLab {
	t.Helper()
	if c.StateDir == config.Default().StateDir {
		c.StateDir = t.TempDir()
	}
	k, err := xdpprog.Load(xdpprog.Config{PinDir: pinDir})
	must(t, err)
	r := newRig(t, c, k)
	l := &portLab{rig: r, t: t, steer: k, p: r.s.ports[0]}
	t.Cleanup(func() {
		if !l.left {
			l.end(true)
		}
	})
	must(t, r.s.openPort(t.Context(), l.p))
	return l
}

// leave ends the workers and leaves the program to a successor.
func (l *portLab) leave() {
	l.t.Helper()
	l.end(false)
	l.left = true
}

func (l *portLab) end(detach bool) {
	l.t.Helper()
	l.endWorkers()
	must(l.t, l.steer.Close(detach))
	l.close(l.t)
}

// want looks at the port as the watcher does, and holds its state: how many queues
// are served, why it is not open, what is reported about it.
func (l *portLab) want(when string, served int, why string, conditions ...string) {
	l.t.Helper()
	l.s.check(l.t.Context(), l.p)
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
	for _, c := range l.p.conditions(l.s.frames) {
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
	xsktest.EnterNamespace(t)
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
	xsktest.EnterNamespace(t)
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
	xsktest.EnterNamespace(t)
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
		{1, 0, "now has 1 queues, and each of the 2 workers needs its own queue", nil},
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

// TestFramesWithoutZeroCopy: a driver that says it has no zero-copy (veth) gets no larger frames
// for that, if it is not required.
func TestFramesWithoutZeroCopy(t *testing.T) {
	xsktest.EnterNamespace(t)
	addNIC(t, 1)
	link, err := netlink.LinkByName(nic)
	must(t, err)
	must(t, netlink.LinkSetMTU(link, frames.Room(frames.Small))) // zero-copy takes less
	c := smallConfig()
	for _, tc := range []struct {
		zeroCopy config.ZeroCopy
		want     int
	}{{config.ZeroCopyRequire, frames.Large}, {config.ZeroCopyNever, frames.Small},
		{config.ZeroCopyAuto, frames.Small}} {
		c.Interfaces[0].ZeroCopy = tc.zeroCopy
		found, err := devices.Find(c)
		must(t, err)
		if found.Frames.Size != tc.want {
			t.Errorf("zeroCopy %s: frames of %d bytes, because %s", tc.zeroCopy, found.Frames.Size, found.Frames.Reason)
		}
	}
	l := newPortLab(t, c)
	l.want("open", 1, "")
	if why := l.p.view().Queues[0].Reason; why != "the driver has no AF_XDP zero-copy" {
		t.Errorf("copy mode because %s", why)
	}
}

// TestMTURaised: the port takes packets in several frames then, and what cannot be received is
// said.
func TestMTURaised(t *testing.T) {
	xsktest.EnterNamespace(t)
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
	why := func() string { return l.p.view().Queues[0].Reason }
	if why := why(); !long() || !strings.Contains(why, "MTU 9000 takes 6 frames of 2048 bytes a packet") {
		t.Errorf("raised: several frames %v, because %s", long(), why)
	}
	must(t, netlink.LinkSetMTU(link, 40000))
	l.want("raised too far", 1, "",
		"fail mtu: interface nic0 has MTU 40000, but 17 frames of 2048 bytes, which are the most that a packet may "+
			"have, take at most 30442")
	must(t, netlink.LinkSetMTU(link, 8000))
	l.want("lowered a little", 1, "")
	if why := why(); !long() || !strings.Contains(why, "MTU 8000 takes 5 frames") {
		t.Errorf("lowered a little: several frames %v, because %s", long(), why)
	}
	must(t, netlink.LinkSetMTU(link, 1500))
	l.want("as before", 1, "")
	if why := why(); long() || why != "the driver has no AF_XDP zero-copy" {
		t.Errorf("as before: several frames %v, because %s", long(), why)
	}
}

// TestProgramStays: where sockets alone are replaced, the program stays on the device, since some
// drivers take the link down when it goes, and gives its packets to the new sockets. It goes with a
// device that is made again, and where the port cannot be opened.
func TestProgramStays(t *testing.T) {
	xsktest.EnterNamespace(t)
	addNIC(t, 1)
	link, err := netlink.LinkByName(nic)
	must(t, err)
	l := newPortLab(t, smallConfig())
	packet := headertest.UDP("198.51.100.7:4000", "192.0.2.1:80", "")
	vip := header.AddrFrom4([4]byte{192, 0, 2, 1})
	must(t, l.steer.OpenAddr(vip, xdpprog.AddrVIP))
	must(t, l.steer.OpenFrontend(xdpprog.FrontendKey{Addr: vip, Port: 80, Proto: header.ProtoUDP}))
	frame := packet.Bytes()
	arrives := func(when string) {
		t.Helper()
		copy(frame, addressOf(t, nic))
		rx := &l.workers.Blocks()[0].Rx
		before := rx.Load()
		deadline := time.Now().Add(machine.Slower(5 * time.Second))
		for ; rx.Load() == before; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: no packet arrives", when)
			}
			inject(t, "peer0", frame)
		}
	}
	arrives("at the start")
	program := l.p.attach
	for _, mtu := range []int{9000, 1500} {
		must(t, netlink.LinkSetMTU(link, mtu))
		l.want("another MTU", 1, "")
		if l.p.attach != program || program.Check() != nil {
			t.Errorf("MTU %d: another program, or none: %v", mtu, program.Check())
		}
		arrives(fmt.Sprint("MTU ", mtu))
	}

	must(t, l.s.closeSockets(t.Context(), l.p))
	deleteNIC(t)
	addNIC(t, 1)
	l.want("made again", 1, "")
	if l.p.attach == program {
		t.Error("the program of a device that is no more")
	}
	arrives("made again")

	must(t, l.s.closeSockets(t.Context(), l.p))
	l.s.workers = more{l.workers} // of which one has no queue
	if err := l.s.openPort(t.Context(), l.p); err == nil || l.p.attach != nil {
		t.Errorf("not to be opened, and a program is there: %v, %v", l.p.attach, err)
	}
	l.s.workers = l.workers
}

// more adds one worker.
type more struct{ Workers }

func (m more) Len() int { return m.Workers.Len() + 1 }

// inject sends a frame by a device.
func inject(t *testing.T, name string, frame []byte) {
	t.Helper()
	link, err := netlink.LinkByName(name)
	must(t, err)
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(fd)
	must(t, unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: link.Attrs().Index}))
}

// TestMTULowered: sockets of one more registration of the memory go when the MTU does not need
// them, also where nothing else about them changes.
func TestMTULowered(t *testing.T) {
	xsktest.EnterNamespace(t)
	addNIC(t, 1)
	link, err := netlink.LinkByName(nic)
	must(t, err)
	must(t, netlink.LinkSetMTU(link, 9000))
	c := smallConfig()
	c.Tuning.FrameSize, c.Interfaces[0].ZeroCopy = frames.Small, config.ZeroCopyNever
	l := newPortLab(t, c)
	for _, mtu := range []int{9000, 1500} {
		must(t, netlink.LinkSetMTU(link, mtu))
		l.want(fmt.Sprint("MTU ", mtu), 1, "")
		why := l.p.view().Queues[0].Reason
		if long := l.p.slots[0].socket.Load().Long(); long != (mtu == 9000) ||
			why != "zeroCopy is never in the configuration" {
			t.Errorf("MTU %d: several frames %v, because %s", mtu, long, why)
		}
	}
}

// TestZeroCopyAgain: sockets in copy mode, because the driver would cut packets of the MTU, are
// opened again where it would not cut those of a smaller one, once.
func TestZeroCopyAgain(t *testing.T) {
	xsktest.EnterNamespace(t)
	addNIC(t, 1)
	l := newPortLab(t, smallConfig())
	igb := func(mtu int) string {
		dev := l.p.device
		dev.Driver, dev.MTU = "igb", mtu
		return l.p.otherSockets(dev, frames.Small)
	}
	l.p.whyCopy, l.p.without = "driver igb would cut them", false
	if why := igb(1400); why != "" || !strings.Contains(l.p.view().Queues[0].Reason, "and the MTU is 1400") {
		t.Errorf("packets that are cut as before: %q, shown because %s", why, l.p.view().Queues[0].Reason)
	}
	if why := igb(900); !strings.Contains(why, "the reason for copy mode no longer holds: in zero-copy driver igb") {
		t.Errorf("packets that are not: %q", why)
	}
	l.p.whyCopy = ""
	if why := igb(800); why != "" {
		t.Errorf("zero-copy was requested already: %q", why)
	}
}

// addTap makes a device whose driver has native XDP and gives a native program no packets in
// several buffers.
func addTap(t *testing.T, mtu int) netlink.Link {
	t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = nic
	tap := &netlink.Tuntap{LinkAttrs: attrs, Mode: netlink.TUNTAP_MODE_TAP, Queues: 1,
		Flags: netlink.TUNTAP_MULTI_QUEUE_DEFAULTS}
	must(t, netlink.LinkAdd(tap))
	t.Cleanup(func() {
		for _, f := range tap.Fds {
			f.Close()
		}
	})
	must(t, netlink.LinkSetMTU(tap, mtu))
	must(t, netlink.LinkSetUp(tap))
	return tap
}

// TestGenericForTheMTU: with mode auto, a device whose driver keeps long packets from a native
// program is in generic mode as long as its MTU is that long, in native mode as soon as it is not,
// and status shows why; so is what a successor takes over.
func TestGenericForTheMTU(t *testing.T) {
	xsktest.EnterNamespace(t)
	tap := addTap(t, 1500)
	pins := filepath.Join(t.TempDir(), "bpf")
	_, err := xdpprog.EnsureBPFFS(pins)
	must(t, err)
	t.Cleanup(func() { must(t, xdpprog.UnmountBPFFS(pins)) })
	c := smallConfig()
	l := newPinnedLab(t, c, filepath.Join(pins, "sluice"))
	const kept, supported, taken = "gives no packets in several buffers", "the driver supports it",
		"taken over from the previous process"
	want := func(when, mode, reason string) {
		t.Helper()
		l.want(when, 1, "")
		if v := l.p.view(); v.Mode != mode || !strings.Contains(v.Reason, reason) {
			t.Errorf("%s: %s because %q, want %s because %q", when, v.Mode, v.Reason, mode, reason)
		}
	}
	successor := func(mtu int) {
		t.Helper()
		l.leave()
		must(t, netlink.LinkSetMTU(tap, mtu))
		l = newPinnedLab(t, c, filepath.Join(pins, "sluice"))
	}
	want("at the start", "native", supported)
	must(t, netlink.LinkSetMTU(tap, 9000))
	want("raised", "generic", kept)
	must(t, netlink.LinkSetMTU(tap, 1500))
	want("lowered", "native", supported)
	successor(1500)
	want("a successor", "native", taken)
	must(t, netlink.LinkSetMTU(tap, 9000))
	want("raised again", "generic", kept)
	successor(9000)
	want("a successor at the long MTU", "generic", kept)
	successor(1500)
	want("lowered before a successor", "native", supported)

	// A driver may have refused native mode for another reason than the MTU. Taking the program off
	// at each restart would then be in vain.
	successor(9000)
	must(t, os.Remove(filepath.Join(c.StateDir, "modes.json")))
	successor(1500)
	want("no record of a larger MTU", "generic", taken)
}

// TestNativeAgain: what a driver refused at one MTU it may take at a smaller one, and is asked
// once.
func TestNativeAgain(t *testing.T) {
	xsktest.EnterNamespace(t)
	addTap(t, 1500)
	l := newPortLab(t, smallConfig())
	again := func(mtu int) bool {
		dev := l.p.device
		dev.MTU = mtu
		return l.p.otherMode(dev) != ""
	}
	if l.p.genericMTU != 0 || again(68) {
		t.Error("native mode is to be tried where it is")
	}
	l.p.genericMTU = 3000
	if again(3000) || again(3500) || !again(2999) {
		t.Error("the MTU was lowered if and only if native mode is to be tried")
	}
}

// TestGenericModeWithoutMTUCauseStays: generic mode that has another cause than the MTU is not
// given up for it.
func TestGenericModeWithoutMTUCauseStays(t *testing.T) {
	xsktest.EnterNamespace(t)
	must(t, netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: nic}})) // has no native XDP
	link, err := netlink.LinkByName(nic)
	must(t, err)
	must(t, netlink.LinkSetUp(link))
	l := newPortLab(t, smallConfig())
	must(t, netlink.LinkSetMTU(link, 1400))
	if l.s.check(t.Context(), l.p) {
		t.Error("opened again for an MTU that changes nothing")
	}
	if v := l.p.view(); v.Mode != "generic" || !strings.Contains(v.Reason, "the driver refuses native mode") {
		t.Errorf("%s because %q", v.Mode, v.Reason)
	}
}

// TestMTUWithoutMemlock: an MTU that takes sockets of another kind, whose memory the kernel does
// not lock, leaves the interface open as it is, and is said. Where the memory of the others is
// released for it, it is no problem.
func TestMTUWithoutMemlock(t *testing.T) {
	xsktest.EnterNamespace(t)
	addNIC(t, 1)
	c := smallConfig()
	c.Tuning.FrameSize = frames.Small
	link, err := netlink.LinkByName(nic)
	must(t, err)
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.NumTxQueues, attrs.NumRxQueues = "nic1", 1, 1
	other := netlink.NewVeth(attrs)
	other.PeerName = "peer1"
	must(t, netlink.LinkAdd(other))
	must(t, netlink.LinkSetUp(other))
	c.Interfaces = append(c.Interfaces, config.Interface{Name: "nic1", Mode: config.ModeAuto,
		ZeroCopy: config.ZeroCopyAuto})
	xsktest.LimitMemlock(t, 2*256*2048*3/2)
	l := newPortLab(t, c)
	must(t, l.s.openPort(t.Context(), l.s.ports[1]))

	socket := l.p.slots[0].socket.Load()
	must(t, netlink.LinkSetMTU(link, 9000))
	for _, when := range []string{"raised", "and later"} {
		l.want(when, 1, "", "fail mtu: interface nic0 has MTU 9000, and packets longer than 1770 bytes are lost: "+
			"sockets for them would register the frames once more, and the UMEM exceeds RLIMIT_MEMLOCK: grant "+
			"CAP_IPC_LOCK, "+
			"or raise the limit (systemd: LimitMEMLOCK=infinity); then restart. Or: ip link set nic0 mtu 1770")
		if l.p.slots[0].socket.Load() != socket {
			t.Errorf("%s: another socket", when)
		}
	}
	if got := l.s.Devices()[0].MTU; got != 1770 {
		t.Errorf("it is served with an MTU of %d", got)
	}
	if why := l.p.view().Queues[0].Reason; why != "the driver has no AF_XDP zero-copy" {
		t.Errorf("copy mode because %s", why)
	}
	must(t, netlink.LinkSetMTU(link, 1500))
	l.want("lowered", 1, "")
	if l.p.slots[0].socket.Load() != socket {
		t.Error("lowered: another socket")
	}

	must(t, l.s.closePort(t.Context(), l.s.ports[1]))
	for _, mtu := range []int{9000, 1500} {
		must(t, netlink.LinkSetMTU(link, mtu))
		l.want(fmt.Sprint("alone at ", mtu), 1, "")
		if long := l.p.slots[0].socket.Load().Long(); long != (mtu == 9000) {
			t.Errorf("alone at %d: several frames %v", mtu, long)
		}
	}
}

// TestProgramLost: where the driver loses the program when the device is down, it is attached
// again, once, also when the device was down as it was attached. Where it does not, nothing is
// done.
func TestProgramLost(t *testing.T) {
	for _, loses := range []bool{true, false} {
		t.Run(fmt.Sprint("loses it ", loses), func(t *testing.T) {
			xsktest.EnterNamespace(t)
			addNIC(t, 1)
			before := losesProgram
			losesProgram = func(string) bool { return loses }
			t.Cleanup(func() { losesProgram = before })
			link, err := netlink.LinkByName(nic)
			must(t, err)
			must(t, netlink.LinkSetDown(link))
			l := newPortLab(t, smallConfig())
			program := l.p.attach
			look := func(when string, again bool) {
				t.Helper()
				l.s.check(t.Context(), l.p)
				if !l.p.isOpen() || (l.p.attach != program) != again {
					t.Errorf("%s: open %v, attached again %v", when, l.p.isOpen(), l.p.attach != program)
				}
				program = l.p.attach
			}
			look("down", false)
			must(t, netlink.LinkSetUp(link))
			look("up for the first time", loses)
			look("and later", false)
			must(t, netlink.LinkSetDown(link))
			must(t, netlink.LinkSetUp(link)) // before anybody looks
			look("down and up", loses)
			look("down and up, and later", false)
		})
	}
}

// TestDeviceCannotBeRead: a port stays open while the process is out of descriptors or memory, and
// reports that it cannot read its device. When it can read it again, it finds the changes.
func TestDeviceCannotBeRead(t *testing.T) {
	xsktest.EnterNamespace(t)
	addNIC(t, 2)
	l := newPortLab(t, smallConfig())
	l.want("at the start", 2, "")
	links := func(when string) {
		t.Helper()
		if got := l.s.Links(true); len(got) != 1 || got[0].Why != "" {
			t.Errorf("%s: links %+v", when, got)
		}
	}
	links("at the start")
	for _, errno := range machine.Shortages {
		machine.Short(t, errno, func() {
			l.want(errno.Error(), 2, "", "warn interfaces: interface nic0 stays open as it is: its present state "+
				"could not be read: interface nic0 cannot be read: "+errno.Error())
			links(errno.Error())
		})
		l.want("after "+errno.Error(), 2, "")
	}
	restore := machine.LimitDescriptors(t, 0, 0)
	l.want("no descriptor", 2, "", "warn interfaces")
	restore()
	deleteNIC(t)
	l.want("deleted", 2, "Link not found")
}

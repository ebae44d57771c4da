//go:build root

package ports

import (
	"context"
	"net"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/fastpath/xsk/xsktest"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/test/bed/machine"
	"sluice.dev/sluice/xdpprog"
)

// frameLab is a port whose program steers UDP to a VIP, and frames that are sent to it.
type frameLab struct {
	*portLab
	frame  []byte
	socket int // AF_PACKET, on the other end
}

func newFrameLab(t *testing.T, mode xdpprog.AttachMode) *frameLab {
	t.Helper()
	c := smallConfig()
	if mode == xdpprog.Generic {
		c.Interfaces[0].Mode = "generic"
	}
	l := &frameLab{portLab: newPortLab(t, c), frame: headertest.UDP("198.51.100.7:4000", "192.0.2.1:80", "").Bytes()}
	var err error
	l.socket, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	t.Cleanup(func() { unix.Close(l.socket) })
	peer, err := netlink.LinkByName("peer0")
	must(t, err)
	must(t, unix.Bind(l.socket, &unix.SockaddrLinklayer{Ifindex: peer.Attrs().Index}))
	vip := header.AddrFrom4([4]byte{192, 0, 2, 1})
	must(t, l.steer.OpenAddr(vip, xdpprog.AddrVIP))
	must(t, l.steer.OpenFrontend(xdpprog.FrontendKey{Addr: vip, Port: 80, Proto: header.ProtoUDP}))
	return l
}

// send sends a frame to an address, with a tag if it is not 0.
func (l *frameLab) send(to net.HardwareAddr, tag byte) {
	l.t.Helper()
	frame := append([]byte(to), l.frame[6:12]...)
	if tag != 0 {
		frame = append(frame, 0x81, 0, 0, tag)
	}
	_, err := unix.Write(l.socket, append(frame, l.frame[12:]...))
	must(l.t, err)
}

// got returns how many packets the worker has, and how many frames were left to the kernel for
// being another's.
func (l *frameLab) got() (taken, foreign uint64) {
	l.t.Helper()
	c, err := l.steer.Counters()
	must(l.t, err)
	return l.workers.Blocks()[0].Rx.Load(), c.ForeignPassed
}

// wantTaken sends a frame and fails unless the worker gets it, or the kernel.
func (l *frameLab) wantTaken(what string, to net.HardwareAddr, tag byte, want bool) {
	l.t.Helper()
	taken, foreign := l.got()
	l.send(to, tag)
	for deadline := time.Now().Add(machine.Slower(5 * time.Second)); ; time.Sleep(time.Millisecond) {
		nowTaken, nowForeign := l.got()
		if nowTaken+nowForeign > taken+foreign {
			if got := nowTaken > taken; got != want {
				l.t.Errorf("%s: a frame is taken: %v", what, got)
			}
			return
		}
		if time.Now().After(deadline) {
			l.t.Fatalf("%s: the frame is neither taken nor left to the kernel", what)
		}
	}
}

// takes reports whether the program has been told of an address.
func (l *frameLab) takes(a net.HardwareAddr) bool {
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	return slices.Contains(l.p.destinations.MACs, xdpprog.MAC(a))
}

func addressOf(t *testing.T, name string) net.HardwareAddr {
	t.Helper()
	link, err := netlink.LinkByName(name)
	must(t, err)
	return link.Attrs().HardwareAddr
}

// TestFramesForOthers: in native and in generic mode frames are taken that are for an address of
// the device or of one above it, and others are the kernel's: of another host, of a VLAN without a
// device. Devices that come and go are followed without attaching the program again.
func TestFramesForOthers(t *testing.T) {
	for _, mode := range []xdpprog.AttachMode{xdpprog.Native, xdpprog.Generic} {
		t.Run(mode.String(), func(t *testing.T) {
			xsktest.EnterNamespace(t)
			addNIC(t, 1)
			l := newFrameLab(t, mode)
			program := l.p.attach
			if program.Mode() != mode {
				t.Fatalf("mode %v", program.Mode())
			}
			nicIndex := l.p.device.Index
			look := func() { l.s.linksChanged() }
			own, other := addressOf(t, nic), net.HardwareAddr{2, 0, 0, 0, 0, 0x77}
			vrrp := net.HardwareAddr{0, 0, 0x5e, 0, 1, 51}
			l.wantTaken("own", own, 0, true)
			l.wantTaken("another host's", other, 0, false)
			l.wantTaken("a VLAN that no device is in", own, 5, false)

			add := func(link netlink.Link) {
				t.Helper()
				must(t, netlink.LinkAdd(link))
				must(t, netlink.LinkSetUp(link))
				look()
			}
			virtual := &netlink.Macvlan{Mode: netlink.MACVLAN_MODE_BRIDGE, LinkAttrs: netlink.LinkAttrs{
				Name: "vrrp.51", ParentIndex: nicIndex, HardwareAddr: vrrp}}
			l.wantTaken("VRRP's address, no macvlan", vrrp, 0, false)
			add(virtual)
			l.wantTaken("VRRP's address", vrrp, 0, true)
			plain := &netlink.Macvlan{Mode: netlink.MACVLAN_MODE_PRIVATE, LinkAttrs: netlink.LinkAttrs{
				Name: "mv0", ParentIndex: nicIndex}}
			add(plain)
			l.wantTaken("a macvlan", addressOf(t, "mv0"), 0, true)
			must(t, netlink.NeighAppend(&netlink.Neigh{LinkIndex: nicIndex, Family: unix.AF_BRIDGE,
				State: netlink.NUD_PERMANENT, Flags: netlink.NTF_SELF, HardwareAddr: other}))
			look()
			l.wantTaken("in its unicast list", other, 0, true)
			bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{
				Name: "br9", HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 0x99}}}
			add(bridge)
			l.wantTaken("a bridge that it is no port of", bridge.HardwareAddr, 0, false)
			vlan := &netlink.Vlan{VlanId: 5, LinkAttrs: netlink.LinkAttrs{Name: "nic0.5", ParentIndex: nicIndex}}
			if err := netlink.LinkAdd(vlan); err == nil {
				look()
				l.wantTaken("a VLAN that a device is in", own, 5, true)
				l.wantTaken("another VLAN", own, 6, false)
			} else if os.Getenv("SLUICE_NO_SKIP") != "" {
				t.Error(err) // this kernel has no 802.1Q: the program's test has VLANs
			}

			must(t, netlink.LinkDel(virtual))
			look()
			l.wantTaken("VRRP's address, gone a moment ago", vrrp, 0, true)
			l.s.followAll(time.Now().Add(keepMAC))
			l.wantTaken("VRRP's address, gone", vrrp, 0, false)
			l.wantTaken("own, still", own, 0, true)
			if l.p.attach != program || program.Check() != nil {
				t.Error("the program was attached anew")
			}
		})
	}
}

// TestMACChanged: a device gets another address while packets come, and the neighbours learn of it
// some time later. No packet is lost, and the old address ends.
func TestMACChanged(t *testing.T) {
	xsktest.EnterNamespace(t)
	addNIC(t, 1)
	l := newFrameLab(t, xdpprog.Native)
	ctx, cancel := context.WithCancel(t.Context())
	watched := make(chan struct{})
	space, err := os.Open("/proc/thread-self/ns/net")
	must(t, err)
	defer space.Close()
	go func() {
		defer close(watched)
		runtime.LockOSThread() // never unlocked: the thread is in the test's namespace
		if err := unix.Setns(int(space.Fd()), unix.CLONE_NEWNET); err != nil {
			t.Error(err)
			return
		}
		l.s.Watch(ctx, func() {}, func(context.Context) {})
	}()
	defer func() { cancel(); <-watched }()

	to := addressOf(t, nic)
	l.wantTaken("at first", to, 0, true)
	before, foreignBefore := l.got()
	sent := uint64(0)
	stream := func(d time.Duration) {
		for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(200 * time.Microsecond) {
			l.send(to, 0)
			sent++
		}
	}
	link, err := netlink.LinkByName(nic)
	must(t, err)
	var old net.HardwareAddr
	for n := range 5 {
		stream(50 * time.Millisecond)
		old = to
		next := net.HardwareAddr{2, 0, 0, 0, 1, byte(n)}
		must(t, netlink.LinkSetHardwareAddr(link, next))
		changed := time.Now()
		for !l.takes(next) && time.Since(changed) < machine.Slower(5*time.Second) {
			time.Sleep(20 * time.Microsecond)
		}
		t.Logf("the new address is taken after %v", time.Since(changed))
		stream(machine.Slower(50 * time.Millisecond)) // to the old one
		to = next
		stream(50 * time.Millisecond)
	}
	deadline := time.Now().Add(machine.Slower(5 * time.Second))
	for taken, _ := l.got(); taken-before < sent && time.Now().Before(deadline); taken, _ = l.got() {
		time.Sleep(time.Millisecond)
	}
	if taken, foreign := l.got(); taken-before != sent || foreign != foreignBefore {
		t.Errorf("of %d packets %d are taken, %d left to the kernel", sent, taken-before, foreign-foreignBefore)
	}
	for deadline = time.Now().Add(machine.Slower(10 * time.Second)); ; time.Sleep(50 * time.Millisecond) {
		_, foreign := l.got()
		l.send(old, 0)
		time.Sleep(5 * time.Millisecond)
		if _, now := l.got(); now > foreign {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("frames for the old address are taken without end")
		}
	}
	t.Logf("%d packets over 5 changes", sent)
}

//go:build root

package announce

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/mdlayher/packet"
	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/announce/layer2/frame"
	"sluice.dev/sluice/announce/layer2/hello"
	"sluice.dev/sluice/announce/view"
	"sluice.dev/sluice/test/bed/machine"
	"sluice.dev/sluice/test/bed/topo"
)

// families runs a test with each of the first VIPs.
func families(t *testing.T, test func(t *testing.T, vip netip.Addr)) {
	t.Helper()
	a4, a6 := near(0)
	t.Run("ipv4", func(t *testing.T) { test(t, a4) })
	t.Run("ipv6", func(t *testing.T) { test(t, a6) })
}

// VIPs answer a client by ARP and neighbour discovery. Each is with the gateway that all members
// name, and each gateway has some. A new Service answers without a join.
func TestLayer2(t *testing.T) {
	t.Parallel()
	s := newSegment(t, 3, 8)
	share := map[string]int{}
	for i := range 8 {
		a4, a6 := near(i)
		for _, vip := range []netip.Addr{a4, a6} {
			owner := s.settled(vip)
			must(t, s.connect(vip, machine.Slower(5*time.Second)))
			if mac, err := s.knows(vip); err != nil || mac != owner.mac() {
				t.Errorf("the client knows %v at %v, and %s has it at %v (%v)", vip, mac, owner.name, owner.mac(), err)
			}
			share[owner.name]++
		}
	}
	t.Logf("shares of 16 VIPs: %v", share)
	if len(share) < 2 {
		t.Errorf("all VIPs are with one gateway: %v", share)
	}
	a4, _ := near(8)
	begin := time.Now()
	for _, m := range s.gateways {
		must(t, m.gate.Apply(s.service(8, false)))
	}
	s.within(10*time.Second, "a new Service to answer", func() error {
		return s.connect(a4, machine.Slower(time.Second))
	})
	t.Logf("a new Service answers after %v", time.Since(begin))
}

// Which gateway may own a VIP: not one without an endpoint for policy Local. And which one answers
// for it.
func TestLayer2Standing(t *testing.T) {
	t.Parallel()
	s := newSegment(t, 2, 1)
	families(t, func(t *testing.T, vip netip.Addr) {
		owner := s.settled(vip)
		other := s.gateways[0]
		if owner == other {
			other = s.gateways[1]
		}
		must(t, owner.gate.Apply(s.service(0, true)))
		took := s.within(10*time.Second, "the other one to have it", func() error {
			l, err := other.line(vip)
			if err != nil || l.State != view.Announced {
				return fmt.Errorf("%+v, %v", l, err)
			}
			return nil
		})
		t.Logf("policy Local without endpoint: it is with the other one %v later", took)
		// It announces the VIP to the other gateway before it announces it to clients.
		s.within(time.Second, "who has no endpoint to say so", func() error {
			l, err := owner.line(vip)
			if err != nil || l.State != view.Not || !strings.Contains(l.Why, "Local") {
				return fmt.Errorf("%+v, %v", l, err)
			}
			return nil
		})
		must(t, s.connect(vip, machine.Slower(5*time.Second)))
		// A gateway that would not forward the VIP answers for the owner while its announcer is
		// away.
		must(t, other.ours.Stop())
		stop := s.probe(s.client, vip)
		must(t, topo.Pause(s.ctx, 300*time.Millisecond))
		answers := stop()
		for _, a := range answers {
			if a.mac != other.mac() {
				t.Errorf("%v is said to be at %v, and %s is at %v", vip, a.mac, other.name, other.mac())
			}
		}
		if len(answers) == 0 {
			t.Errorf("nobody answers for %v while the announcer of %s is away", vip, other.name)
		}
		other.start()
		must(t, owner.gate.Apply(s.service(0, false)))
		if back := s.settled(vip); back != owner {
			t.Errorf("it came back to %s and not to %s", back.name, owner.name)
		}
	})
}

// failure is a way to lose a gateway, and how it comes back.
type failure struct {
	name   string
	most   time.Duration
	fail   func(m *member) error
	back   func(m *member) error
	always string // the family that is also tested outside of full runs
	damped bool   // it impairs the Services: dampedRuns
}

// dampedRuns is how often a test can impair a Service: after each impairment the announcer waits
// for twice as long until it prefers the gateway again (docs/adr/0035).
const dampedRuns = 2

// failures have a bound of the time until new connections work. A gateway whose announcer is killed
// still forwards: only connections that are being opened while the VIP moves may fail.
var failures = []failure{
	{"the announcer is told to end", 500 * time.Millisecond,
		func(m *member) error { return m.ours.Stop() },
		func(m *member) error { m.start(); return nil }, "", false},
	{"the announcer is killed", 500 * time.Millisecond, func(m *member) error { return m.ours.Kill() },
		func(m *member) error { m.start(); return nil }, "", false},
	{"announcer and packet process are killed", 500 * time.Millisecond, func(m *member) error {
		var killed sync.WaitGroup
		var gate error
		killed.Go(func() { gate = m.gate.Kill() })
		err := m.ours.Kill()
		if killed.Wait(); err == nil {
			err = gate
		}
		return err
	}, func(m *member) error { m.start(); return m.gate.Start(m.s.ctx) }, "ipv4", false},
	{"the packet process is killed, hold 0", 500 * time.Millisecond, func(m *member) error { return m.gate.Kill() },
		func(m *member) error { return m.gate.Start(m.s.ctx) }, "", false},
	{"it is not heard any more", 600 * time.Millisecond, nil, nil, "ipv6", false},
	{"its interface is down", 500 * time.Millisecond, func(m *member) error { return m.setLink(netlink.LinkSetDown) },
		func(m *member) error {
			if full() { // longer than a neighbour is requested without packets (neigh.Config.ProbeInterval)
				if err := topo.Pause(m.s.ctx, 35*time.Second); err != nil {
					return err
				}
			}
			return m.setLink(netlink.LinkSetUp)
		}, "", true},
}

// setLink changes the member's interface, which loses its IPv6 addresses when it goes down.
func (m *member) setLink(set func(netlink.Link) error) error {
	i := m.Interfaces[0]
	return m.Run(func() error {
		l, err := netlink.LinkByName(i.Name)
		if err != nil {
			return err
		}
		if err := set(l); err != nil {
			return err
		}
		a := &netlink.Addr{IPNet: &net.IPNet{IP: i.Addr6.Addr().AsSlice(), Mask: net.CIDRMask(i.Addr6.Bits(), 128)}}
		if err := netlink.AddrReplace(l, a); err != nil && l.Attrs().Flags&net.FlagUp != 0 {
			return err
		}
		return nil
	})
}

// The owner of a VIP is lost in each way: measure how long new connections to the VIP fail. When it
// is back and has joined, it owns the VIP again, and no connection fails because of that.
func TestLayer2Failover(t *testing.T) {
	families(t, func(t *testing.T, vip netip.Addr) {
		s := newSegment(t, 3, 1)
		for _, f := range failures {
			if !full() && f.always != map[bool]string{true: "ipv4", false: "ipv6"}[vip.Is4()] {
				continue
			}
			var took []time.Duration
			n := runs()
			if f.damped {
				n = min(n, dampedRuns)
			}
			for range n {
				owner := s.settled(vip)
				must(t, s.connect(vip, machine.Slower(5*time.Second)))
				var heal func() error
				took = append(took, s.stream(vip, 2*time.Second, func() (err error) {
					if f.fail == nil {
						heal, err = s.Isolate(owner.Host)
						return err
					}
					return f.fail(owner)
				}))
				if f.back != nil {
					must(t, f.back(owner))
				} else {
					must(t, heal())
				}
				if back := s.settled(vip); back != owner {
					t.Errorf("%s: it came back to %s and not to %s", f.name, back.name, owner.name)
				}
			}
			report(t, f.name, f.most, took)
		}
	})
}

// The link is partitioned, with a gateway on each side, and whole again: both sides have an owner
// meanwhile, and a second after it is whole only one gateway answers.
func TestLayer2Partition(t *testing.T) {
	families(t, func(t *testing.T, vip netip.Addr) {
		if !vip.Is4() {
			onlyFull(t)
		}
		s := newSegment(t, 2, 1)
		var took []time.Duration
		for range runs() {
			owner := s.settled(vip)
			heal, err := s.Isolate(s.gateways[1].Host)
			must(t, err)
			// Both must have lost the other one: a member that was lost by only one side joins
			// first.
			s.within(10*time.Second, "both sides to have it", func() error {
				for _, m := range s.gateways {
					v, err := m.ask()
					if err != nil || len(v.Peers) != 1 || v.Peers[0].Up {
						return fmt.Errorf("%s: %+v, %v", m.name, v, err)
					}
					if l, err := m.line(vip); err != nil || l.State != view.Announced {
						return fmt.Errorf("%s: %+v, %v", m.name, l, err)
					}
				}
				return nil
			})
			stop := s.probe(s.client, vip)
			must(t, heal())
			whole := time.Now()
			must(t, topo.Pause(s.ctx, 2*time.Second))
			var last time.Duration
			seen := map[frame.MAC]int{}
			all := stop()
			for _, a := range all {
				if seen[a.mac]++; a.mac != owner.mac() {
					last = max(last, a.at.Sub(whole))
				}
			}
			if seen[owner.mac()] == 0 {
				t.Errorf("who has the VIP does not answer: %v", seen)
			}
			if last > time.Second {
				t.Logf("answers since the link was whole: %s", timeline(all, whole))
			}
			took = append(took, last)
			if again := s.settled(vip); again != owner {
				t.Errorf("it is with %s, and was with %s", again.name, owner.name)
			}
			must(t, s.connect(vip, machine.Slower(5*time.Second)))
		}
		report(t, "two gateways answered after the link was whole", time.Second, took)
	})
}

// All addresses of a gateway's interface are removed and added again, as when its network is
// configured again: it leaves the link and joins it in the same process. Then each VIP has the same
// owner as before. The other gateway must not take its hellos for replays. Without a new
// incarnation it would, for as long as the link had existed before.
func TestLayer2LinkReturns(t *testing.T) {
	t.Parallel()
	s := newSegment(t, 2, 1)
	vip, vip6 := near(0)
	for range min(runs(), dampedRuns) {
		owner, owner6 := s.settled(vip), s.settled(vip6)
		other := s.gateways[0]
		if owner == other {
			other = s.gateways[1]
		}
		replayed := other.metric("hellos_refused_total", `reason="replayed"`)
		i := owner.Interfaces[0]
		must(t, owner.RemoveAddresses(i.Name, i.Addr4, i.Addr6))
		s.within(10*time.Second, "it to give up its link", func() error {
			if v, err := owner.ask(); err != nil || len(v.Peers) > 0 {
				return fmt.Errorf("%+v, %v", v, err)
			}
			return nil
		})
		s.settled(vip, other)
		must(t, owner.AddAddresses(i.Name, i.Addr4, i.Addr6))
		back := time.Now()
		if again, again6 := s.settled(vip), s.settled(vip6); again != owner || again6 != owner6 {
			t.Errorf("with %s and %s, and before with %s and %s", again.name, again6.name, owner.name, owner6.name)
		}
		t.Logf("all agree %v after the addresses were back", time.Since(back))
		if n := other.metric("hellos_refused_total", `reason="replayed"`) - replayed; n > 0 {
			t.Errorf("%v hellos were refused as replayed", n)
		}
		must(t, s.connect(vip, machine.Slower(5*time.Second)))
	}
}

// timeline prints which member answered when.
func timeline(list []answer, begin time.Time) string {
	var b strings.Builder
	for i, a := range list {
		if i == 0 || list[i-1].mac != a.mac {
			fmt.Fprintf(&b, " %v: %v", a.at.Sub(begin).Round(time.Millisecond), a.mac)
		}
	}
	return b.String()
}

// wire is the client's packet socket for hellos.
func (s *segment) wire() (*packet.Conn, frame.MAC) {
	s.t.Helper()
	var c *packet.Conn
	must(s.t, s.client.Run(func() error {
		i, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		c, err = packet.Listen(i, packet.Raw, hello.EtherType, nil)
		return err
	}))
	s.t.Cleanup(func() { c.Close() })
	group := hello.Group
	must(s.t, c.JoinGroup(group[:]))
	return c, s.client.Interfaces[0].MAC
}

// Hellos without a valid key, and replayed ones, move nothing, neither while their senders live nor
// after they have gone. Replacing a key on all gateways also moves nothing.
func TestLayer2Forged(t *testing.T) {
	onlyFull(t)
	t.Parallel()
	s := newSegment(t, 2, 1)
	vip, _ := near(0)
	owner := s.settled(vip)
	other := s.gateways[0]
	if owner == other {
		other = s.gateways[1]
	}
	c, mac := s.wire()
	send := func(b []byte) {
		t.Helper()
		_, err := c.WriteTo(b, &packet.Addr{HardwareAddr: b[:6]})
		must(t, err)
	}
	var nonce [8]byte
	_, _ = rand.Read(nonce[:])
	wrong := hello.Keys{[]byte(strings.Repeat("f", 32))}
	for i := range 200 { // a goodbye of the owner, and a new member with all VIPs
		for _, h := range []hello.Hello{{Name: owner.name, Goodbye: true, Parts: 1},
			{Name: "zzz", Parts: 1, Table: 1, VIPs: []hello.Entry{{VIP: vip}}}} {
			h.Incarnation, h.Sequence = uint64(time.Now().UnixNano()), uint64(i)
			h.Nonce = binary.BigEndian.Uint64(nonce[:])
			send(frame.Wrap(hello.Group, mac, hello.EtherType, wrong.Seal(&h)))
		}
		must(t, topo.Pause(s.ctx, 2*time.Millisecond)) // a socket holds some hundred frames
	}
	s.within(10*time.Second, "forged hellos to be counted", func() error {
		if n := other.metric("hellos_refused_total", `reason="forged"`); n < 200 {
			return fmt.Errorf("%v are", n)
		}
		return nil
	})
	// Record for a second, including the owner's goodbye, and replay all of it.
	var recorded [][]byte
	record := func(d time.Duration) {
		t.Helper()
		must(t, c.SetReadDeadline(time.Now().Add(d)))
		for b := make([]byte, 2048); ; {
			n, _, err := c.ReadFrom(b)
			if err != nil {
				return
			}
			recorded = append(recorded, append([]byte{}, b[:n]...))
		}
	}
	record(time.Second)
	repeat := func(when string) {
		t.Helper()
		before := other.metric("hellos_refused_total", `reason="replayed"`) +
			other.metric("hellos_refused_total", `reason="unproven"`)
		for _, b := range recorded {
			send(b)
		}
		s.within(10*time.Second, when+": repeated hellos to be counted", func() error {
			n := other.metric("hellos_refused_total", `reason="replayed"`) +
				other.metric("hellos_refused_total", `reason="unproven"`) - before
			if n < float64(len(recorded))/4 {
				return fmt.Errorf("%v of %d are", n, len(recorded))
			}
			return nil
		})
	}
	changes := other.metric("owner_changes_total", "")
	repeat("alive")
	if again := s.settled(vip); again != owner || other.metric("owner_changes_total", "") != changes {
		t.Errorf("forged and repeated hellos have moved the VIP from %s to %s", owner.name, again.name)
	}
	must(t, owner.ours.Kill())
	s.settled(vip, other)
	repeat("dead")
	if l, err := other.line(vip); err != nil || l.State != view.Announced {
		t.Errorf("hellos of a dead gateway have moved the VIP: %+v, %v", l, err)
	}
	must(t, other.ours.Kill()) // its next process knows no member
	other.start()
	s.settled(vip, other)
	changes = other.metric("owner_changes_total", "")
	repeat("unknown")
	if n := other.metric("owner_changes_total", ""); n != changes {
		t.Errorf("hellos of a gateway that is not known have moved the VIP %v times", n-changes)
	}
	owner.start()
	s.settled(vip)
	changes = other.metric("owner_changes_total", "")
	for _, keys := range []string{key + "\n" + key + "new\n", key + "new\n" + key + "\n", key + "new\n"} {
		path := filepath.Join(s.dir, "key")
		must(t, os.WriteFile(path+".new", []byte(keys), 0o600))
		must(t, os.Rename(path+".new", path))
		must(t, topo.Pause(s.ctx, 2500*time.Millisecond)) // the key file is read once a second
		s.settled(vip)
	}
	if n := other.metric("owner_changes_total", ""); n != changes {
		t.Errorf("the keys moved the VIP %v times", n-changes)
	}
}

// Another host that claims a VIP is counted, shown and contradicted, and no gateway answers for an
// address that it does not own.
func TestLayer2Conflict(t *testing.T) {
	t.Parallel()
	s := newSegment(t, 2, 1)
	vip, vip6 := near(0)
	for _, a := range []netip.Addr{vip, vip6} {
		owner := s.settled(a)
		mac := frame.MAC{2, 0xbe, 0xef, 0, 0, 1}
		var c *packet.Conn
		must(t, s.client.Run(func() error {
			i, err := net.InterfaceByName("eth0")
			if err != nil {
				return err
			}
			c, err = packet.Listen(i, packet.Raw, frame.ARP, nil)
			return err
		}))
		claims := [][]byte{frame.Unsolicited(mac, a)}
		if a.Is4() {
			list := frame.ARPAnnouncements(mac, a)
			claims = list[:]
		}
		for _, b := range claims {
			_, err := c.WriteTo(b, &packet.Addr{HardwareAddr: b[:6]})
			must(t, err)
		}
		must(t, c.Close())
		s.within(5*time.Second, "the conflict to be shown", func() error {
			l, err := owner.line(a)
			if err != nil || !strings.Contains(l.Why, "another host at "+mac.String()) {
				return fmt.Errorf("%+v, %v", l, err)
			}
			return nil
		})
		if owner.metric("conflicts_total", `by="other"`) == 0 {
			t.Error("it is not counted")
		}
	}
	unknown4, unknown6 := netip.MustParseAddr("10.71.0.250"), netip.MustParseAddr("fd71::250")
	for _, a := range []netip.Addr{unknown4, unknown6} {
		stop := s.probe(s.client, a)
		must(t, topo.Pause(s.ctx, 300*time.Millisecond))
		if list := stop(); len(list) > 0 {
			t.Errorf("%v is answered for: %v", a, list)
		}
	}
}

// With the default --hold a packet process that is killed and restarted moves nothing, and a
// suspended announcer gives up its VIPs before it takes them back.
func TestLayer2Stays(t *testing.T) {
	onlyFull(t)
	s := newSegment(t, 2, 1)
	vip, _ := near(0)
	owner := s.settled(vip)
	must(t, owner.ours.Kill())
	owner.start("--hold", "10s")
	if again := s.settled(vip); again != owner {
		t.Fatalf("it is with %s, and was with %s", again.name, owner.name)
	}
	other := s.gateways[0]
	if owner == other {
		other = s.gateways[1]
	}
	changes := other.metric("owner_changes_total", "")
	must(t, owner.gate.Kill())
	must(t, topo.Pause(s.ctx, time.Second))
	must(t, owner.gate.Start(s.ctx))
	must(t, s.connect(vip, machine.Slower(5*time.Second)))
	if n := other.metric("owner_changes_total", "") - changes; n != 0 {
		t.Errorf("the VIP moved %v times while the packet process was started again", n)
	}
	must(t, syscall.Kill(owner.ours.PID(), syscall.SIGSTOP))
	s.settled(vip, other)
	stop := s.probe(s.client, vip)
	must(t, syscall.Kill(owner.ours.PID(), syscall.SIGCONT))
	resumed := time.Now()
	must(t, topo.Pause(s.ctx, time.Second))
	var last time.Duration
	for _, a := range stop() {
		if a.mac == owner.mac() {
			last = a.at.Sub(resumed)
		}
	}
	report(t, "who stood still answered for", time.Second, []time.Duration{last})
	s.settled(vip)
}

// An announcer that is ended and restarted moves no VIP while its gateway continues to forward:
// another gateway answers with its hardware address. So no open connection breaks and no new one
// fails, even from a host that must resolve the VIP, and even if the gateway's next process takes
// over meanwhile, as in a rollout of both. An announcer that does not return loses its VIPs.
func TestLayer2Restart(t *testing.T) {
	t.Parallel()
	s := newSegment(t, 3, 1, "--hold", "10s")
	s.patience = 900 * time.Millisecond // no SYN may be lost, but the machine may be busy
	families(t, func(t *testing.T, vip netip.Addr) {
		if !vip.Is4() {
			onlyFull(t)
		}
		owner := s.settled(vip)
		other := s.gateways[0]
		if owner == other {
			other = s.gateways[1]
		}
		flows, err := s.client.OpenTCP(s.ctx, topo.FlowLoad{Targets: []netip.AddrPort{netip.AddrPortFrom(vip, port)},
			Flows: 20, Interval: 20 * time.Millisecond})
		must(t, err)
		defer flows.Stop()
		changes, questions := other.metric("owner_changes_total", ""), 0
		for i := range runs() {
			stop, both := s.probe(s.client, vip), i%2 == 0
			var back time.Duration
			failed := s.stream(vip, 3*time.Second, func() error {
				if both {
					must(t, owner.gate.LaunchNext())
				}
				must(t, owner.ours.Stop())
				must(t, s.forget(vip))
				ended := time.Now()
				owner.start()
				s.within(10*time.Second, "it to return", func() error {
					l, err := owner.line(vip)
					if err != nil || l.State != view.Announced {
						return fmt.Errorf("%+v, %v", l, err)
					}
					return nil
				})
				if back = time.Since(ended); both {
					return owner.gate.TakenOver(s.ctx)
				}
				return nil
			})
			for _, a := range stop() {
				if questions++; a.mac != owner.mac() {
					t.Errorf("%v is said to be at %v, and %s is at %v", vip, a.mac, owner.name, owner.mac())
				}
			}
			if failed > 0 {
				t.Errorf("new connections failed for %v", failed)
			}
			t.Logf("it has the VIP again %v after it ended; gateway and announcer: %v", back, both)
		}
		r := flows.Stop()
		if n := other.metric("owner_changes_total", "") - changes; n != 0 || flows.Broken() > 0 || questions == 0 {
			t.Errorf("the VIP moved %v times, %d of 20 connections broke, %d questions were answered", n,
				flows.Broken(), questions)
		}
		t.Logf("%d restarts: %d requests over 20 connections, %d broken; %d answers who has the VIP, all with the "+
			"owner's address", runs(), r.Requests, flows.Broken(), questions)
		must(t, owner.ours.Stop())
		took := s.within(10*time.Second, "others to have it", func() error {
			l, err := other.line(vip)
			if err != nil || strings.Contains(l.With, owner.name) {
				return fmt.Errorf("%+v, %v", l, err)
			}
			return nil
		})
		t.Logf("it did not return: the VIP moved after %v", took)
		owner.start()
		s.settled(vip)
	})
}

// When a whole node shuts down, announcer and packet process get their signals at the same time,
// and the latter leaves its flows to a next process that does not come (drain.handOver). The others
// take its VIPs at once, and do not keep them for an announcer that returns.
func TestLayer2NodeEnds(t *testing.T) {
	onlyFull(t)
	s := newSegmentOf(t, 2, 2, 1, "drain: {timeout: 100ms, handOver: true}\n", "--hold", "10s")
	vip, _ := near(0)
	var took []time.Duration
	for range runs() {
		owner := s.settled(vip)
		must(t, s.connect(vip, machine.Slower(5*time.Second)))
		took = append(took, s.stream(vip, 2*time.Second, func() error {
			var ended sync.WaitGroup
			var gate error
			ended.Go(func() { gate = owner.gate.Stop() })
			err := owner.ours.Stop()
			ended.Wait()
			return errors.Join(err, gate)
		}))
		must(t, owner.gate.Start(s.ctx))
		owner.start()
		if back := s.settled(vip); back != owner {
			t.Errorf("it came back to %s and not to %s", back.name, owner.name)
		}
	}
	report(t, "the node ends, with drain.handOver", 500*time.Millisecond, took)
}

// forget removes a VIP from the client's neighbour table.
func (s *segment) forget(vip netip.Addr) error {
	return s.client.Run(func() error {
		l, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return netlink.NeighDel(&netlink.Neigh{LinkIndex: l.Attrs().Index, IP: vip.AsSlice()})
	})
}

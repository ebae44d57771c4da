//go:build root

package announce

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/mdlayher/packet"
	"github.com/vishvananda/netlink"
	"golang.org/x/time/rate"

	"sluice.dev/sluice/announce/layer2/frame"
	"sluice.dev/sluice/announce/view"
	"sluice.dev/sluice/test/bed/launch"
	"sluice.dev/sluice/test/bed/machine"
	"sluice.dev/sluice/test/bed/topo"
)

const manyObjects = `
apiVersion: sluice.dev/v1alpha1
kind: AddressPool
metadata: {name: many}
spec: {addresses: [198.18.0.0/20, "fd71::1000-fd71::1fff"]}
---
apiVersion: sluice.dev/v1alpha1
kind: L2Advertisement
metadata: {name: many}
spec: {interfaces: [eth0]}
`

// many is the number of VIPs, half of them IPv6: by default a kernel stores at most 1,024
// neighbours per family.
const many = 1000

// withMany returns a segment whose gateways have many VIPs that are in the hosts' neighbour tables.
func withMany(t *testing.T) (s *segment, vips []netip.Addr) {
	t.Helper()
	s = newSegment(t, 3, 0, "--hold", "10s") // a short silence of a gateway moves no VIP
	a4, a6 := netip.MustParseAddr("198.18.0.1"), netip.MustParseAddr("fd71::1001")
	b := s.Backends[0]
	var services []launch.Service
	for i := range many / 2 {
		vips = append(vips, a4, a6)
		if i%50 == 0 {
			services = append(services, launch.Service{Name: fmt.Sprint("many", i), Port: port,
				Endpoints: []launch.Endpoint{{Addr: b.Addr4(), Port: port, Node: "other"},
					{Addr: b.Addr6(), Port: port, Node: "other"}}})
		}
		w := &services[len(services)-1]
		w.VIPs = append(w.VIPs, a4.String(), a6.String())
		a4, a6 = a4.Next(), a6.Next()
	}
	for _, m := range s.gateways {
		must(t, m.gate.Apply(services...))
	}
	path := filepath.Join(s.dir, "objects.yaml")
	must(t, os.WriteFile(path+".new", []byte(manyObjects), 0o600))
	must(t, os.Rename(path+".new", path))
	must(t, s.client.Run(func() error {
		l, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		_, here, err := net.ParseCIDR("198.18.0.0/20")
		if err != nil {
			return err
		}
		return netlink.RouteReplace(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: here, Scope: netlink.SCOPE_LINK})
	}))
	return s, vips
}

// owners waits until the members agree about all VIPs, and returns the owners.
func (s *segment) owners(vips []netip.Addr, alive ...*member) (of map[netip.Addr]*member) {
	s.t.Helper()
	s.within(time.Minute, "all VIPs to have an owner", func() error {
		of = map[netip.Addr]*member{}
		for _, m := range alive {
			v, err := m.ask()
			if err != nil {
				return err
			}
			for i := range v.VIPs {
				for _, l := range v.VIPs[i].To {
					if l.State != view.Announced {
						continue
					}
					if other := of[v.VIPs[i].Address]; other != nil {
						return fmt.Errorf("%s and %s have %v", other.name, m.name, v.VIPs[i].Address)
					}
					of[v.VIPs[i].Address] = m
				}
			}
			up := 0
			for _, p := range v.Peers {
				if p.State == "alive" { // and no longer joining
					up++
				}
			}
			if up != len(alive)-1 {
				return fmt.Errorf("%s: %d others are alive", m.name, up)
			}
		}
		if len(of) != len(vips) {
			return fmt.Errorf("%d of %d VIPs have an owner", len(of), len(vips))
		}
		return nil
	})
	return of
}

// sighting is an answer: the hardware address of a VIP.
type sighting struct {
	vip netip.Addr
	mac frame.MAC
}

// sweep requests one VIP after another, 3,000 a second in all, until stop is called. stop returns
// the last time of each answer.
func (s *segment) sweep(vips []netip.Addr) (stop func() map[sighting]time.Time) {
	s.t.Helper()
	h := s.client
	sockets := map[bool]*packet.Conn{true: s.questions(h, true), false: s.questions(h, false)}
	var mu sync.Mutex
	seen := map[sighting]time.Time{}
	var running sync.WaitGroup
	for is4, c := range sockets {
		running.Go(func() {
			eachClaim(c, h, is4, func(p *frame.Packet) {
				mu.Lock()
				defer mu.Unlock()
				seen[sighting{p.Claims, p.FromMAC}] = time.Now()
			})
		})
	}
	ended := make(chan struct{})
	running.Go(func() {
		pace := rate.NewLimiter(3000, 30)
		for {
			for _, vip := range vips {
				select {
				case <-ended:
					for _, c := range sockets {
						c.Close()
					}
					return
				default:
				}
				if pace.Wait(s.ctx) == nil {
					ask(sockets[vip.Is4()], h, vip)
				}
			}
		}
	})
	return func() map[sighting]time.Time {
		close(ended)
		running.Wait()
		return seen
	}
}

// Of 1,000 VIPs on three gateways each gateway has its share, and all answer. VIPs of a lost
// gateway are answered by the others. After a partition has ended, no VIP is answered by two
// gateways.
func TestLayer2Many(t *testing.T) {
	onlyFull(t)
	begin := time.Now()
	s, vips := withMany(t)
	of := s.owners(vips, s.gateways...)
	share := map[string]int{}
	for _, m := range of {
		share[m.name]++
	}
	t.Logf("%d VIPs: %v, %v after the first process was started", len(vips), share, time.Since(begin))
	all := func(when string) {
		t.Helper()
		var targets []netip.AddrPort
		for _, vip := range vips {
			targets = append(targets, netip.AddrPortFrom(vip, port))
		}
		r, err := s.client.HTTP(s.ctx, topo.HTTPLoad{Targets: targets, Requests: len(targets), Concurrency: 8})
		must(t, err)
		if r.Failed() > 0 || r.Requests != int64(len(targets)) {
			t.Errorf("%s: %d of %d requests failed: %v", when, r.Failed(), r.Requests, r.Errors)
		}
	}
	all("at first")

	lost, rest := s.gateways[2], s.gateways[:2]
	at, err := s.places()
	must(t, err)
	known := 0
	for _, vip := range vips {
		if at[vip] == lost.mac() {
			known++
		}
	}
	must(t, lost.ours.Kill())
	took := s.within(10*time.Second, "the client to know the others", func() error {
		now, err := s.places()
		if err != nil {
			return err
		}
		for _, vip := range vips {
			if now[vip] == lost.mac() {
				return fmt.Errorf("%v is at %v", vip, now[vip])
			}
		}
		return nil
	})
	t.Logf("a gateway with %d VIPs was lost, of which the client knew %d: %v later it had the new address of each",
		share[lost.name], known, took)
	must(t, lost.gate.Kill())
	s.owners(vips, rest...)
	all("one is lost")
	lost.start()
	must(t, lost.gate.Start(s.ctx))
	if again := s.owners(vips, s.gateways...); len(again) != len(of) {
		t.Errorf("%d of %d VIPs have an owner", len(again), len(of))
	}
	all("it is back")

	heal, err := s.Isolate(lost.Host)
	must(t, err)
	s.within(10*time.Second, "both sides to have all", func() error {
		for _, m := range []*member{lost, rest[0]} {
			v, err := m.ask()
			if err != nil {
				return err
			}
			for _, p := range v.Peers {
				if (p.Name == "eth0/"+lost.name || m == lost) && p.Up {
					return fmt.Errorf("%s: %+v", m.name, p)
				}
			}
		}
		return nil
	})
	must(t, topo.Pause(s.ctx, time.Second))
	stop := s.sweep(vips)
	must(t, heal())
	whole := time.Now()
	must(t, topo.Pause(s.ctx, machine.Slower(3*time.Second)))
	var last time.Duration
	twice := 0
	for what, at := range stop() {
		if m := of[what.vip]; m != nil && what.mac != m.mac() && at.After(whole) {
			twice++
			last = max(last, at.Sub(whole))
		}
	}
	t.Logf("after the partition healed %d answers came from a gateway that does not have the VIP; each VIP is asked "+
		"for every 330 ms", twice)
	report(t, "two gateways answered after the link was whole", time.Second, []time.Duration{last})
	all("the link is whole")
}

// places returns the hardware addresses in the client's neighbour table.
func (s *segment) places() (at map[netip.Addr]frame.MAC, err error) {
	at = map[netip.Addr]frame.MAC{}
	err = s.client.Run(func() error {
		list, err := netlink.NeighList(0, netlink.FAMILY_ALL)
		for i := range list {
			if a, ok := netip.AddrFromSlice(list[i].IP); ok && len(list[i].HardwareAddr) == len(frame.MAC{}) {
				at[a.Unmap()] = frame.MAC(list[i].HardwareAddr)
			}
		}
		return err
	})
	return at, err
}

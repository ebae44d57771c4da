//go:build root

package announce

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mdlayher/packet"
	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/announce/layer2/frame"
	"sluice.dev/sluice/announce/view"
	"sluice.dev/sluice/test/bed/launch"
	"sluice.dev/sluice/test/bed/machine"
	"sluice.dev/sluice/test/bed/topo"
)

// The VIPs of layer 2 are in the segment's network, so that hosts resolve them.
const (
	near4, near6 = "10.71.0.200", "fd71::200"
	key          = "0123456789abcdef0123456789abcdef"
)

// segment is a link with gateways, a client and a backend on it.
type segment struct {
	*topo.Net
	t        *testing.T
	ctx      context.Context
	dir      string
	flags    []string      // of announcers
	options  string        // of gateways
	patience time.Duration // of each connection of stream
	gateways []*member
	client   *topo.Host
}

// member is a gateway with its announcer.
type member struct {
	*topo.Host
	s    *segment
	name string
	gate *launch.Gateway
	ours *launch.Announcer
}

const nearObjects = `
apiVersion: sluice.dev/v1alpha1
kind: AddressPool
metadata: {name: near}
spec: {addresses: [10.71.0.192-10.71.0.254, "fd71::200-fd71::2ff"]}
---
apiVersion: sluice.dev/v1alpha1
kind: L2Advertisement
metadata: {name: near}
`

// newSegment starts gateways with VIPs from 10.71.0.200 and fd71::200 on.
func newSegment(t *testing.T, gateways, vips int, flags ...string) *segment {
	t.Helper()
	return newSegmentOf(t, gateways, gateways, vips, "", flags...)
}

// newSegmentOf is newSegment with more of the gateways' configuration, in which MEMBER is the
// gateway's name, and with hosts for more gateways.
func newSegmentOf(t *testing.T, gateways, hosts, vips int, options string, flags ...string) *segment {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), machine.Slower(15*time.Minute))
	t.Cleanup(cancel)
	go latenessOf(t).Watch(ctx)
	n, err := topo.New(topo.Config{OneArmed: true, Clients: hosts})
	must(t, err)
	dir, err := os.MkdirTemp("", "sluice-layer2-")
	must(t, err)
	s := &segment{Net: n, t: t, ctx: ctx, dir: dir, flags: flags, options: options,
		patience: 250 * time.Millisecond, client: n.Clients[0]}
	t.Cleanup(s.close)
	_, err = n.Backends[0].Serve(port)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "key"), []byte(key+"\n"), 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "objects.yaml"), []byte(nearObjects), 0o600))
	for range gateways {
		s.addNext(vips)
	}
	return s
}

// addNext starts the next gateway.
func (s *segment) addNext(vips int) {
	s.t.Helper()
	i := len(s.gateways)
	h := s.Net.Gateway
	if i > 0 {
		h = s.Clients[i]
	}
	s.add(h, fmt.Sprintf("gateway-%d", i), vips)
}

// add starts a gateway and its announcer on a host.
func (s *segment) add(h *topo.Host, name string, vips int) {
	s.t.Helper()
	m := &member{Host: h, s: s, name: name}
	s.gateways = append(s.gateways, m)
	dir := filepath.Join(s.dir, name)
	must(s.t, os.Mkdir(dir, 0o700))
	must(s.t, h.SetSysctl("net.ipv4.ip_local_port_range", "32768 60999")) // SNAT ports are outside of it
	var err error
	m.gate, err = launch.New(launch.Config{Sluice: gateway, Host: h, NodeName: name,
		Options: "flows: {ipv4: 65536, ipv6: 65536}\ntuning: {affinityClients: 4096}\n" +
			strings.ReplaceAll(s.options, "MEMBER", name)})
	must(s.t, err)
	for i := range vips {
		must(s.t, m.gate.Apply(s.service(i, false)))
	}
	must(s.t, m.gate.Start(s.ctx))
	m.ours = &launch.Announcer{Path: announcer, Host: h, Gateway: m.gate, Node: name, Dir: dir}
	m.start()
}

// near returns the addresses of a Service.
func near(i int) (a4, a6 netip.Addr) {
	a4, a6 = netip.MustParseAddr(near4), netip.MustParseAddr(near6)
	for range i {
		a4, a6 = a4.Next(), a6.Next()
	}
	return a4, a6
}

func (s *segment) service(i int, local bool) launch.Service {
	a4, a6 := near(i)
	w := launch.Service{Name: "web" + strconv.Itoa(i), Port: port, VIPs: []string{a4.String(), a6.String()},
		Local: local}
	b := s.Backends[0]
	for _, a := range []netip.Addr{b.Addr4(), b.Addr6()} {
		w.Endpoints = append(w.Endpoints, launch.Endpoint{Addr: a, Port: port, Node: "other"})
	}
	return w
}

// start starts the announcer.
func (m *member) start(flags ...string) {
	m.s.t.Helper()
	m.ours.Args = slices.Concat([]string{"--config", filepath.Join(m.s.dir, "objects.yaml"),
		"--layer2-key", filepath.Join(m.s.dir, "key"), "--listen", "127.0.0.1:9472", "--hold", "0s"}, m.s.flags, flags)
	must(m.s.t, m.ours.Start())
}

func (m *member) mac() frame.MAC { return m.Interfaces[0].MAC }

func (m *member) ask() (*view.View, error) { return m.ours.Ask(m.s.ctx) }

// line returns a member's line about a VIP.
func (m *member) line(vip netip.Addr) (view.Line, error) {
	v, err := m.ask()
	if err != nil {
		return view.Line{}, err
	}
	for i := range v.VIPs {
		for _, l := range v.VIPs[i].To {
			if v.VIPs[i].Address == vip && l.Speaker == view.Layer2 {
				return l, nil
			}
		}
	}
	return view.Line{}, fmt.Errorf("%s does not know %v: %+v", m.name, vip, v)
}

// metric returns the sum of a member's counter over all labels that contain a text.
func (m *member) metric(name, label string) (sum float64) {
	t := m.s.t
	t.Helper()
	_, text, err := m.Get(m.s.ctx, "http://127.0.0.1:9472/metrics")
	must(t, err)
	found := false
	for line := range strings.Lines(text) {
		if rest, there := strings.CutPrefix(line, "sluice_announcer_layer2_"+name+"{"); there &&
			strings.Contains(rest, label) {
			_, value, _ := strings.Cut(rest, "} ")
			x, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			must(t, err)
			sum, found = sum+x, true
		}
	}
	if !found {
		t.Fatalf("%s has no metric %s with %s", m.name, name, label)
	}
	return sum
}

func (s *segment) close() {
	for _, m := range s.gateways {
		if s.t.Failed() {
			s.t.Logf("%s, %v:\n%s", m.name, m.mac(), m.ours.Log())
			if v, err := m.ask(); err == nil {
				var b bytes.Buffer
				_ = view.Print(&b, v)
				s.t.Logf("status:\n%s", b.String())
			}
		}
		if m.ours != nil {
			check(s.t, m.ours.Stop())
		}
		if m.gate != nil {
			if m.gate.Running() {
				check(s.t, m.gate.Stop())
			}
			check(s.t, m.gate.Close())
		}
	}
	check(s.t, s.Net.Close())
	check(s.t, os.RemoveAll(s.dir))
}

// within waits until a condition holds, and returns how long that took.
func (s *segment) within(most time.Duration, what string, is func() error) time.Duration {
	s.t.Helper()
	begin := time.Now()
	err := topo.Until(s.ctx, machine.Slower(most), 2*time.Millisecond, func(context.Context) error { return is() })
	if err != nil {
		s.t.Fatalf("%s: not within %v: %v", what, most, err)
	}
	return time.Since(begin)
}

// settled waits until all members agree about the owner of each VIP, and returns the owner of the
// first. On a busy machine a gateway can lose a neighbour, and be impaired, during any failure: the
// third impairment lasts 40 s, the fourth 80 s, later ones up to 5 minutes (docs/adr/0035).
func (s *segment) settled(vip netip.Addr, alive ...*member) (owner *member) {
	s.t.Helper()
	if alive == nil {
		alive = s.gateways
	}
	s.within(6*time.Minute, fmt.Sprintf("%v to have an owner", vip), func() error {
		owner = nil
		for _, m := range alive {
			l, err := m.line(vip)
			switch {
			case err != nil:
				return err
			case l.State == view.Announced && owner != nil:
				return fmt.Errorf("%s and %s have it", owner.name, m.name)
			case l.State == view.Announced:
				owner = m
			case l.State != view.Standby:
				return fmt.Errorf("%s: %+v", m.name, l)
			}
			if strings.Contains(l.Why, "joins") || len(alive) > 1 && strings.Count(l.With, "gateway-") < len(alive)+1 {
				return fmt.Errorf("%s: %+v", m.name, l)
			}
		}
		if owner == nil {
			return fmt.Errorf("nobody has it")
		}
		return nil
	})
	return owner
}

// connect opens a connection of the client to a VIP, and requests a page.
func (s *segment) connect(vip netip.Addr, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(s.ctx, timeout)
	defer cancel()
	_, _, err := s.client.Get(ctx, "http://"+netip.AddrPortFrom(vip, port).String()+"/")
	return err
}

// interval is how often stream opens a connection.
const interval = 20 * time.Millisecond

// stream opens a connection to a VIP every interval, for a while before and after a failure, and
// returns the time from the first failed one to the first one after which all work; zero: all
// worked. Each may take less than a second, after which its SYN would be sent again.
func (s *segment) stream(vip netip.Addr, after time.Duration, fail func() error) (out time.Duration) {
	s.t.Helper()
	type attempt struct {
		at  time.Time
		err error
	}
	var mu sync.Mutex
	var all []attempt
	var running sync.WaitGroup
	stop := make(chan struct{})
	running.Go(func() {
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case at := <-tick.C:
				running.Go(func() {
					err := s.connect(vip, machine.Slower(s.patience))
					mu.Lock()
					defer mu.Unlock()
					all = append(all, attempt{at, err})
				})
			}
		}
	})
	must(s.t, topo.Pause(s.ctx, 300*time.Millisecond))
	must(s.t, fail())
	must(s.t, topo.Pause(s.ctx, after))
	close(stop)
	running.Wait()
	slices.SortFunc(all, func(a, b attempt) int { return a.at.Compare(b.at) })
	first := -1
	for i, a := range all {
		if a.err == nil {
			continue
		}
		if first < 0 {
			first = i
		}
		if i == len(all)-1 {
			s.t.Fatalf("connections to %v do not work %v after: %v", vip, after, a.err)
		}
		out = all[i+1].at.Sub(all[first].at)
	}
	return out
}

// answer is an answer to a request of the prober.
type answer struct {
	at  time.Time
	mac frame.MAC
}

// questions opens a host's socket for ARP requests and replies or, without is4, for neighbour
// discovery.
func (s *segment) questions(h *topo.Host, is4 bool) (c *packet.Conn) {
	s.t.Helper()
	must(s.t, h.Run(func() error {
		i, err := net.InterfaceByName(h.Interfaces[0].Name)
		if err != nil {
			return err
		}
		kind := frame.IPv6
		if is4 {
			kind = frame.ARP
		}
		c, err = packet.Listen(i, packet.Raw, kind, nil)
		return err
	}))
	return c
}

// ask sends a host's request for the hardware address of a VIP.
func ask(c *packet.Conn, h *topo.Host, vip netip.Addr) {
	mac := frame.MAC(h.Interfaces[0].MAC)
	question := frame.Solicitation(mac, h.Addr6(), vip)
	if vip.Is4() {
		question = frame.ARPRequest(mac, h.Addr4(), vip)
	}
	_, _ = c.WriteTo(question, &packet.Addr{HardwareAddr: question[:6]})
}

// eachClaim calls f for each claim of an address, until the socket is closed.
func eachClaim(c *packet.Conn, h *topo.Host, is4 bool, f func(*frame.Packet)) {
	read := frame.ReadNDP
	if is4 {
		read = frame.ReadARP
	}
	b := make([]byte, 2048)
	for {
		n, _, err := c.ReadFrom(b)
		if err != nil {
			return
		}
		if p, ok := read(b[:n]); ok && p.Claims.IsValid() && p.FromMAC != frame.MAC(h.Interfaces[0].MAC) {
			f(&p)
		}
	}
}

// probe requests a VIP's address on a host's link every 20 ms, like a host that does not know it,
// until stop is called. stop returns which member answered when.
func (s *segment) probe(h *topo.Host, vip netip.Addr) (stop func() []answer) {
	s.t.Helper()
	c := s.questions(h, vip.Is4())
	var running sync.WaitGroup
	ended := make(chan struct{})
	running.Go(func() {
		for {
			ask(c, h, vip)
			select {
			case <-ended:
				c.Close()
				return
			case <-time.After(interval):
			}
		}
	})
	var list []answer
	running.Go(func() {
		eachClaim(c, h, vip.Is4(), func(p *frame.Packet) {
			if p.Claims == vip {
				list = append(list, answer{time.Now(), p.FromMAC})
			}
		})
	})
	return func() []answer {
		close(ended)
		running.Wait()
		return list
	}
}

// knows returns the VIP's hardware address in the client's neighbour table.
func (s *segment) knows(vip netip.Addr) (mac frame.MAC, err error) {
	err = s.client.Run(func() error {
		list, err := netlink.NeighList(0, map[bool]int{true: netlink.FAMILY_V4, false: netlink.FAMILY_V6}[vip.Is4()])
		for _, n := range list {
			if n.IP.Equal(vip.AsSlice()) && len(n.HardwareAddr) == len(mac) {
				mac = frame.MAC(n.HardwareAddr)
			}
		}
		return err
	})
	return mac, err
}

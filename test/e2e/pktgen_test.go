//go:build root

package e2e

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/test/bed/launch"
	"sluice.dev/sluice/test/bed/machine"
	"sluice.dev/sluice/test/bed/topo"
)

// What bench/pktgen sends to and from, as its README has it.
const (
	pktgenVIP4, pktgenVIP6 = "10.83.0.1", "fd00:83::1"
	pktgenNet4, pktgenNet6 = "10.81.0.0/24", "fd00:81::/64"
	pktgenPort             = 5000
)

// TestPktgen: bench/pktgen/pktgen.sh, with the kernel's generator, by the steps of its README. All
// that it says it sent is somewhere: a backend's kernel took it for a good datagram, or a wire had
// no room for it and counted that.
func TestPktgen(t *testing.T) {
	machine.Need(t, machine.Pktgen)
	type load struct {
		name      string
		arguments []string
	}
	for _, c := range []struct {
		name   string
		config topo.Config
		loads  []load
	}{
		{"one queue", topo.Config{Backends: 2}, []load{
			{"udp", []string{"--load", "udp", "--flows", "1000"}},
			{"imix", []string{"--load", "imix", "--flows", "1000"}},
			{"udp6", []string{"--load", "udp6", "--flows", "1000"}},
		}},
		{"two queues", topo.Config{Backends: 2, Queues: 2},
			[]load{{"two threads, many flows", []string{"--threads", "2", "--flows", "200000"}}}},
		{"tagged", topo.Config{Backends: 2, FrontVLANs: []uint16{5}},
			[]load{{"udp", []string{"--vlan", "5", "--flows", "1000"}}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if len(c.config.FrontVLANs) > 0 {
				machine.Need(t, machine.VLAN)
			}
			l := newLab(t, labConfig{small: true, Config: c.config, prepare: (*lab).wayBack})
			s := launch.Service{Name: "pktgen", UDP: true, Port: pktgenPort, VIPs: []string{pktgenVIP4, pktgenVIP6}}
			for _, h := range l.Backends {
				s.Endpoints = append(s.Endpoints, l.sink(h, h.Addr4()), l.sink(h, h.Addr6()))
			}
			l.apply(s)
			l.applied()
			for _, load := range c.loads {
				l.generate(load.name, append([]string{"--rate", "1000", "--seconds", "5"}, load.arguments...))
			}
		})
	}
}

// sink is an endpoint that takes datagrams and answers none: the generator's addresses are
// nobody's.
func (l *lab) sink(h *topo.Host, at netip.Addr) launch.Endpoint {
	l.t.Helper()
	c, err := h.ListenPacket("udp", netip.AddrPortFrom(at, pktgenPort).String())
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { c.Close() })
	go func() {
		for b := make([]byte, 2048); ; {
			if _, _, err := c.ReadFrom(b); err != nil { // closed
				return
			}
		}
	}()
	return launch.Endpoint{Addr: at, Port: pktgenPort, Node: h.Name}
}

// generate runs the script and holds what arrived to what it says it sent.
func (l *lab) generate(name string, arguments []string) {
	l.t.Helper()
	before := l.pktgenSeen()
	sent, text := l.pktgen(arguments...)
	l.t.Logf("%s: pktgen.sh printed:\n%s", name, text)
	if sent < 100 {
		l.t.Fatalf("%s: %d packets were sent", name, sent)
	}
	var seen pktgenCounts
	var arrived, lost uint64
	end := time.Now().Add(machine.Slower(5 * time.Second))
	for ; time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		seen = l.pktgenSeen()
		if arrived, lost = seen.datagrams-before.datagrams, seen.lost-before.lost; arrived+lost >= sent {
			break
		}
	}
	l.t.Logf("%s: sent %d; wires lost %d for want of room; the gateway received %d and dropped %v; %d good datagrams "+
		"reached backends; %d flows",
		name, sent, lost, seen.received-before.received, seen.drops, arrived, seen.flows)
	if arrived+lost != sent || lost > sent/10 {
		l.t.Errorf("%s: of %d sent %d arrived and %d were lost on wires", name, sent, arrived, lost)
	}
}

// wayBack has the gateway route what answers the generator to the client that it runs on, where it
// ends.
func (l *lab) wayBack() {
	client := l.Clients[0]
	gateway := l.Gateway.Interfaces[0]
	device := gateway.Name
	if gateway.VLAN != "" {
		device = gateway.VLAN
	}
	l.onLink(device, func(link netlink.Link) error {
		for prefix, via := range map[string]net.IP{
			pktgenNet4: client.Addr4().AsSlice(), pktgenNet6: client.Addr6().AsSlice(),
		} {
			_, dst, err := net.ParseCIDR(prefix)
			if err != nil {
				return err
			}
			if err := netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: dst, Gw: via}); err != nil {
				return fmt.Errorf("route to %s: %w", prefix, err)
			}
		}
		return nil
	})
}

// pktgen runs the script on the client and returns how many packets it says the threads sent.
func (l *lab) pktgen(arguments ...string) (sent uint64, text string) {
	l.t.Helper()
	script, err := filepath.Abs("../../bench/pktgen/pktgen.sh")
	if err != nil {
		l.t.Fatal(err)
	}
	mac := l.Gateway.Interfaces[0].MAC
	var out bytes.Buffer
	p, err := l.Clients[0].Start(topo.Command{
		Path: "/bin/bash", Args: append([]string{script, "--device", "eth0", "--mac",
			net.HardwareAddr(mac[:]).String()}, arguments...),
		Stdout: &out, Stderr: &out,
	})
	if err != nil {
		l.t.Fatal(err)
	}
	select {
	case <-p.Done():
	case <-time.After(machine.Slower(30 * time.Second)):
		l.t.Fatalf("pktgen.sh still runs: %v\n%s", p.Stop(time.Second), out.String())
	}
	if err := p.Err(); err != nil {
		l.t.Fatalf("pktgen.sh: %v\n%s", err, out.String())
	}
	// "Result: OK: 5000123(c123456+d4876667) usec, 4999 (60byte,0frags)", a line for each thread
	// (pktgen_stop_device and show_results, net/core/pktgen.c).
	for _, m := range regexp.MustCompile(`(?m)^Result: OK: .* usec, (\d+) \(`).FindAllStringSubmatch(out.String(), -1) {
		n, err := strconv.ParseUint(m[1], 10, 64)
		if err != nil {
			l.t.Fatal(err)
		}
		sent += n
	}
	if !strings.Contains(out.String(), "sum: ") {
		l.t.Error("pktgen.sh printed no sum")
	}
	return sent, strings.TrimSpace(out.String())
}

// pktgenCounts is what became of the generator's packets.
type pktgenCounts struct {
	received  uint64 // by the gateway
	datagrams uint64 // by backends' kernels, good ones; for some the socket may have had no room
	lost      uint64 // on the way to the gateway and from it, because a ring was full
	drops     map[string]uint64
	flows     uint64
}

func (l *lab) pktgenSeen() (c pktgenCounts) {
	l.t.Helper()
	s, err := l.gate.Client.Stats(l.ctx)
	if err != nil {
		l.t.Fatal(err)
	}
	c.received = sum(&s, func(w *status.WorkerView) uint64 { return w.Rx })
	c.drops = drops(&s)
	if c.lost, err = l.Dropped(); err != nil {
		l.t.Fatal(err)
	}
	for _, n := range l.flowsByProtocol("UDP") {
		c.flows += uint64(n)
	}
	for _, h := range l.Backends {
		now, err := h.Counters()
		if err != nil {
			l.t.Fatal(err)
		}
		for _, name := range [...]string{"UdpInDatagrams", "Udp6InDatagrams", "UdpRcvbufErrors", "Udp6RcvbufErrors"} {
			c.datagrams += now[name]
		}
	}
	return c
}

//go:build root

package topo

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"sluice.dev/sluice/host/nic/ethtool"
)

const testPort = 8080

// build makes a network whose gateways forward with their kernels: no Sluice.
func build(t *testing.T, c Config) *Net {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("needs root: network namespaces")
	}
	n, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		if left, err := n.Leftovers(); err != nil || len(left) != 0 {
			t.Errorf("left over: %v %v", left, err)
		}
	})
	for _, g := range n.Gateways {
		if err := g.Forward(true); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// serve starts a server on every backend and returns their addresses.
func serve(t *testing.T, n *Net) (targets []netip.AddrPort) {
	t.Helper()
	for _, b := range n.Backends {
		if _, err := b.Serve(testPort); err != nil {
			t.Fatal(err)
		}
		targets = append(targets, netip.AddrPortFrom(b.Addr4(), testPort), netip.AddrPortFrom(b.Addr6(), testPort))
	}
	return targets
}

func TestHTTPThroughKernelGateway(t *testing.T) {
	for _, tc := range []struct {
		name string
		c    Config
	}{
		{"two-armed", Config{Clients: 2, Backends: 2, Queues: 2}},
		{"one-armed", Config{Clients: 1, Backends: 2, Queues: 2, OneArmed: true}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := build(t, tc.c)
			targets := serve(t, n)
			before, err := n.Backends[0].Counters()
			if err != nil {
				t.Fatal(err)
			}
			for _, client := range n.Clients {
				r, err := client.HTTP(testContext(t), HTTPLoad{Targets: targets, Requests: 200, Concurrency: 8})
				if err != nil {
					t.Fatal(err)
				}
				if r.Requests != 200 || r.Failed() != 0 {
					t.Fatalf("%s: %v %v", client.Name, r, r.Errors)
				}
				// Targets are taken in turn, so every backend gets its exact share.
				for _, b := range n.Backends {
					if got := r.Shares[b.Name]; got != 100 {
						t.Errorf("%s answered %d of 200", b.Name, got)
					}
				}
				for _, a := range []netip.Addr{client.Addr4(), client.Addr6()} {
					if got := r.Clients[a.String()]; got != 100 {
						t.Errorf("%s was seen as client %d times of 200: %v", a, got, r.Clients)
					}
				}
				if r.Latency.TotalCount() != 200 || r.Latency.Max() > (5*time.Second).Microseconds() {
					t.Errorf("latency: %d values, max %d us", r.Latency.TotalCount(), r.Latency.Max())
				}
			}
			after, err := n.Backends[0].Counters()
			if err != nil {
				t.Fatal(err)
			}
			d := after.Since(before)
			if got := d["TcpPassiveOpens"]; got < 100 {
				t.Errorf("the kernel of %s counted %d connections", n.Backends[0].Name, got)
			}
			if bad := d.Damaged(); len(bad) != 0 {
				t.Errorf("damaged packets: %v", bad)
			}
			if dropped, err := n.Dropped(); err != nil || dropped != 0 {
				t.Errorf("packets that found no room: %d, %v", dropped, err)
			}
		})
	}
}

func TestTransfersCompareSums(t *testing.T) {
	n := build(t, Config{BackendMTU: 1400})
	if err := n.Backends[0].AdvertiseMTU(1500); err != nil {
		t.Fatal(err)
	}
	for _, target := range serve(t, n) {
		const size = 8<<20 + 17
		down, err := n.Clients[0].Download(testContext(t), target, size)
		if err != nil {
			t.Fatal(err)
		}
		up, err := n.Clients[0].Upload(testContext(t), target, size)
		if err != nil {
			t.Fatal(err)
		}
		if down.Sum != up.Sum || len(down.Sum) != 64 || down.Bytes != size || down.Backend != "backend0" {
			t.Errorf("down %+v, up %+v: the same seed must give the same bytes", down, up)
		}
	}
	// The narrow link behind the gateway was found out about: by ICMP, not by luck.
	c, err := n.Clients[0].Counters()
	if err != nil {
		t.Fatal(err)
	}
	if c["IcmpInDestUnreachs"] == 0 || c["Icmp6InPktTooBigs"] == 0 {
		t.Errorf("no path MTU discovery: %d, %d", c["IcmpInDestUnreachs"], c["Icmp6InPktTooBigs"])
	}
}

// A load that has finished has received every answer, so no late packet reaches its kernel.
func TestFinishWaitsForAnswers(t *testing.T) {
	n := build(t, Config{Backends: 2, Queues: 2})
	f, err := n.Clients[0].OpenUDP(testContext(t), FlowLoad{Targets: serve(t, n), Flows: 100,
		Interval: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	waitFor(t, "an answer for each", func() bool {
		return all(f.States(), func(s FlowState) bool { return s.Answers > 0 })
	})
	r := f.Finish()
	c, err := n.Clients[0].Counters()
	if err != nil {
		t.Fatal(err)
	}
	if r.Failed() > 0 || c["UdpNoPorts"]+c["Udp6NoPorts"] > 0 {
		t.Errorf("%v; to closed sockets came %d and %d datagrams", r.Errors, c["UdpNoPorts"], c["Udp6NoPorts"])
	}
}

// A server that dies must show: in TCP flows as broken, in UDP flows as lost.
func TestFlowsReportAServerThatDied(t *testing.T) {
	n := build(t, Config{})
	s, err := n.Backends[0].Serve(testPort)
	if err != nil {
		t.Fatal(err)
	}
	load := FlowLoad{
		Targets: []netip.AddrPort{netip.AddrPortFrom(n.Backends[0].Addr4(), testPort)},
		Flows:   10, Interval: 5 * time.Millisecond, Timeout: 2 * time.Second,
	}
	tcp, err := n.Clients[0].OpenTCP(testContext(t), load)
	if err != nil {
		t.Fatal(err)
	}
	udp, err := n.Clients[0].OpenUDP(testContext(t), load)
	if err != nil {
		t.Fatal(err)
	}
	answered := func(s FlowState) bool { return s.Answers > 0 }
	waitFor(t, "first answers", func() bool {
		return all(tcp.States(), answered) && all(udp.States(), answered)
	})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "all TCP flows broken", func() bool { return tcp.Broken() == 10 })
	waitFor(t, "all UDP flows losing", func() bool {
		return all(udp.States(), func(s FlowState) bool { return s.Lost > 0 })
	})
	if r := tcp.Stop(); r.Failed() != 10 {
		t.Errorf("tcp: %d failed of 10: %v", r.Failed(), r.Errors)
	}
	udp.Stop()
}

func TestOffloadsAreOff(t *testing.T) {
	n := build(t, Config{})
	for _, h := range n.hosts {
		for _, i := range h.Interfaces {
			err := h.Run(func() error {
				on, err := featuresOn(i.Name)
				for _, f := range ethtool.Offloads {
					if slices.Contains(on, f) {
						t.Errorf("%s: %s: %s is on", h.Name, i.Name, f)
					}
				}
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestCloseEndsProcesses(t *testing.T) {
	n := build(t, Config{})
	p, err := n.Gateway.Start(Command{Path: "/bin/sh", Args: []string{"-c", "sleep 600 & wait"}})
	if err != nil {
		t.Fatal(err)
	}
	// execve closes the pipe that Start waits for before the process has its environment.
	if err := Until(t.Context(), 10*time.Second, time.Millisecond, func(context.Context) error {
		if left, err := n.Leftovers(); err != nil || len(left) == 0 {
			return fmt.Errorf("a running process is not found: %v %v", left, err)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.Done():
	default:
		t.Error("it runs on")
	}
}

// The process ignores SIGTERM, and has a child.
func TestStopKillsAfterSIGTERMIsIgnored(t *testing.T) {
	n := build(t, Config{})
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	p, err := n.Gateway.Start(Command{
		Path: "/bin/sh", Args: []string{"-c", "trap '' TERM; echo deaf; while :; do sleep 0.05; done"}, Stdout: w,
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Read(make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	if err := p.Stop(50 * time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if err := p.Err(); err == nil {
		t.Error("it ended well")
	}
}

func TestNamedNamespacesAreRemoved(t *testing.T) {
	n := build(t, Config{Named: true})
	name := n.Clients[0].NetnsName()
	if _, err := os.Stat("/run/netns/" + name); err != nil {
		t.Error(err)
	}
	if left, err := n.Leftovers(); err != nil || len(left) != 4 {
		t.Errorf("wire, gateway, client, backend expected: %v %v", left, err)
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat("/run/netns/" + name); !os.IsNotExist(err) {
		t.Errorf("the name is still there: %v", err)
	}
}

func TestPanicInNamespaceReachesTheCaller(t *testing.T) {
	n := build(t, Config{})
	defer func() {
		if recover() != "boom" {
			t.Error("the panic was lost")
		}
		if err := n.Clients[0].Run(func() error { return nil }); err != nil {
			t.Errorf("afterwards: %v", err)
		}
	}()
	_ = n.Clients[0].Run(func() error { panic("boom") })
}

func TestRunReturnsWhenTheGoroutineEnds(t *testing.T) {
	n := build(t, Config{})
	err := n.Clients[0].Run(func() error {
		func() { t.Skipped(); goexit() }()
		return nil
	})
	if !errors.Is(err, errExited) {
		t.Errorf("got %v", err)
	}
}

func all[T any](s []T, f func(T) bool) bool {
	return !slices.ContainsFunc(s, func(v T) bool { return !f(v) })
}

// waitFor polls, because the event is in another namespace's kernel or another
// goroutine's loop; it fails after ten seconds.
func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("waited in vain for %s", what)
}

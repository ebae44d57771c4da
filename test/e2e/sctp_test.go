//go:build root

package e2e

import (
	"net/netip"
	"testing"
	"time"

	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/test/bed/launch"
	"sluice.dev/sluice/test/bed/machine"
	"sluice.dev/sluice/test/bed/topo"
)

const (
	sctpPort        = 36412
	sctpBackendPort = 8091
	sctpNodePort    = 30091
)

// newSCTPLab is a lab with a Service over SCTP between kernels, beside those of every lab.
func newSCTPLab(t *testing.T, c labConfig) *lab {
	t.Helper()
	machine.Need(t, machine.SCTP)
	l := newLab(t, c)
	s := launch.Service{Name: "sctp", SCTP: true, Port: sctpPort, NodePort: sctpNodePort, VIPs: []string{vip4, vip6}}
	for _, h := range l.Backends {
		if _, err := h.ServeSCTP(sctpBackendPort); err != nil {
			t.Fatal(err)
		}
		s.Endpoints = append(s.Endpoints,
			launch.Endpoint{Addr: h.Addr4(), Port: sctpBackendPort, Node: h.Name},
			launch.Endpoint{Addr: h.Addr6(), Port: sctpBackendPort, Node: h.Name})
	}
	l.apply(s)
	l.applied()
	return l
}

var sctpTargets = []netip.AddrPort{at(vip4, sctpPort), at(vip6, sctpPort)}

// flowsByProtocol counts the gateway's flows of a protocol by state.
func (l *lab) flowsByProtocol(protocol string) map[string]int {
	l.t.Helper()
	n := map[string]int{}
	err := l.gate.Client.Flows(l.ctx, status.FlowFilter{Protocol: protocol}, func(f *status.FlowView) error {
		n[f.State]++
		return nil
	})
	if err != nil {
		l.t.Fatal(err)
	}
	return n
}

// TestSCTPAssociations: associations of real endpoints through VIPs and node ports, both families,
// which ask again and again and end by the book.
func TestSCTPAssociations(t *testing.T) {
	const open = 200
	l := newSCTPLab(t, labConfig{small: true, Config: topo.Config{Backends: 4, Queues: 2}})
	targets := append(sctpTargets,
		netip.AddrPortFrom(l.Gateway.Addr4(), sctpNodePort), netip.AddrPortFrom(l.Gateway.Addr6(), sctpNodePort))
	flows, err := l.Clients[0].OpenSCTP(l.ctx, topo.FlowLoad{
		Targets: targets, Flows: open, Interval: 2 * time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	l.answered(flows, 2)
	if n := l.flowsByProtocol("SCTP"); n["ESTABLISHED"] != open {
		t.Errorf("%d associations are open, the gateway has %v", open, n)
	}
	byBackend := flows.ByBackend()
	r := flows.Finish()
	t.Logf("%d associations: %d broken, %v; by backend %v", open, flows.Broken(), r, byBackend)
	if flows.Broken() > 0 || r.Failed() > 0 {
		t.Errorf("errors %v", r.Errors)
	}
	shares := topo.Result{Shares: map[string]int64{}}
	for name, n := range byBackend {
		shares.Shares[name] = int64(n)
	}
	if d := shares.Deviation(fair(l.Backends)); d > 5 {
		t.Errorf("shares %v", byBackend)
	}
	for address := range r.Clients {
		a := netip.MustParseAddr(address)
		if want := towardsBackends(l.Gateway, a); address != want.String() {
			t.Errorf("backends saw %s, want %s", address, want)
		}
	}
	l.eventually(20*time.Second, "no association is open at the gateway",
		func() bool { return l.flowsByProtocol("SCTP")["ESTABLISHED"] == 0 })
	if bad := drops(ptr(l.checkLaws())); bad["no_flow"]+bad["sctp_header"]+bad["sctp_fragment"] > 0 {
		t.Errorf("drops %v", bad)
	}
}

// answered waits until every flow was answered so many times more than now, and fails if one
// breaks.
func (l *lab) answered(flows *topo.Flows, times int64) {
	l.t.Helper()
	err := flows.AnsweredAgain(l.ctx, machine.Slower(60*time.Second), times)
	if n := flows.Broken(); n > 0 || err != nil {
		l.t.Fatalf("%d flows are broken: %v\n%s", n, err, l.gate.Log())
	}
}

// TestSCTPTransfers: large bodies over one association each way, both families: packets of all
// sizes up to the MTU.
func TestSCTPTransfers(t *testing.T) {
	const size = 1<<20 + 17
	l := newSCTPLab(t, labConfig{small: true, Config: topo.Config{Queues: 2}})
	for _, target := range sctpTargets {
		down, err := l.Clients[0].DownloadSCTP(l.ctx, target, size)
		if err != nil {
			t.Fatal(err)
		}
		up, err := l.Clients[0].UploadSCTP(l.ctx, target, size)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%v: %d bytes each way in %v and %v, SHA-256 equal", target, size, down.Elapsed.Round(time.Millisecond),
			up.Elapsed.Round(time.Millisecond))
	}
	if bad := drops(ptr(l.checkLaws())); bad["no_flow"]+bad["sctp_header"]+bad["sctp_fragment"] > 0 {
		t.Errorf("drops %v", bad)
	}
}

// TestSCTPKill: kill -9 of the gateway under held associations: they survive.
func TestSCTPKill(t *testing.T) {
	const open, rounds = 100, 3
	l := newSCTPLab(t, labConfig{small: true, Config: topo.Config{Backends: 4, Queues: 2}})
	flows, err := l.Clients[0].OpenSCTP(l.ctx, topo.FlowLoad{
		Targets: sctpTargets, Flows: open, Interval: 2 * time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	l.answered(flows, 1)
	for range rounds {
		if err := l.gate.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := l.gate.Start(l.ctx); err != nil {
			t.Fatal(err)
		}
		l.answered(flows, 2)
	}
	r := flows.Finish()
	t.Logf("%d held associations, kill -9 %d times: %d broken, %d answers", open, rounds, flows.Broken(), r.Requests)
	if flows.Broken() > 0 || r.Failed() > 0 {
		t.Errorf("flows broken: %v", r.Errors)
	}
}

func ptr[T any](v T) *T { return &v }

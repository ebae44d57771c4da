//go:build root

package topo

import (
	"net/netip"
	"testing"
	"time"

	"sluice.dev/sluice/test/bed/machine"
)

// TestVLANThroughKernelGateway: hosts on VLAN devices reach each other, and nothing untagged
// reaches anybody.
func TestVLANThroughKernelGateway(t *testing.T) {
	machine.Need(t, machine.VLAN)
	for _, tc := range []struct {
		name string
		c    Config
	}{
		{"both sides", Config{Queues: 2, FrontVLANs: []uint16{5}, BackVLANs: []uint16{7}}},
		{"one wire", Config{OneArmed: true, FrontVLANs: []uint16{5}, BackVLANs: []uint16{7}}},
		{"two tags", Config{FrontVLANs: []uint16{5, 6}, BackVLANs: []uint16{7, 8}, ServiceTag: true}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := build(t, tc.c)
			for _, target := range serve(t, n) {
				got, err := n.Clients[0].Download(testContext(t), target, 1<<20)
				if err != nil || got.Backend != "backend0" {
					t.Errorf("%v: %+v, %v", target, got, err)
				}
			}
			if i := n.Clients[0].Interfaces[0]; i.Name != "eth0" || i.VLAN == "" {
				t.Errorf("addresses are on %+v", i)
			}
		})
	}
}

// TestSCTPThroughKernelGateway: clients and servers are those of TCP.
func TestSCTPThroughKernelGateway(t *testing.T) {
	machine.Need(t, machine.SCTP)
	n := build(t, Config{})
	b := n.Backends[0]
	if _, err := b.ServeSCTP(testPort); err != nil {
		t.Fatal(err)
	}
	targets := []netip.AddrPort{netip.AddrPortFrom(b.Addr4(), testPort), netip.AddrPortFrom(b.Addr6(), testPort)}
	for _, target := range targets {
		const size = 1<<20 + 17
		down, err := n.Clients[0].DownloadSCTP(testContext(t), target, size)
		if err != nil {
			t.Fatal(err)
		}
		up, err := n.Clients[0].UploadSCTP(testContext(t), target, size)
		if err != nil {
			t.Fatal(err)
		}
		if down.Sum != up.Sum || down.Bytes != size {
			t.Errorf("down %+v, up %+v: the same seed must give the same bytes", down, up)
		}
		if _, err := n.Clients[0].Download(testContext(t), target, 1); err == nil {
			t.Error("the server listens on TCP, too")
		}
	}
	flows, err := n.Clients[0].OpenSCTP(testContext(t), FlowLoad{Targets: targets, Flows: 4,
		Interval: 10 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	waitFor(t, "answers", func() bool { return all(flows.States(), func(s FlowState) bool { return s.Answers > 2 }) })
	r := flows.Finish()
	c, err := b.Counters()
	if err != nil {
		t.Fatal(err)
	}
	if r.Failed() > 0 || c["SctpPassiveEstabs"] != 8 {
		t.Errorf("%v; %d associations", r.Errors, c["SctpPassiveEstabs"])
	}
}

// TestImpair: wires that lose everything lose everything, and repaired they lose nothing.
func TestImpair(t *testing.T) {
	machine.Need(t, machine.Netem)
	n := build(t, Config{Queues: 2})
	targets := serve(t, n)
	ask := func(requests int) *Result {
		t.Helper()
		r, err := n.Clients[0].HTTP(testContext(t), HTTPLoad{Targets: targets, Requests: requests,
			Timeout: machine.Slower(time.Second)})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if err := n.Impair(Impairment{Loss: 100}); err != nil {
		t.Fatal(err)
	}
	if r := ask(1); r.Failed() != 1 {
		t.Errorf("answered over wires that lose everything: %v", r)
	}
	if lost, err := n.Repair(); err != nil || lost == 0 {
		t.Errorf("lost %d, %v", lost, err)
	}
	if r := ask(20); r.Failed() != 0 {
		t.Errorf("after the repair: %v", r.Errors)
	}
	if lost, err := n.Repair(); err != nil || lost != 0 {
		t.Errorf("a second repair: lost %d, %v", lost, err)
	}
}

func TestImpairDirect(t *testing.T) {
	n := build(t, Config{Direct: true})
	if err := n.Impair(Impairment{Loss: 1}); err == nil {
		t.Error("the gateway's own wires were impaired")
	}
}

//go:build root

package e2e

import (
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"sluice.dev/sluice/test/bed/launch"
	"sluice.dev/sluice/test/bed/procstat"
	"sluice.dev/sluice/test/bed/stateless"
	"sluice.dev/sluice/test/bed/topo"
)

// TestEstablishedFirst: SYNs as fast as the generator sends them, and then, as fast, packets of
// known flows. Both are for a backend that answers none. Clients of another backend ask over
// connections and flows that were there before: none breaks, none is evicted, and beside SYNs they
// lose at most one point more of their datagrams than beside known flows. On a machine that has
// other work the gateway has to wait for a processor, and one point says nothing: then it is 20,
// and 40 and more were lost without the bound.
func TestEstablishedFirst(t *testing.T) {
	const floodPort, tries = 9000, 5
	l := newLab(t, labConfig{Config: topo.Config{Clients: 2, Backends: 2}, damaging: true, quick: true})
	l.apply(l.web(l.Backends[0]), l.dns(l.Backends[0]))
	silent := []launch.Endpoint{{Addr: l.Backends[1].Addr4(), Port: floodPort, Node: l.Backends[1].Name}}
	l.apply(launch.Service{Name: "known", UDP: true, Port: floodPort, VIPs: []string{keepVIP4}, Endpoints: silent},
		launch.Service{Name: "syns", Port: floodPort, VIPs: []string{keepVIP4}, Endpoints: silent})
	l.applied()
	most := 1.0
	if busy := l.busy(); busy > 0.25 {
		most = 20
		t.Logf("other processes use %.0f %% of the machine: %.0f points are allowed", 100*busy, most)
	}

	connections, err := l.Clients[1].OpenTCP(l.ctx, topo.FlowLoad{Targets: []netip.AddrPort{at(vip4, webPort)},
		Flows: 200, Interval: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	flows, err := l.Clients[1].OpenUDP(l.ctx, topo.FlowLoad{Targets: []netip.AddrPort{at(vip4, dnsPort)}, Flows: 200,
		Interval: 10 * time.Millisecond, Timeout: 200 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	// Each is established, and has been in use for longer than a flow is young.
	for young := func(f topo.FlowState) bool { return f.Answers < 200 }; slices.ContainsFunc(flows.States(), young); {
		if l.ctx.Err() != nil {
			t.Fatal("flows without answers")
		}
		time.Sleep(10 * time.Millisecond)
	}
	known := l.generator(stateless.UDP, 1000, floodPort)
	syns := l.generator(stateless.TCPSYN, 2_000_000, floodPort)
	var excess float64
	for range tries { // other processes make either side slower
		besideSYNs, rate := l.lossBeside(flows, syns, 0)
		besideKnown, sent := l.lossBeside(flows, known, rate)
		if sent < 0.95*rate { // backends have their part of the machine now
			besideSYNs, _ = l.lossBeside(flows, syns, sent)
		}
		if excess = besideSYNs - besideKnown; excess <= most {
			break
		}
	}
	if excess > most {
		t.Errorf("established flows lose %.2f points more beside SYNs than beside known flows", excess)
	}
	flows.Stop()
	broken := connections.Broken()
	r, s := connections.Stop(), l.checkLaws()
	t.Logf("%d answers over 200 connections, %d broken; drops %v", r.Requests, broken, drops(&s))
	if broken > 0 || r.Failed() > 0 {
		t.Errorf("%d connections broken, errors %v", broken, r.Errors)
	}
}

// busy returns which part of the machine is in use: 0 to 1.
func (l *lab) busy() float64 {
	l.t.Helper()
	spent, err := procstat.During(func() error { return topo.Pause(l.ctx, 500*time.Millisecond) })
	if err != nil {
		l.t.Fatal(err)
	}
	return spent.ShareOf(spent.Busy + spent.Stolen)
}

// generator is traffic from the first client, of senders in a network of nobody's.
func (l *lab) generator(protocol stateless.Protocol, flows int, port uint16) stateless.Traffic {
	mac := l.Gateway.Interfaces[0].MAC
	return stateless.Traffic{
		Protocol: protocol, Flows: flows, DestinationMAC: net.HardwareAddr(mac[:]),
		Sources:          stateless.Addresses{First: netip.MustParseAddr("198.18.0.0"), Count: 1 << 15},
		SourcePorts:      stateless.Ports{First: 1024, Last: 2048},
		Destinations:     stateless.Addresses{First: netip.MustParseAddr(keepVIP4)},
		DestinationPorts: stateless.Ports{First: port},
	}
}

// lossBeside returns how many percent of the flows' requests got no answer while the generator sent
// at a rate, 0 for as fast as it can, and how many packets a second it sent.
func (l *lab) lossBeside(flows *topo.Flows, traffic stateless.Traffic, rate float64) (percent, sent float64) {
	l.t.Helper()
	generator, err := stateless.Open(l.ctx, stateless.Config{Traffic: traffic,
		Tx: stateless.Tx{Port: portOf(l.Clients[0]), OwnNetwork: true}, Rx: stateless.Rx{Port: portOf(l.Backends[1])}})
	if err != nil {
		l.t.Fatal(err)
	}
	defer func() {
		if err := generator.Close(); err != nil {
			l.t.Error(err)
		}
	}()
	var (
		answers, lost int64
		r             *stateless.Result
	)
	answersBefore, lostBefore := asked(flows)
	for trials := 0; answers < 1000; trials++ {
		if trials == 10 { // the flows share the processor with the generator
			l.t.Fatalf("%d answers in %d trials: too few to say anything", answers, trials)
		}
		if r, err = generator.Trial(l.ctx, stateless.Load{Duration: 3 * time.Second, Rate: rate}); err != nil {
			l.t.Fatal(err)
		}
		answered, unanswered := asked(flows)
		answers, lost = answered-answersBefore, unanswered-lostBefore
	}
	percent = 100 * float64(lost) / float64(answers+lost)
	l.t.Logf("beside %s: %d answers, %d lost (%.2f %%); the generator sent %.0f packets/s, %d of %d arrived",
		traffic.Protocol, answers, lost, percent, r.Sent.Rate(), r.Received.Packets, r.Sent.Packets)
	return percent, r.Sent.Rate()
}

func portOf(h *topo.Host) stateless.Port {
	return stateless.Port{Interface: h.Interfaces[0].Name, Namespace: h}
}

// asked adds up what flows have seen.
func asked(flows *topo.Flows) (answers, lost int64) {
	for _, f := range flows.States() {
		answers, lost = answers+f.Answers, lost+f.Lost
	}
	return answers, lost
}

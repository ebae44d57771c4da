package fastpath_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
)

// choiceVIP has a port for each scheduler, from 1000 on, and one with session affinity.
const (
	choiceVIP = "203.0.113.16"
	choices   = int(services.NumSchedulers) + 1
)

// serveByAll adds these frontends, with three backends each.
func serveByAll(b *services.Builder) { serveByAllBut(b, -1) }

// serveByAllBut is serveByAll without backend gone of each service, if gone is 0 to 2.
func serveByAllBut(b *services.Builder, gone int) {
	b.SetAddr(addr(choiceVIP), services.AddrVIP)
	for i := range choices {
		id := services.ServiceID(20 + i)
		svc := &services.Service{ID: id, Namespace: "default", Name: "choice", Proto: header.ProtoUDP,
			Port: uint16(1000 + i), Identity: uint64(id)}
		if i < int(services.NumSchedulers) {
			svc.Scheduler = services.Scheduler(i)
		} else {
			svc.AffinitySeconds = 60
		}
		set := &services.EndpointSet{}
		for j := range 3 {
			be := backend(uint32(60+3*i+j), id, fmt.Sprintf("10.0.1.%d", 100+3*i+j), 53, header.ProtoUDP)
			if j == gone {
				b.DeleteBackend(be.Ref)
				continue
			}
			b.SetBackend(be)
			svc.Backends = append(svc.Backends, be.Ref)
			set.Backends = append(set.Backends, be.Ref)
		}
		if !svc.Scheduler.ByLoad() {
			for n := range 7 {
				set.Table = append(set.Table, uint16(n%len(set.Backends)))
			}
		}
		b.SetService(svc)
		b.SetFrontend(&services.Frontend{
			Key:  services.FrontendKey{Addr: addr(choiceVIP), Port: uint16(1000 + i), Proto: header.ProtoUDP},
			Kind: services.LoadBalancer, Service: svc, Outside: services.Rule{Set: set}, Turn: new(services.Turn),
		})
	}
}

// TestLookahead: a new flow is the one that the lookahead planned, also among packets of known
// flows, of flows that begin in the same group, and without a flow. Each new flow is planned ahead:
// no other test would notice that one is not, because that only costs time.
//
// In the smaller table home buckets overflow, so that some known flows are in buckets that a search
// does not examine.
func TestLookahead(t *testing.T) {
	for name, flows := range map[string]uint32{"roomy": 4096, "full": 2560} {
		t.Run(name, func(t *testing.T) { testLookahead(t, flows) })
	}
}

func testLookahead(t *testing.T, flows uint32) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	l := newLab(t, labConfig{edit: serveByAll, flows: flows})
	g := l.workers[0]
	certain := map[int]bool{int(services.Maglev): true, int(services.SourceHash): true,
		int(services.DestinationHash): true, int(services.Random): true}
	next, ahead, seen := 0, 0, map[header.Tuple]bool{}
	for range 400 {
		planned := 0 // new flows of which the lookahead must be certain
		for range 1 + r.IntN(16) {
			n := next - r.IntN(10)
			if r.IntN(3) > 0 || n < 0 {
				n = next
				next++
			}
			choice := n % choices
			p := headertest.UDP(join(client4, uint16(1024+n)), join(choiceVIP, uint16(1000+choice)), "x")
			if r.IntN(20) == 0 {
				p = headertest.TCP(join(client4, uint16(1024+n)), join(vip4, 80), headertest.ACK) // no flow
			} else if tuple := tupleOf(p); !seen[tuple] {
				seen[tuple] = true
				if certain[choice] {
					planned++
				}
			}
			if !g.nic.Inject(p.Bytes()) {
				t.Fatal("the link took no more packets")
			}
		}
		g.Forget()
		l.step(time.Microsecond)
		drain(g.nic, g.host)
		for _, f := range g.Planned() {
			ref, side := g.Lookup(&f.Client, l.now)
			if ref == 0 || side != flowtable.ClientSide {
				t.Fatalf("no flow for what was planned ahead: %+v", f)
			}
			if out := g.Outgoing(ref); out.Src != f.Source || !slices.Contains(f.Ports, out.SrcPort) ||
				out.Dst != f.Backend {
				t.Fatalf("a flow to %v from %v, ports %d, was planned ahead, and it is %+v", f.Backend, f.Source,
					f.Ports, out)
			}
			planned--
			ahead++
		}
		if planned != 0 {
			t.Fatalf("%d new flows of a group were not planned ahead, though they depend on their packets alone",
				planned)
		}
		l.step(time.Microsecond)
	}
	if ahead < 200 {
		t.Errorf("only %d flows were planned ahead", ahead)
	}
}

func tupleOf(p *headertest.Packet) (t header.Tuple) {
	var packet header.Packet
	header.Parse(p.Bytes(), &packet)
	return packet.Tuple
}

package fastpath_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"time"

	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
)

// concurrent runs two workers that get packets of the same flows at the same moment, in groups with
// a lookahead, while snapshots, routes and neighbours change.
type concurrent struct {
	*lab
	out [2]map[header.Tuple]header.Tuple // by worker and client of stableVIP: the tuple of its translated packets
}

// stableVIP has two services with fixed backends and separate ports.
const (
	stableVIP                = "203.0.113.17"
	toStableUDP, toStableTCP = 5300, 8090
)

func newConcurrent(t *testing.T) *concurrent {
	r := &concurrent{out: [2]map[header.Tuple]header.Tuple{{}, {}}}
	r.lab = newLab(t, labConfig{workers: 2, flows: 1 << 16, snat: services.PortRange{First: 20000, Count: 40000},
		edit: func(b *services.Builder) {
			serveByAll(b)
			serve(b, 40, stableVIP, 53, header.ProtoUDP, backend4, toStableUDP, false)
			serve(b, 41, stableVIP, 80, header.ProtoTCP, second4, toStableTCP, false)
		}})
	return r
}

// work is one worker's part of a round: it takes the round's packets in a random order, and steps.
func (r *concurrent) work(worker int, frames [][]byte, now uint64, rnd *rand.Rand) error {
	g := r.workers[worker]
	for _, i := range rnd.Perm(len(frames)) {
		if !g.nic.Inject(frames[i]) {
			return fmt.Errorf("the link of worker %d took no more packets", worker)
		}
	}
	for range 3 {
		g.Step(now)
	}
	for _, frame := range drain(g.nic, g.host) {
		var p header.Packet
		if frame == nil || header.Parse(frame, &p) != 0 ||
			p.Tuple.DstPort != toStableUDP && p.Tuple.DstPort != toStableTCP {
			continue
		}
		if err := headertest.Verify(frame); err != nil {
			return fmt.Errorf("worker %d sent %x: %w", worker, frame, err)
		}
		// The payload is the client's port.
		client := header.Tuple{Src: addr(client4), Dst: addr(stableVIP),
			SrcPort: uint16(frame[p.End-2])<<8 | uint16(frame[p.End-1]), Proto: p.Tuple.Proto}
		if before, ok := r.out[worker][client]; ok && before != p.Tuple {
			return fmt.Errorf("packets of client port %d left as %+v and as %+v", client.SrcPort, before, p.Tuple)
		}
		r.out[worker][client] = p.Tuple
	}
	return nil
}

// upset changes services, routes and neighbours until ctx is done, but not those of stableVIP.
func (r *concurrent) upset(ctx context.Context, rnd *rand.Rand) {
	for ctx.Err() == nil {
		switch rnd.IntN(4) {
		case 0:
			r.publish(func(b *services.Builder) { serveByAllBut(b, rnd.IntN(4)) })
		case 1:
			hop := nexthop.Hop{Kind: nexthop.OnLink, Ready: true, MTU: uint16(1400 + rnd.IntN(100)), DstMAC: macBackend,
				SrcMAC: macOurs}
			r.hops.SetHop(hopBackend, &hop)
		default:
			old := r.hops.View()
			routes := old.Routes.Clone()
			routes.Insert(netip.MustParsePrefix("0.0.0.0/0"), nexthop.Route{Hop: hopClient + nexthop.ID(rnd.IntN(2)),
				Kind: nexthop.OnLink})
			r.hops.Publish(&nexthop.View{Generation: old.Generation + 1, Routes: routes})
		}
		time.Sleep(50 * time.Microsecond)
	}
}

// request returns a packet of a client, with its port as the payload. Mostly it is for stableVIP.
func (r *concurrent) request(rnd *rand.Rand, port uint16) []byte {
	mark := string([]byte{byte(port >> 8), byte(port)})
	switch rnd.IntN(8) {
	case 0, 1, 2:
		return headertest.UDP(join(client4, port), join(stableVIP, 53), mark).Bytes()
	case 3, 4, 5:
		p := headertest.TCP(join(client4, port), join(stableVIP, 80), headertest.SYN)
		p.Payload = []byte(mark)
		return p.Bytes()
	}
	return headertest.UDP(join(client4, port), join(choiceVIP, uint16(1000+rnd.IntN(choices))), mark).Bytes()
}

// TestConcurrentWorkersAgree: two workers plan and make the same flows at once, and translate their
// packets in the same way. No flow is made twice, no two flows have the same source, every packet
// is accounted for, and the table is valid.
func TestConcurrentWorkersAgree(t *testing.T) {
	rounds := 1500
	if testing.Short() {
		rounds = 300
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := newConcurrent(t)
	ctx, cancel := context.WithCancel(t.Context())
	var upset sync.WaitGroup
	upset.Go(func() { r.upset(ctx, rand.New(rand.NewPCG(seed, 9))) })
	rnd := rand.New(rand.NewPCG(seed, 0))
	own := [2]*rand.Rand{rand.New(rand.NewPCG(seed, 1)), rand.New(rand.NewPCG(seed, 2))}
	flows := map[uint16]bool{}
	for round := range rounds {
		var frames [][]byte
		for range 1 + rnd.IntN(60) {
			port := uint16(2000 + round*4%6000 + rnd.IntN(12))
			flows[port] = true
			frames = append(frames, r.request(rnd, port))
		}
		r.now += uint64(time.Millisecond)
		var errs [2]error
		var group sync.WaitGroup
		for w := range errs {
			group.Go(func() { errs[w] = r.work(w, frames, r.now, own[w]) })
		}
		group.Wait()
		for _, err := range errs {
			if err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
		}
	}
	cancel()
	upset.Wait()
	r.compare(t, len(flows))
}

// compare compares the translations of the two workers.
func (r *concurrent) compare(t *testing.T, ports int) {
	owner, both := map[header.Tuple]header.Tuple{}, 0
	for w := range r.out {
		for client, out := range r.out[w] {
			if other, ok := r.out[1-w][client]; ok {
				if both++; other != out {
					t.Errorf("packets of client port %d left as %+v by one worker and as %+v by the other",
						client.SrcPort, out, other)
				}
			}
			if other, ok := owner[out]; ok && other != client {
				t.Errorf("clients %d and %d both leave as %+v", client.SrcPort, other.SrcPort, out)
			}
			owner[out] = client
		}
	}
	if both < ports {
		t.Errorf("%d client ports, and only %d flows that both workers saw", ports, both)
	}
	if err := r.table.Validate(); err != nil {
		t.Error(err)
	}
	created, counted := uint64(0), uint64(0)
	for _, g := range r.workers {
		created += g.stats.FlowsCreated.Load()
		for i := range uint32(100) {
			counted += g.stats.Backends.At(i).Flows.Load()
		}
	}
	c := r.table.Counts()
	if made := c.Created[0] + c.Created[1]; created != made || counted != made {
		t.Errorf("the table made %d flows, the workers %d, and backends got %d", made, created, counted)
	}
}

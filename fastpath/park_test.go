package fastpath_test

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
	"time"

	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/nat/reason"
)

// Limits of a step that received a full batch.
const (
	opensPerFullStep = 16
	opensForParked   = 8 // the part that known flows leave to parked packets
)

// opener returns a packet that opens flow n, of TCP or UDP, over either family.
func opener(n int) *headertest.Packet {
	port := uint16(1024 + n)
	switch n % 4 {
	case 0:
		return headertest.TCP(join(client4, port), join(vip4, 80), headertest.SYN)
	case 1:
		return headertest.UDP(join(client4, port), join(vip4, 53), "question")
	case 2:
		return headertest.TCP(join(client6, port), join(vip6, 80), headertest.SYN)
	}
	return headertest.UDP(join(client6, port), join(vip6, 53), "question")
}

func (l *lab) inject(packets ...*headertest.Packet) {
	l.t.Helper()
	for _, p := range packets {
		if !l.workers[0].nic.Inject(p.Bytes()) {
			l.t.Fatal("the link took no more packets")
		}
	}
}

// TestStepOpensBoundedly: no step opens more flows than its budget, for any number of packets;
// later steps open the others, even if no further packet arrives.
func TestStepOpensBoundedly(t *testing.T) {
	for _, arrive := range []int{1, fastpath.OpensPerStep, fastpath.OpensPerStep + 1, 200, fastpath.BatchSize} {
		t.Run(fmt.Sprint(arrive), func(t *testing.T) {
			l := newLab(t, labConfig{frames: 4096})
			g, made := l.workers[0], uint64(0)
			limit := uint64(fastpath.OpensPerStep)
			if arrive == fastpath.BatchSize {
				limit = opensPerFullStep
			}
			for n := range arrive {
				l.inject(opener(n))
			}
			for step := 0; made < uint64(arrive); step++ {
				l.step(time.Millisecond) // counters of a full step are published by age
				now := g.stats.FlowsCreated.Load()
				if want := min(uint64(arrive)-made, limit); now-made != want {
					t.Fatalf("step %d opened %d flows, want %d", step, now-made, want)
				}
				made, limit = now, fastpath.OpensPerStep
				if held := g.stats.Held.Load(); held != int64(arrive)-int64(made) {
					t.Fatalf("%d packets are held, %d flows of %d opened", held, made, arrive)
				}
			}
			if sent := g.nic.Loop(); sent != arrive {
				t.Errorf("%d of %d packets were sent; drops %v", sent, arrive, l.drops())
			}
		})
	}
}

// TestParkedInOrder: parked packets leave in the order of their arrival, after packets of known
// flows. Datagrams of one flow keep their order, including those that arrive after the flow was
// opened.
func TestParkedInOrder(t *testing.T) {
	l := newLab(t, labConfig{frames: 4096})
	l.send(0, headertest.UDP(join(client4, 900), join(vip4, 53), "know"))
	l.out(l.workers[0].nic)
	var sent []string
	collect := func() {
		for {
			frame, ok := l.workers[0].nic.Take(nil)
			if !ok {
				return
			}
			sent = append(sent, string(frame[len(frame)-4:]))
		}
	}
	text := func(client, number int) *headertest.Packet {
		return headertest.UDP(join(client4, uint16(1024+client)), join(vip4, 53), fmt.Sprintf("%03d%d", client, number))
	}
	for n := range 200 {
		l.inject(text(n, 0))
	}
	l.inject(headertest.UDP(join(client4, 900), join(vip4, 53), "know"), text(150, 1), text(3, 1))
	l.step(time.Microsecond)
	collect()
	if at := slices.Index(sent, "know"); at != len(sent)-2 {
		t.Errorf("a known flow's packet left as number %d of %d", at, len(sent))
	}
	for n := range 4 {
		l.inject(text(150, 2+n))
		l.step(time.Microsecond)
		collect()
	}
	for range 200 / fastpath.OpensPerStep {
		l.step(time.Microsecond)
		collect()
	}
	last := -1
	of150 := ""
	for _, s := range sent {
		if s == "know" {
			continue
		}
		client := int(s[0]-'0')*100 + int(s[1]-'0')*10 + int(s[2]-'0')
		if client == 150 {
			of150 += s[3:]
		}
		if s[3] != '0' {
			continue
		}
		if client != last+1 {
			t.Fatalf("client %d's packet left after client %d's", client, last)
		}
		last = client
	}
	if last != 199 || of150 != "012345" {
		t.Errorf("the last to leave was client %d's, those of client 150 were %q", last, of150)
	}
}

// TestOldestParkedIsShed: during a flood of new flows beyond a worker's budget, the oldest parked
// packets are dropped with a named reason, and all packets of known flows are forwarded.
func TestOldestParkedIsShed(t *testing.T) {
	l := newLab(t, labConfig{}) // 1,024 frames: 256 are parked
	g := l.workers[0]
	const known, parked, steps = 8, 256, 10
	for n := range known {
		l.send(0, headertest.UDP(join(client4, uint16(900+n)), join(vip4, 53), "know"))
		l.out(g.nic)
	}
	sent, arrived := map[string]int{}, 0
	take := func() {
		for {
			frame, ok := g.nic.Take(nil)
			if !ok {
				return
			}
			sent[string(frame[len(frame)-4:])]++
		}
	}
	for range steps {
		for n := range fastpath.BatchSize {
			if n%(fastpath.BatchSize/known) == 0 {
				p := headertest.UDP(join(client4, uint16(900+n*known/fastpath.BatchSize)), join(vip4, 53), "know")
				l.inject(p)
				continue
			}
			number := [4]byte{}
			binary.BigEndian.PutUint32(number[:], uint32(arrived))
			p := headertest.UDP(join(client4, uint16(2000+arrived)), join(vip4, 53), string(number[:]))
			l.inject(p)
			arrived++
		}
		l.step(time.Millisecond)
		take()
	}
	if sent["know"] != steps*known {
		t.Errorf("%d of %d packets of known flows were forwarded", sent["know"], steps*known)
	}
	if made := g.stats.FlowsCreated.Load(); made != known+steps*opensPerFullStep {
		t.Errorf("%d flows were opened, want %d", made, known+steps*opensPerFullStep)
	}
	held := int(g.stats.Held.Load())
	l.wantDrop(reason.NewFlowDisplaced, uint64(arrived-steps*opensPerFullStep-held))
	if held < parked-opensPerFullStep || held > parked {
		t.Errorf("%d packets are parked, want up to %d", held, parked)
	}
	for range parked / fastpath.OpensPerStep {
		l.step(time.Millisecond)
		take()
	}
	for n := arrived - held; n < arrived; n++ { // all of the youngest are parked
		number := [4]byte{}
		binary.BigEndian.PutUint32(number[:], uint32(n))
		if sent[string(number[:])] != 1 {
			t.Errorf("packet %d of %d was sent %d times", n, arrived, sent[string(number[:])])
		}
	}
}

// TestParkedAtShutdown: packets that are parked when a worker ends are counted. It does not rest
// while packets are parked.
func TestParkedAtShutdown(t *testing.T) {
	l := newLab(t, labConfig{})
	g := l.workers[0]
	for n := range 200 {
		l.inject(opener(n))
	}
	g.Step(l.now)
	g.Stop()
	if err := g.Run(t.Context(), fastpath.RunConfig{CPU: -1}); err != nil {
		t.Fatal(err)
	}
	l.wantDrop(reason.Shutdown, 200-fastpath.OpensPerStep)
	if held := g.stats.Held.Load(); held != 0 {
		t.Errorf("%d packets are held", held)
	}
}

// TestFloodAllocatesNothing: parking packets, dropping the oldest and opening flows do not
// allocate.
func TestFloodAllocatesNothing(t *testing.T) {
	l := newLab(t, labConfig{})
	l.validate = false
	g := l.workers[0]
	frame := headertest.UDP(join(client4, 1), join(vip4, 53), "0123456789abcdef01").Bytes()
	frame[40], frame[41] = 0, 0 // no UDP checksum
	port := uint16(0)
	if n := testing.AllocsPerRun(50, func() {
		for range fastpath.BatchSize {
			port++
			binary.BigEndian.PutUint16(frame[header.EthernetBytes+header.IPv4Bytes:], 1024+port%60000)
			g.nic.Inject(frame)
		}
		l.now += uint64(10 * time.Microsecond)
		g.Step(l.now)
		g.nic.Loop()
	}); n != 0 {
		t.Errorf("%v allocations in a step", n)
	}
	if l.drops()[reason.NewFlowDisplaced.String()] == 0 {
		t.Error("no parked packet was dropped")
	}
}

// TestComparisonsCountAsNewFlows: with a scheduler that compares the connections of all backends, a
// new flow costs as much as several, so a step opens fewer. All flows are opened in the end.
func TestComparisonsCountAsNewFlows(t *testing.T) {
	for _, by := range []services.Scheduler{services.LeastConn, services.WeightedLeastConn, services.ShortestDelay,
		services.NeverQueue, services.Maglev} {
		for endpoints, perStep := range map[int]int{100: 32, 128: 16, 1000: 4, 1024: 4, 5000: 4} {
			t.Run(fmt.Sprintf("%v/%d", by, endpoints), func(t *testing.T) {
				l := newLab(t, labConfig{frames: 4096, edit: func(b *services.Builder) {
					f := both(b, 30, ruleVIP, header.ProtoTCP, set(b, 30, 100, header.ProtoTCP, widely(endpoints)...))
					f.Service.Scheduler = by
				}})
				if by == services.Maglev {
					perStep = fastpath.OpensPerStep
				}
				const arrive = 100
				for i := range arrive {
					l.inject(headertest.TCP(join(client4, uint16(1024+i)), join(ruleVIP, 80), headertest.SYN))
				}
				for made := 0; made < arrive; {
					l.step(time.Millisecond)
					now := int(l.workers[0].stats.FlowsCreated.Load())
					if want := min(arrive, made+perStep); now != want {
						t.Fatalf("%d flows were opened, want %d", now, want)
					}
					made = now
				}
				if sent := l.workers[0].nic.Loop(); sent != arrive {
					t.Errorf("%d of %d packets were sent; drops %v", sent, arrive, l.drops())
				}
			})
		}
	}
}

// TestSYNsOfAFullRing: as many clients connect at once as a receive ring of the default size has
// room for, at a gateway with one interface and the host link, which both have two frames for each
// descriptor. All clients get their flow by their first SYN.
func TestSYNsOfAFullRing(t *testing.T) {
	const ring, links = 2048, 2
	l := newLab(t, labConfig{flows: 2 * ring, halfOpen: 2 * ring, frames: links * 2 * ring, ring: ring})
	g := l.workers[0]
	for n := range ring {
		l.inject(headertest.TCP(join(client4, uint16(1024+n)), join(vip4, 80), headertest.SYN))
	}
	sent := 0
	for range 2 * ring / opensPerFullStep {
		l.step(20 * time.Microsecond)
		sent += g.nic.Loop()
	}
	if sent != ring {
		t.Errorf("%d of %d SYNs were forwarded; drops %v", sent, ring, l.drops())
	}
}

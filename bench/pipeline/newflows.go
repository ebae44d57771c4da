package pipeline

import (
	"fmt"
	"runtime"
	"strconv"
	"time"

	"sluice.dev/sluice/bench/results"
	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/header"
)

const (
	liveFlows = 1_000_000
	// flowLife is the lifetime of an unanswered flow here, including the table's own second for
	// refreshing. It is twice the time of a sweep over the table, so that expired flows are a
	// quarter of the live ones.
	flowLife  = 10 * time.Second
	metricNew = "new_flows"
)

// newFlows sends only first packets of unknown clients. Each chunk takes the time that 4096 of a
// million flows have if all live for flowLife: as many flows expire as are opened, and the sweep,
// whose time is measured, visits the records that are due by that time.
//
// Flows opened together are adjacent in memory and expire together: in most chunks none expires,
// and in some several times as many as were opened. So a sample is the mean, not the median, over
// whole lifetimes: it ends about as many flows as it opens.
func (r *runner) newFlows() error {
	for _, v6 := range r.families() {
		for _, proto := range []uint8{header.ProtoUDP, header.ProtoTCP} {
			if err := r.newFlowsOf(v6, proto); err != nil {
				return fmt.Errorf("%s: %w", family(v6), err)
			}
		}
	}
	return nil
}

func (r *runner) newFlowsOf(v6 bool, proto uint8) error {
	g, err := shortLived(v6, liveFlows)
	if err != nil {
		return err
	}
	defer g.w.close()
	stranger := strangers{proto: proto}
	name := map[uint8]string{header.ProtoTCP: "tcp-syn", header.ProtoUDP: "udp"}[proto]
	r.say("new flows %s %s: %d flows first", family(v6), name, liveFlows)
	if _, err := g.lives(3, liveFlows, &stranger); err != nil {
		return err
	}
	for round := range r.Repeat {
		r.say("new flows %s %s: round %d of %d", family(v6), name, round+1, r.Repeat)
		ns, err := g.lives(max(1, r.Chunks*chunkFrames/liveFlows), liveFlows, &stranger)
		if err != nil {
			return err
		}
		params := map[string]string{"scenario": "new-flows", "family": family(v6), "live": strconv.Itoa(liveFlows),
			"packets": name}
		r.cost(sluice, params, ns)
		r.add(1000/ns, results.Point{System: sluice, Params: params, Metric: metricNew, Unit: "M/s", Better: "higher"})
	}
	return r.ctx.Err()
}

// shortLived makes a world for a number of concurrent flows that live for flowLife. The caller
// closes g.w.
func shortLived(v6 bool, live int) (*gate, error) {
	t := flowtable.DefaultTimeouts()
	t.UDPUnreplied, t.SynSeen = flowLife-time.Second, flowLife-time.Second
	return (&runner{}).populated(worldConfig{v6: v6, services: 1, backends: 64, capacity: uint32(2 * live),
		timeouts: t}, 0)
}

// lives opens flows for n lifetimes, live flows in each, and returns the mean nanoseconds per flow.
func (g *gate) lives(n, live int, s *strangers) (ns float64, err error) {
	runtime.GC()
	chunks := n * ((live + chunkFrames - 1) / chunkFrames)
	var sum time.Duration
	for range chunks {
		spent, err := g.greet(s, flowLife*chunkFrames/time.Duration(live))
		if err != nil {
			return 0, err
		}
		sum += spent
	}
	return float64(sum.Nanoseconds()) / float64(chunks*chunkFrames), nil
}

// strangers are clients that send a single packet.
type strangers struct {
	proto uint8
	next  int
}

func (s *strangers) flow() flow {
	n := s.next
	s.next++
	return flow{client: clientBase4 + 1<<20 + uint32(n/clientPorts), clientPort: uint16(firstPort + n%clientPorts),
		proto: s.proto}
}

// greet measures a chunk of first packets, after advancing the time by pace. Packets arrive in
// bursts of as many flows as a step opens, so that new flows are measured and not a flood.
func (g *gate) greet(s *strangers, pace time.Duration) (time.Duration, error) {
	var b [128]byte
	for i := range chunkFrames {
		f := s.flow()
		if !g.nic.Inject(b[:g.w.frame(&b, &f, opening, uint32(i))]) {
			return 0, fmt.Errorf("the link took %d packets and no more", i)
		}
	}
	g.now += uint64(pace)
	g.nic.SetBurst(fastpath.OpensPerStep)
	defer g.nic.SetBurst(0)
	return g.chunk(chunkFrames)
}

package pipeline

import (
	"runtime"
	"strconv"
	"time"

	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/header"
)

const (
	fillCapacity = 1_000_000
	fillTarget   = 1.3
	longLife     = 300 * 24 * time.Hour
)

// fill compares a table that is nine tenths full with one that is half full: packets of its flows,
// and new flows. New flows expire and are swept before the next chunk, outside the measured time.
func (r *runner) fill() error {
	half, err := r.filled(fillCapacity / 2)
	if err != nil {
		return err
	}
	defer half.w.close()
	full, err := r.filled(fillCapacity / 10 * 9)
	if err != nil {
		return err
	}
	defer full.w.close()
	p := pair{
		params: map[string]string{"scenario": "fill", "family": "ipv4", "table": strconv.Itoa(fillCapacity),
			"packets": "clients"},
		name: "full", base: "50%", other: "90%", better: "lower", target: fillTarget,
		baseCost: r.lookups(half), otherCost: r.lookups(full),
	}
	if err := r.inTurns(p); err != nil {
		return err
	}
	p.params = with(p.params, "packets", "new flows, udp")
	var h, f strangers
	h.proto, f.proto = header.ProtoUDP, header.ProtoUDP
	p.baseCost = func() (float64, error) { return half.creates(&h, r.Chunks) }
	p.otherCost = func() (float64, error) { return full.creates(&f, r.Chunks) }
	return r.inTurns(p)
}

// filled makes a world whose open flows never expire, and whose other flows expire after two
// seconds.
func (r *runner) filled(flows int) (*gate, error) {
	r.say("fill: opening %d flows", flows)
	t := flowtable.DefaultTimeouts()
	t.Established, t.UDPReplied, t.UDPUnreplied = longLife, longLife, time.Second
	return r.populated(worldConfig{services: 1, backends: 64, capacity: fillCapacity, timeouts: t}, flows)
}

// creates returns the median nanoseconds per new flow.
func (g *gate) creates(s *strangers, chunks int) (float64, error) {
	runtime.GC()
	var each []time.Duration
	for range chunks {
		spent, err := g.greet(s, 0)
		if err != nil {
			return 0, err
		}
		each = append(each, spent)
		for range 9 { // the first two make them expire, the others sweep the whole table
			g.now += uint64(time.Second)
			g.Step(g.now)
		}
	}
	return perPacket(each, chunkFrames), nil
}

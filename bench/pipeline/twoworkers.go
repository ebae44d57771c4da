package pipeline

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"sluice.dev/sluice/test/bed/machine"
)

const twoTarget = 1.9

// twoWorkers runs two workers on two cores over one table. "own": all packets of a flow come to the
// same worker. "crossed": every reply comes to the other worker.
func (r *runner) twoWorkers() error {
	if runtime.NumCPU() < 2 {
		r.say("two workers: left out, there is one core")
		return nil
	}
	r.say("two workers: opening %d flows", liveFlows)
	w, err := newWorld(worldConfig{services: 1, backends: 64, capacity: roomFor(liveFlows)})
	if err != nil {
		return err
	}
	defer w.close()
	flows := w.addClients(liveFlows, r.rnd)
	for id := range 2 {
		g, err := w.addGate(id, 2)
		if err == nil {
			err = g.open(halves(flows)[id])
		}
		if err != nil {
			return err
		}
	}
	for _, how := range []string{"own", "crossed"} {
		err := r.inTurns(pair{
			params: map[string]string{"scenario": "two-workers", "family": "ipv4", "flows": strconv.Itoa(liveFlows),
				"packets": "both", "replies": how},
			name: "workers", base: "1", other: "2", better: "higher", target: twoTarget,
			baseCost:  func() (float64, error) { return w.gates[0].sample(load{mixed: true}, r.Chunks, r.rnd) },
			otherCost: func() (float64, error) { return w.together(r.Chunks, r.CPU, how == "crossed") },
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func halves(flows []flow) [2][]flow {
	return [2][]flow{flows[:len(flows)/2], flows[len(flows)/2:]}
}

// together runs both workers at once, chunk by chunk, each chunk starting at the same time. It
// returns the nanoseconds between two packets of both workers together.
func (w *world) together(chunks, cpu int, crossed bool) (float64, error) {
	runtime.GC()
	var gather barrier
	var each [2][]time.Duration
	errs := make(chan error, 2)
	for id, g := range w.gates {
		on := (cpu + runtime.NumCPU() - id) % runtime.NumCPU()
		go func() {
			errs <- machine.OnCPU(on, func() (err error) {
				each[id], err = g.inStep(&gather, id, chunks, crossed)
				return err
			})
		}()
	}
	var failed error
	for range w.gates {
		if err := <-errs; err != nil && failed == nil {
			failed = err
		}
	}
	if failed != nil {
		return 0, failed
	}
	rate := 0.0 // packets per nanosecond
	for _, e := range each {
		rate += 1 / perPacket(e, chunkFrames)
	}
	return 1 / rate, nil
}

// inStep measures chunks of one of two workers.
func (g *gate) inStep(gather *barrier, id, chunks int, crossed bool) (each []time.Duration, err error) {
	defer gather.leave()
	rnd := rand.New(rand.NewPCG(3, uint64(id)))
	flows := halves(g.w.flows)
	mine, theirs := flows[id], flows[id]
	if crossed {
		theirs = flows[1-id]
	}
	for range chunks + chunks/10 + 2 {
		if err := g.injectBoth(mine, theirs, rnd); err != nil {
			return nil, err
		}
		gather.wait()
		spent, err := g.chunk(chunkFrames)
		if err != nil {
			return nil, err
		}
		each = append(each, spent)
	}
	return slices.Clip(each[chunks/10+2:]), nil
}

// injectBoth gives the link a chunk of packets: from clients of some flows and from backends of
// others.
func (g *gate) injectBoth(clients, backends []flow, rnd *rand.Rand) error {
	var b [128]byte
	for i := range chunkFrames {
		f, k := &clients[rnd.IntN(len(clients))], fromClient
		if rnd.Uint64()&1 == 0 {
			f, k = &backends[rnd.IntN(len(backends))], fromBackend
		}
		if !g.nic.Inject(b[:g.w.frame(&b, f, k, uint32(i))]) {
			return fmt.Errorf("the link took %d packets and no more", i)
		}
	}
	return nil
}

// barrier synchronizes two goroutines. It spins: a wake-up takes longer than a chunk.
type barrier struct{ arrived, left atomic.Int32 }

func (b *barrier) wait() {
	n := b.arrived.Add(1)
	for b.arrived.Load() < (n+1)&^1 && b.left.Load() == 0 {
		runtime.Gosched()
	}
}

// leave makes every wait return at once, because one goroutine has ended.
func (b *barrier) leave() { b.left.Add(1) }

package pipeline

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync/atomic"
	"time"

	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/test/bed/machine"
)

const (
	updatesPerSecond = 1000
	updatesTarget    = 0.95
	// updatesGOGC is the daemon's setting: the publisher makes garbage.
	updatesGOGC = 400
)

// updates sends packets while another thread publishes a thousand snapshots per second, each with
// one Service of ten thousand changed, and without a publisher.
func (r *runner) updates() error {
	r.say("updates: opening %d flows", servicesFewFlows)
	g, err := r.populated(worldConfig{services: manyServices, backends: serviceBackends,
		capacity: roomFor(servicesFewFlows)}, servicesFewFlows)
	if err != nil {
		return err
	}
	defer g.w.close()
	defer debug.SetGCPercent(debug.SetGCPercent(updatesGOGC))
	quiet := r.lookups(g)
	return r.inTurns(pair{
		params: map[string]string{"scenario": "updates", "family": "ipv4", "flows": strconv.Itoa(servicesFewFlows),
			"services": strconv.Itoa(manyServices)},
		name: "updates", base: "0/s", other: strconv.Itoa(updatesPerSecond) + "/s", better: "higher",
		target:   updatesTarget,
		baseCost: quiet,
		otherCost: func() (float64, error) {
			p := g.w.startPublisher(r.CPU)
			ns, err := quiet()
			if shortfall := p.stop(); err == nil {
				err = shortfall
			}
			return ns, err
		},
	})
}

// publisher changes Services in turn until it is stopped.
type publisher struct {
	w     *world
	ended atomic.Bool
	done  chan error
}

// startPublisher starts a publisher on the CPU after the worker's.
func (w *world) startPublisher(workerCPU int) *publisher {
	p := &publisher{w: w, done: make(chan error, 1)}
	cpu := (workerCPU + 1) % runtime.NumCPU()
	go func() { p.done <- machine.OnCPU(cpu, p.run) }()
	return p
}

// stop ends the publisher. It returns an error if it reached less than nine tenths of its rate.
func (p *publisher) stop() error {
	p.ended.Store(true)
	return <-p.done
}

func (p *publisher) run() error {
	began := time.Now()
	published := 0
	for ; !p.ended.Load(); published++ {
		b := services.NewBuilder(p.w.handle.Load())
		// One endpoint stops taking new flows, then takes them again. It remains a backend: its
		// open flows continue.
		p.w.serve(b, published/2%p.w.services, p.w.backends-1+published%2)
		p.w.handle.Store(b.Build())
		time.Sleep(time.Until(began.Add(time.Duration(published+1) * time.Second / updatesPerSecond)))
	}
	if took := time.Since(began); float64(published) < 0.9*updatesPerSecond*took.Seconds()-1 {
		return fmt.Errorf("only %d updates were published in %v: the machine is too busy", published, took)
	}
	return nil
}

package l2fwd

import (
	"context"
	"errors"
	"runtime"
	"time"

	"sluice.dev/sluice/bench/results"
)

// stepTrial times what the forwarder does with a given number of waiting packets, on one
// thread: the source sends them, then the worker's step is timed. Neighbours on the machine
// spoil a few steps and not their median, so differences of a few percent show where
// rates under load do not. What it leaves out is that packets come from another core.
type stepTrial struct {
	setup
	packets int // waiting at each step
	cpu     int
	steps   int
}

// stepOutcome is in nanoseconds per packet, medians over the steps.
type stepOutcome struct{ worker, source float64 }

const (
	settle   = 50               // steps that go before those that count
	lostWait = time.Millisecond // after which a packet that did not come is lost
)

func (t *stepTrial) run(ctx context.Context) (o stepOutcome, err error) {
	t.queues = 1
	l, err := t.openLab(ctx, t.cpu)
	if err != nil {
		return o, err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	c := l.forwarder(&t.setup)
	if err := c.setDefaults(); err != nil {
		return o, err
	}
	f := &forwarder{c: &c}
	defer func() { err = errors.Join(err, f.close()) }()
	if err := l.net.Gateway.Run(func() error { return f.open(ctx) }); err != nil {
		return o, err
	}
	if err := l.set(t.devices); err != nil {
		return o, err
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the pinned thread ends with the goroutine
		err := pin(t.cpu)
		if err == nil {
			o = t.measure(ctx, f.workers[0], l.sources[0])
		}
		done <- err
	}()
	return o, errors.Join(<-done, ctx.Err())
}

func (t *stepTrial) measure(ctx context.Context, w *worker, src *source) (o stepOutcome) {
	worker, source := make([]float64, 0, t.steps), make([]float64, 0, t.steps)
	for i := range settle + t.steps {
		if ctx.Err() != nil {
			break
		}
		began := time.Now()
		for sent := 0; sent < t.packets; {
			sent += src.sendBatch(t.packets - sent)
		}
		filled := time.Now()
		moved, ended := 0, filled
		for moved < t.packets && ended.Sub(filled) < lostWait {
			moved += w.step()
			ended = time.Now()
		}
		if i >= settle && moved == t.packets {
			source = append(source, float64(filled.Sub(began))/float64(t.packets))
			worker = append(worker, float64(ended.Sub(filled))/float64(t.packets))
		}
	}
	return stepOutcome{worker: median(worker), source: median(source)}
}

func median(v []float64) float64 { return (&results.Point{Samples: v}).Median() }

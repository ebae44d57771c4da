package l2fwd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"sluice.dev/sluice/bench/procstat"
	"sluice.dev/sluice/bench/topo"
)

// The laboratory of this package: a source, the forwarder and a counter, each in a
// network namespace of its own, joined by veth pairs.
//
//	client: source ══ front0 · Run · back0 ══ counter: backend
//
// The sender on a veth also runs the softirq of the receiving half: the source's CPU puts packets
// into the forwarder's UMEM, and the worker's CPU counts them at the backend.

// setup is what is measured: a configuration, and how the devices are set.
type setup struct {
	config  Config
	queues  int
	devices []setting // once everything is attached
}

// setting is an attribute of a device (/sys/class/net/DEV).
type setting struct {
	host             string // "gateway" or "backend"
	dev, name, value string
}

// lab is the network with source and counter, without a forwarder.
type lab struct {
	net     *topo.Net
	counter *sink
	sources []*source
}

// openLab builds it. The sources are not running yet.
func (s *setup) openLab(ctx context.Context, sourceCPU int) (l *lab, err error) {
	l = new(lab)
	defer func() {
		if err != nil {
			err = errors.Join(err, l.close())
		}
	}()
	if l.net, err = topo.New(topo.Config{Direct: true, Queues: s.queues}); err != nil {
		return l, err
	}
	client, gateway, backend := l.net.Clients[0], l.net.Gateway, l.net.Backends[0]
	err = backend.Run(func() error {
		ifi, err := net.InterfaceByName("eth0")
		if err == nil {
			l.counter, err = openSink(ifi.Index)
		}
		return err
	})
	if err != nil {
		return l, err
	}
	for q := range s.queues {
		err := client.Run(func() error {
			src, err := openSource(ctx, "eth0", q, sourceCPU, gateway.Interfaces[0].MAC, client.Interfaces[0].MAC)
			if err == nil {
				l.sources = append(l.sources, src)
			}
			return err
		})
		if err != nil {
			return l, err
		}
	}
	return l, nil
}

// forwarder is the configuration for this network.
func (l *lab) forwarder(s *setup) Config {
	c := s.config
	c.In, c.Out = Side{"front0", l.net.Clients[0].Interfaces[0].MAC}, Side{"back0", l.net.Backends[0].Interfaces[0].MAC}
	c.Queues = s.queues
	return c
}

// set changes devices. Some have no NAPI before the forwarder is attached.
func (l *lab) set(list []setting) error {
	for _, s := range list {
		host := l.net.Gateway
		if s.host == "backend" {
			host = l.net.Backends[0]
		}
		if err := host.SetDevice(s.dev, s.name, s.value); err != nil {
			return err
		}
	}
	return nil
}

func (l *lab) close() error {
	var errs []error
	for _, s := range l.sources {
		errs = append(errs, s.close())
	}
	if l.counter != nil {
		errs = append(errs, l.counter.Close())
	}
	if l.net != nil {
		errs = append(errs, l.net.Close())
	}
	return errors.Join(errs...)
}

// flood is a measurement under load: sources and workers run at the same time.
type flood struct {
	setup
	rate      float64 // packets per second; 0: as fast as the sources can; negative: no packet
	sourceCPU int     // of the sources, the workers being on config.CPUs; negative: not pinned
	warmup    time.Duration
	window    time.Duration
}

// outcome is what a flood found, over its window.
type outcome struct {
	seconds         float64
	sent, received  uint64
	worker, source  time.Duration // CPU time of the threads
	system          time.Duration // busy time of all CPUs, of all processes
	latency         latencies
	ebusy           uint64
	kicks, sleeps   uint64
	dropped, passes uint64
}

// perPacket is d over the packets that arrived, in nanoseconds.
func (o *outcome) perPacket(d time.Duration) float64 {
	return float64(d) / float64(max(1, o.received))
}

// lost is the part of what was sent that did not arrive, in percent; less than 0 where what
// was under way at the beginning is more than what was lost.
func (o *outcome) lost() float64 {
	if o.sent == 0 {
		return 0
	}
	return 100 * (1 - float64(o.received)/float64(o.sent))
}

func (o *outcome) mpps() float64 { return float64(o.received) / o.seconds / 1e6 }

// run builds the network, measures and takes it down.
func (t *flood) run(ctx context.Context) (o outcome, err error) {
	l, err := t.openLab(ctx, t.sourceCPU)
	if err != nil {
		return o, err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	inside, cancel := context.WithCancel(ctx)
	defer cancel()
	c := l.forwarder(&t.setup)
	ready, ended := make(chan *Stats, 1), make(chan error, 1)
	c.Ready = func(s *Stats) { ready <- s }
	go func() { ended <- l.net.Gateway.Run(func() error { return Run(inside, c) }) }()
	var stats *Stats
	select {
	case stats = <-ready:
	case err := <-ended:
		return o, errors.Join(errors.New("l2fwd: the forwarder ended before it forwarded"), ctx.Err(), err)
	}
	if err = l.set(t.devices); err == nil {
		o, err = t.measure(ctx, l, stats)
	}
	cancel()
	return o, errors.Join(err, <-ended)
}

// measure runs the sources and takes the difference of two readings.
func (t *flood) measure(parent context.Context, l *lab, stats *Stats) (o outcome, err error) {
	ctx, cancel := context.WithCancel(parent)
	ended, running := make(chan error, len(l.sources)), 0
	if t.rate >= 0 {
		for _, s := range l.sources {
			s.rate = t.rate / float64(len(l.sources))
			running++
			go func() { ended <- s.run(ctx) }()
		}
	}
	defer func() {
		cancel()
		for range running {
			err = errors.Join(err, <-ended)
		}
	}()
	for _, s := range l.sources[:running] {
		select {
		case <-s.up:
		case err := <-ended:
			running--
			return o, err
		}
	}
	if err := topo.Pause(ctx, t.warmup); err != nil {
		return o, err
	}
	before, err := l.read(stats)
	if err != nil {
		return o, err
	}
	began := time.Now()
	if err := topo.Pause(ctx, t.window); err != nil {
		return o, err
	}
	seconds := time.Since(began).Seconds()
	after, err := l.read(stats)
	if err != nil {
		return o, err
	}
	o = after.since(&before)
	o.seconds = seconds
	return o, nil
}

// read is all that is counted, since the beginning.
func (l *lab) read(stats *Stats) (o outcome, err error) {
	for _, s := range l.sources {
		o.sent += s.sent.Load()
		if tid := s.tid.Load(); tid != 0 {
			d, err := threadCPU(int(tid))
			if err != nil {
				return o, err
			}
			o.source += d
		}
	}
	for _, w := range stats.Workers {
		d, err := threadCPU(int(w.Thread.Load()))
		if err != nil {
			return o, err
		}
		o.worker += d
	}
	t := stats.Totals()
	o.kicks, o.passes, o.sleeps, o.ebusy, o.dropped = t.Kicks, t.Steps, t.Sleeps, t.Busy, t.Dropped
	all, err := procstat.Read()
	if err != nil {
		return o, fmt.Errorf("l2fwd: %w", err)
	}
	o.system = all.User + all.System + all.Interrupts
	o.latency, err = l.counter.read()
	o.received = o.latency.total()
	return o, err
}

func (o *outcome) since(b *outcome) outcome {
	return outcome{
		sent: o.sent - b.sent, received: o.received - b.received,
		worker: o.worker - b.worker, source: o.source - b.source, system: o.system - b.system,
		kicks: o.kicks - b.kicks, passes: o.passes - b.passes, sleeps: o.sleeps - b.sleeps, ebusy: o.ebusy - b.ebusy,
		dropped: o.dropped - b.dropped, latency: o.latency.since(&b.latency),
	}
}

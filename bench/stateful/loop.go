package stateful

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// driver steps an engine on a thread of its own.
type driver struct {
	engine *Engine
	fd     int

	stopOpening, stop atomic.Bool // written by other goroutines, read once per step
	done              chan struct{}
	ready             atomic.Bool // the gateway's MAC is known

	mu      sync.Mutex // guards the published copies
	counts  []Counts
	packets PacketCounts
}

const (
	publishEvery = 50 * time.Millisecond
	// A driver spins for spinFor without work before it sleeps for sleepFor at most: timers and new
	// connections may be late by that.
	spinFor  = 20 * time.Microsecond
	sleepFor = 500 * time.Microsecond
)

// drive starts the engine. Its Stats belong to the caller again after done is closed.
func drive(e *Engine) *driver {
	d := &driver{engine: e, fd: e.link.FD(), done: make(chan struct{}), counts: make([]Counts, len(e.stats.Templates))}
	go d.loop()
	return d
}

func (d *driver) loop() {
	defer close(d.done)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	fds := []unix.PollFd{{Fd: int32(d.fd), Events: unix.POLLIN}}
	var published, worked uint64
	for !d.stop.Load() {
		now := clock()
		if d.stopOpening.Load() {
			d.engine.Stop()
		}
		if d.engine.Step(now) > 0 {
			worked = now
		}
		if now-published >= uint64(publishEvery) {
			d.publish()
			published = now
		}
		if now-worked > uint64(spinFor) {
			limit := unix.NsecToTimespec(int64(sleepFor))
			_, _ = unix.Ppoll(fds, &limit, nil) // EINTR, or the link is gone: the next step reports it
		}
	}
	d.publish()
}

// publish copies the figures that other goroutines may read while the engine runs.
func (d *driver) publish() {
	d.ready.Store(d.engine.Ready())
	d.mu.Lock()
	defer d.mu.Unlock()
	copy(d.counts, d.engine.stats.Templates)
	d.packets = d.engine.stats.Packets
}

// seen returns the figures published last.
func (d *driver) seen() ([]Counts, PacketCounts) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.counts), d.packets
}

func (d *driver) total() (c Counts) {
	counts, _ := d.seen()
	for i := range counts {
		c.add(&counts[i])
	}
	return c
}

// end stops the loop and waits for it.
func (d *driver) end() {
	d.stop.Store(true)
	<-d.done
}

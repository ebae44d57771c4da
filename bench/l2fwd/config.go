package l2fwd

import (
	"errors"
	"fmt"
	"sync/atomic"

	"sluice.dev/sluice/config"
)

// MAC is an Ethernet address.
type MAC [6]byte

// Side is one of the two interfaces.
type Side struct {
	Interface string
	// Next is the destination of packets that leave here.
	Next MAC
}

// Config describes the interfaces to forward between, and how. The zero value of every field except
// the names of the interfaces selects the gateway's default.
type Config struct {
	In, Out Side
	Queues  int // 0: as many as the interface with fewer queues
	// CPUs to which workers are pinned: one worker on each, which has the queues in turn, as the
	// gateway's workers do. Several workers on one CPU would get more of it from the scheduler than
	// one, and alternate. Empty: a worker per queue, not pinned.
	CPUs []int
	// Waiting is how workers wait for packets, as in the gateway's configuration; WaitingShared if
	// empty.
	Waiting config.Waiting

	// Ready, if set, is called with the workers' statistics when forwarding has started.
	Ready func(*Stats)
}

func (c *Config) setDefaults() error {
	if c.In.Interface == "" || c.Out.Interface == "" || c.In.Interface == c.Out.Interface {
		return errors.New("l2fwd: name two interfaces to forward between")
	}
	switch c.Waiting {
	case "":
		c.Waiting = config.WaitingShared
	case config.WaitingShared, config.WaitingDedicated:
	default:
		return fmt.Errorf("l2fwd: waiting %q: want %s or %s", c.Waiting, config.WaitingDedicated, config.WaitingShared)
	}
	if c.Queues < 0 {
		return fmt.Errorf("l2fwd: %d queues", c.Queues)
	}
	return nil
}

// Stats are the workers' counters since they began. Any goroutine may read them.
type Stats struct{ Workers []*WorkerStats }

// WorkerStats are written by one worker, once per step.
type WorkerStats struct {
	Packets   atomic.Uint64 // received
	Forwarded atomic.Uint64 // accepted by the transmit ring
	Dropped   atomic.Uint64 // not accepted: ring full, or link down
	Steps     atomic.Uint64 // steps that moved packets
	Sleeps    atomic.Uint64
	Kicks     atomic.Uint64 // system calls that send
	Busy      atomic.Uint64 // EBUSY: the device dropped a packet
}

// Totals adds up the workers.
func (s *Stats) Totals() (t Totals) {
	for _, w := range s.Workers {
		t.Packets += w.Packets.Load()
		t.Forwarded += w.Forwarded.Load()
		t.Dropped += w.Dropped.Load()
		t.Steps += w.Steps.Load()
		t.Sleeps += w.Sleeps.Load()
		t.Kicks += w.Kicks.Load()
		t.Busy += w.Busy.Load()
	}
	return t
}

// Totals are the sums of WorkerStats at one time.
type Totals struct {
	Packets, Forwarded, Dropped, Steps, Sleeps, Kicks, Busy uint64
}

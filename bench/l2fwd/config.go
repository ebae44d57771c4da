package l2fwd

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"sluice.dev/sluice/control/config"
	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/fastpath/xsk"
)

// MAC is an Ethernet address.
type MAC [6]byte

// Side is one of the two interfaces.
type Side struct {
	Interface string
	// Next is who gets what leaves here. Zero: source and destination address are
	// exchanged, which is right only where the next hop is who sent the packet.
	Next MAC
}

// Config describes what to forward between, and how. The zero value of every field but
// the names of the interfaces is what the gateway has by default.
type Config struct {
	In, Out Side // may be one interface
	Queues  int  // 0: as many as the interface with fewer queues has
	// CPUs to pin workers to: one on each, which has the queues in turn, as the gateway's workers
	// do. Several on one CPU would get more of it from the scheduler than one, and take turns.
	// Empty: a worker per queue, not pinned.
	CPUs []int

	Batch     int // packets per Receive, fastpath.BatchSize if 0
	RingSize  int // of each ring; there are two frames for each of its descriptors
	FrameSize int // in bytes
	Mode      xsk.Mode
	// TxBudget is how many packets one system call may send; 0: the transmit ring.
	TxBudget int
	// Waiting is how workers wait, as the gateway's setting of that name; WaitingShared if empty.
	Waiting config.Waiting
	// Spin and Sleep are fastpath.Waiting's, by default those that Waiting stands for; negative
	// Spin never sleeps.
	Spin, Sleep time.Duration
	// SpinAsWorked bounds spinning, all in all, by the time that was spent on packets, too: CPU
	// time is then at most twice that of the work, and sleeping.
	SpinAsWorked bool
	// Coalesce is Waiting's, too; 0 is the default, less than 0 never.
	Coalesce time.Duration

	// Ready, if set, is called once packets are forwarded, with the workers' statistics.
	Ready func(*Stats)
}

func (c *Config) setDefaults() error {
	if c.In.Interface == "" || c.Out.Interface == "" {
		return errors.New("l2fwd: name the interfaces to forward between")
	}
	d := config.Default()
	switch c.Waiting {
	case "":
		c.Waiting = config.WaitingShared
	case config.WaitingShared, config.WaitingDedicated:
	default:
		return fmt.Errorf("l2fwd: waiting %q: it is %s or %s", c.Waiting, config.WaitingDedicated, config.WaitingShared)
	}
	waits := config.WaitsOf(c.Waiting)
	if c.RingSize == 0 {
		c.RingSize = d.Tuning.RingSize
	}
	if c.FrameSize == 0 {
		c.FrameSize = 2048 // what auto chooses for veth
	}
	if c.Batch == 0 {
		c.Batch = fastpath.BatchSize
	}
	if c.Spin == 0 {
		c.Spin, c.SpinAsWorked = waits.Spin.D(), waits.SpinAsWorked
	}
	if c.Coalesce == 0 {
		c.Coalesce = waits.Coalesce.D()
	}
	c.Coalesce = max(c.Coalesce, 0)
	if c.Sleep == 0 {
		c.Sleep = d.Tuning.Sleep.D()
	}
	if c.Batch < 1 || c.Queues < 0 {
		return fmt.Errorf("l2fwd: batch of %d packets on %d queues: neither may be negative", c.Batch, c.Queues)
	}
	return nil
}

// Stats are what the workers did since they began. Any goroutine may read it.
type Stats struct{ Workers []*WorkerStats }

// WorkerStats are written by one worker, once per step.
type WorkerStats struct {
	Packets   atomic.Uint64 // received
	Forwarded atomic.Uint64 // taken by the transmit ring
	Dropped   atomic.Uint64 // not taken: ring full, or link down
	Steps     atomic.Uint64 // that moved packets
	Sleeps    atomic.Uint64
	Kicks     atomic.Uint64 // system calls that send
	Busy      atomic.Uint64 // EBUSY: the device dropped a packet
	Thread    atomic.Int32  // its thread's ID, for its CPU time
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

// Totals are WorkerStats at one time.
type Totals struct {
	Packets, Forwarded, Dropped, Steps, Sleeps, Kicks, Busy uint64
}

package config

import "time"

// Waiting is how workers wait for packets: a choice between latency and processor time.
type Waiting string

const (
	// WaitingDedicated: the CPUs are the gateway's. A worker on a CPU where no packets arrive looks
	// for packets for a long time before it sleeps; on a CPU where packets arrive, which needs its
	// time for receiving them, it waits as with WaitingShared.
	WaitingDedicated Waiting = "dedicated"
	// WaitingShared: others need the CPUs, too. Processor time follows load.
	WaitingShared Waiting = "shared"
)

// Waits is what a Waiting stands for.
type Waits struct {
	// Spin is how long a worker looks for packets before it sleeps.
	Spin Duration
	// SpinAsWorked: and no longer, in total, than it worked on packets.
	SpinAsWorked bool
	// Coalesce is how long a worker naps, instead of sleeping until the next packet, where at least
	// four packets are expected meanwhile; 0 is never.
	Coalesce Duration
}

// WaitsOf returns what w stands for on a CPU where no packets arrive; on others it is what
// WaitingShared stands for.
func WaitsOf(w Waiting) Waits {
	if w == WaitingShared {
		const us = Duration(time.Microsecond)
		return Waits{Spin: 20 * us, SpinAsWorked: true, Coalesce: 30 * us}
	}
	return Waits{Spin: Duration(time.Millisecond)}
}

// Waits returns how workers wait on a CPU where no packets arrive: as Waiting says, but for what
// Tuning has.
func (c *Configuration) Waits() Waits {
	w := WaitsOf(c.Waiting)
	w.Spin, w.Coalesce = c.Tuning.Spin, c.Tuning.Coalesce
	return w
}

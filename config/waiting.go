package config

import "time"

// Waiting is how workers wait for packets: a choice between latency and processor time.
type Waiting string

const (
	// WaitingDedicated: the CPUs belong to the gateway. A worker on a CPU where no packets arrive
	// polls for a long time before it sleeps. On a CPU where packets arrive, which needs its time
	// for receiving them, a worker waits as with WaitingShared.
	WaitingDedicated Waiting = "dedicated"
	// WaitingShared: other programs need the CPUs, too. Processor time follows load.
	WaitingShared Waiting = "shared"
)

// Waits has the times that a Waiting stands for.
type Waits struct {
	// Spin is how long a worker polls for packets before it sleeps.
	Spin Duration
	// SpinAsWorked: and no longer, in total, than it worked on packets.
	SpinAsWorked bool
	// Coalesce is how long a worker naps, instead of sleeping until the next packet, if it expects
	// at least four packets meanwhile; 0: never.
	Coalesce Duration
}

// MaxSleep bounds one sleep of a worker. Flows expire between sleeps. Two wake-ups a second cost no
// measurable processor time.
const MaxSleep = 500 * time.Millisecond

// WaitsOf returns the times of w on a CPU where no packets arrive; on others the times of
// WaitingShared apply.
func WaitsOf(w Waiting) Waits {
	if w == WaitingShared {
		const us = Duration(time.Microsecond)
		return Waits{Spin: 20 * us, SpinAsWorked: true, Coalesce: 30 * us}
	}
	return Waits{Spin: Duration(time.Millisecond)}
}

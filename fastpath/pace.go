package fastpath

import "time"

// Rest is the way in which a worker waits for packets.
type Rest uint8

const (
	// GoOn: do not wait; step again at once.
	GoOn Rest = iota
	// Nap: wait for Waiting.Coalesce, or LongNap, even if packets arrive.
	Nap
	// Break: wait for Waiting.Break, even if packets arrive.
	Break
	// Sleep: wait until a packet arrives.
	Sleep
)

// breakEvery is the time that a worker polls and works without a break, in nanoseconds.
const breakEvery = 500_000

// napPackets is the minimum number of packets that must be expected during a nap. For fewer packets
// it is cheaper to wake up for each, which also adds no latency.
const napPackets = 4

// Pace decides how a worker waits. Waking up for a packet costs more than forwarding it, and so
// does a system call that sends a single packet. So at a high packet rate the worker naps briefly
// and then takes all packets that have arrived, like a NIC that coalesces interrupts (ethtool -C,
// rx-usecs). At a low rate it polls a little longer, because the next packet is often close, and
// then sleeps until a packet arrives.
type Pace struct {
	c *Waiting

	lastWork uint64 // time of the last packet
	rested   uint64 // end of the last time that the worker left its CPU
	credit   uint64 // nanoseconds that may be spent polling without packets, at most Spin

	// The rate of packets, measured from one idle moment to the next.
	rate    float64 // per nanosecond
	counted uint64  // end of the last measurement
	packets uint64  // packets since counted
	stale   bool    // there was a packet or a nap since the last measurement
}

// NewPace returns the pace of a worker that starts at now, in nanoseconds.
func NewPace(c *Waiting, now uint64) *Pace {
	return &Pace{c: c, lastWork: now, counted: now, rested: now}
}

// After accounts for a step from time from to time to, in nanoseconds, that moved moved packets. It
// returns how the worker waits before its next step.
func (p *Pace) After(moved int, from, to uint64) Rest {
	if moved > 0 {
		p.packets += uint64(moved)
		p.lastWork, p.stale = to, true
		p.credit = min(p.credit+to-from, uint64(p.c.Spin))
		return GoOn
	}
	if p.stale && to > p.counted {
		const weight = 4 // of the past
		p.rate += (float64(p.packets)/float64(to-p.counted) - p.rate) / weight
		p.counted, p.packets, p.stale = to, 0, false
	}
	if p.rate*float64(p.c.Coalesce) >= napPackets {
		p.stale = true // a nap without packets also changes the rate
		return Nap
	}
	if p.c.Break > 0 && to-p.rested >= breakEvery {
		return Break
	}
	switch spent := to - from; {
	case to-p.lastWork >= uint64(p.c.Spin):
	case !p.c.SpinAsWorked:
		return GoOn
	case p.credit > spent:
		p.credit -= spent
		return GoOn
	}
	p.credit = 0
	return Sleep
}

// Rested records the end of a rest. A worker may also go on when After returns a rest.
func (p *Pace) Rested(at uint64) { p.rested = at }

// Waiting sets how workers wait for packets.
type Waiting struct {
	// Spin is how long workers poll for more packets before they sleep. A longer time lowers the
	// latency of the next packet and raises the cost of idle time.
	Spin time.Duration
	// SpinAsWorked limits the total time spent polling to the time spent on packets: CPU time then
	// follows the load, instead of reaching a whole core as soon as packets are less than Spin
	// apart.
	SpinAsWorked bool
	// Coalesce is the length of a nap. Workers nap if the packet rate is so high that some packets
	// are expected during a nap (Pace); 0 means never.
	Coalesce time.Duration
	// LongNap replaces Coalesce as the length of naps if it is longer. Coalesce still decides when
	// workers nap.
	LongNap time.Duration
	// Break is how long workers leave their CPU to other threads, every half millisecond and only
	// when no packets are waiting; 0 means never. It is for workers that poll all the time and have
	// a higher priority than all other threads.
	Break time.Duration
	// Quiet: naps, breaks, and the beginning of a sleep (thread.Poll) are system calls that the Go
	// scheduler does not know of. It is for real-time threads (thread.QuietNap).
	Quiet bool
	// Sleep bounds one sleep, so that flows expire on an idle gateway.
	Sleep time.Duration
}

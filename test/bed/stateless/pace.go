package stateless

import (
	"time"

	"sluice.dev/sluice/fastpath/thread"
)

const (
	// debtNanos is how far behind its schedule a sender may fall and still catch up. Older packets
	// are not sent at all; Sent.Rate shows it.
	debtNanos = 10_000_000
	// sleepAbove is the shortest wait for which the processor is given up.
	sleepAbove = 10_000
)

// pacer hands out packets at a rate. It is pure but for wait.
type pacer struct {
	start, end   uint64  // CLOCK_MONOTONIC, nanoseconds
	perNano      float64 // 0: as fast as possible
	burst, group uint64  // most at once; fewest, unless the trial ends
	limit, taken uint64
	forgiven     uint64 // packets that were due and will never be sent
	spin         bool
}

// newPacer is for a queue's part of a load (see part). together is for how long packets
// are collected to be sent at once.
func newPacer(l Load, start uint64, burst int, together uint64, spin bool) *pacer {
	p := &pacer{start: start, end: start + uint64(l.Duration), burst: uint64(burst), group: 1, limit: l.Packets,
		spin: spin}
	if l.Duration == 0 {
		p.end = start + uint64(MaxDuration)
	}
	if p.perNano = l.Rate / float64(time.Second); p.perNano > 0 {
		p.group = min(max(uint64(p.perNano*float64(together)), 1), p.burst)
	}
	return p
}

// due is how many packets to send now. It is over when done: the limit is reached, or
// the end has come and all that was due before it is sent.
func (p *pacer) due(now uint64) (n uint64, done bool) {
	if p.taken >= p.limit {
		return 0, true
	}
	if now < p.start {
		return 0, false
	}
	n = p.burst
	if p.perNano > 0 {
		elapsed := float64(min(now, p.end)) - float64(p.start)
		behind := uint64(max(elapsed, 0)*p.perNano) - min(p.taken+p.forgiven, uint64(max(elapsed, 0)*p.perNano))
		if most := uint64(p.perNano*debtNanos) + p.group; behind > most {
			p.forgiven += behind - most
			behind = most
		}
		if behind < p.group && now < p.end && p.taken+behind < p.limit {
			return 0, false
		}
		n = min(behind, p.burst)
	}
	if now >= p.end && (p.perNano == 0 || n == 0) {
		return 0, true
	}
	return min(n, p.limit-p.taken), false
}

// wait passes the time until the next group is due.
func (p *pacer) wait(now uint64) {
	at := p.start
	if now >= p.start { // then there is a rate, for without one something is always due
		at = min(p.start+uint64(float64(p.taken+p.forgiven+p.group)/p.perNano), p.end)
	}
	if p.spin || at < now+sleepAbove {
		return
	}
	// An early return only makes the caller ask again.
	thread.Nap(time.Duration(at - now))
}

package fastpath

// Rest is how a worker waits for packets.
type Rest uint8

const (
	// GoOn: poll again at once.
	GoOn Rest = iota
	// Nap: for RunConfig.Coalesce, also if packets come meanwhile.
	Nap
	// Sleep: until a packet comes.
	Sleep
)

// napPackets is how many packets must be expected in a nap: fewer are cheaper to be woken for one
// by one, and wait for nothing.
const napPackets = 4

// Pace decides how a worker waits. To be woken for a packet costs more than to forward it, and
// so does a system call to send one alone; so where packets come fast enough that
// some will be there, the worker naps for a moment and takes them together, as a NIC that
// coalesces interrupts does (ethtool -C, rx-usecs). Where they come one by one, it sleeps until
// the next one comes; and it polls a little longer before that, because the next is often close.
type Pace struct {
	c *RunConfig

	lastWork uint64 // when there was a packet last
	credit   uint64 // nanoseconds of polling in vain that packets have paid for, at most Spin

	// The rate of packets, from one time that there were none to the next.
	rate    float64 // per nanosecond
	counted uint64  // until when
	packets uint64  // since then
	stale   bool    // there was a packet, or a nap, since the rate was taken
}

// NewPace returns the pace of a worker that begins now, in nanoseconds.
func NewPace(c *RunConfig, now uint64) *Pace {
	return &Pace{c: c, lastWork: now, counted: now}
}

// After accounts for a step from one time to another that moved so many packets, and returns what
// to do next.
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
		p.stale = true // if nothing comes, that is news
		return Nap
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

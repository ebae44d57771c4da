package fastpath

// Rest is how a worker waits for packets.
type Rest uint8

const (
	// GoOn: poll again at once.
	GoOn Rest = iota
	// Nap: for Waiting.Coalesce, or LongNap, also if packets come meanwhile.
	Nap
	// Break: for Waiting.Break, also if packets come meanwhile.
	Break
	// Sleep: until a packet comes.
	Sleep
)

// breakEvery is how long a worker looks for packets, and works, without a break, in nanoseconds.
const breakEvery = 500_000

// napPackets is the least number of packets that must be expected during a nap. For fewer, waking
// up for each is cheaper and adds no latency.
const napPackets = 4

// Pace decides how a worker waits. Waking up for a packet costs more than forwarding it, and so
// does a system call to send a single packet. So if packets come fast enough, the worker naps for a
// moment and takes those that have come together, as a NIC that coalesces interrupts does (ethtool
// -C, rx-usecs). If they come one by one, it sleeps until the next one comes, after polling a
// little longer, because the next is often close.
type Pace struct {
	c *Waiting

	lastWork uint64 // when there was a packet last
	rested   uint64 // when the worker came back last after it had left its CPU
	credit   uint64 // nanoseconds that may be spent polling without packets, at most Spin

	// The rate of packets, measured from one idle moment to the next.
	rate    float64 // per nanosecond
	counted uint64  // end of the last measurement
	packets uint64  // since then
	stale   bool    // there was a packet, or a nap, since the rate was taken
}

// NewPace returns the pace of a worker that begins now, in nanoseconds.
func NewPace(c *Waiting, now uint64) *Pace {
	return &Pace{c: c, lastWork: now, counted: now, rested: now}
}

// After accounts for a step that took from one time to another and moved so many packets, and
// returns how to continue.
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
		p.stale = true // a nap without packets changes the rate, too
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

// Rested notes that the worker is back since a time. It does not rest each time that After says so.
func (p *Pace) Rested(at uint64) { p.rested = at }

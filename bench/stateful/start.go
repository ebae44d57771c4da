package stateful

import "time"

// starter begins a client's connections at the profile's rate.
type starter struct {
	cps         float64
	ramp        []RampStep
	concurrency int
	active      int // connections that count against concurrency

	due     float64 // connections due but not yet begun
	last    uint32  // microseconds
	turn    int     // in plan.turns
	target  int     // in Engine.targets
	tuple   int     // next combination of the pool's addresses and ports
	stopped bool
	began   uint64 // Engine.since at the first begin; 0: not yet
	touched uint32
}

func newStarter(p *Profile) starter {
	return starter{cps: p.CPS, ramp: p.Ramp, concurrency: p.Concurrency}
}

const (
	// begunPerStep bounds the new connections of one step, so that answers are not delayed.
	begunPerStep = 32
	// catchUp bounds the backlog that is made up after a stall, in seconds of the rate.
	catchUp = 0.05
	// tupleTries is how many addresses and ports are tried to find a free one.
	tupleTries = 64
)

// rate is the connections per second at a time since the beginning.
func (s *starter) rate(at time.Duration) float64 {
	from := RampStep{}
	for _, to := range s.ramp {
		if at < to.Until {
			part := float64(at-from.Until) / float64(to.Until-from.Until)
			return from.CPS + part*(to.CPS-from.CPS)
		}
		from = to
	}
	return s.cps
}

// begin begins the connections that are due. open begins one connection; false if no address and
// port is free.
func (e *Engine) begin() {
	s := &e.start
	if s.stopped {
		return
	}
	unlimited := s.cps == 0 && len(s.ramp) == 0
	if s.began == 0 {
		s.began, s.last = e.since, e.us
	}
	if !unlimited {
		rate := s.rate(time.Duration(e.since - s.began))
		s.due = min(s.due+rate*float64(e.us-s.last)/1e6, max(rate*catchUp, begunPerStep))
		s.last = e.us
	}
	for n := 0; n < begunPerStep && s.active < s.concurrency && (unlimited || s.due >= 1); n++ {
		if !e.open() {
			return
		}
		s.due--
	}
}

// open begins one connection; false if there is no address and port for it.
func (e *Engine) open() bool {
	s := &e.start
	number := e.plan.turns[s.turn]
	t := &e.plan.templates[number]
	k := key{peer: e.targets[s.target], peerPort: t.port, protocol: t.protocol}
	hash, found := e.freeTuple(&k)
	i := uint32(0)
	if found {
		i = e.allocate(&k, hash)
	}
	if i == 0 {
		e.stats.Packets.NoTuple++
		return false
	}
	if s.turn++; s.turn == len(e.plan.turns) {
		s.turn = 0
	}
	if s.target++; s.target == len(e.targets) {
		s.target = 0
	}
	c := &e.conns[i]
	c.template = number
	e.enter(c)
	if t.protocol == ProtocolUDP {
		c.state = exchange
		e.beginStep(i, c)
		return true
	}
	c.state = synSent
	e.setSequence(c)
	e.wake(i)
	return true
}

// freeTuple finds an address and port without a connection to the target. Addresses change faster
// than ports. A connection in TIME_WAIT keeps its address and port.
func (e *Engine) freeTuple(k *key) (hash uint32, found bool) {
	s := &e.start
	ports := int(e.mine.LastPort) - int(e.mine.FirstPort) + 1
	for range tupleTries {
		k.local = uint16(s.tuple % int(e.addresses))
		k.localPort = e.mine.FirstPort + uint16(s.tuple/int(e.addresses)%ports)
		if s.tuple++; s.tuple == int(e.addresses)*ports {
			s.tuple = 0
		}
		hash = k.hash(e.seed)
		if e.table.find(e.conns, k, hash) == 0 {
			return hash, true
		}
	}
	return 0, false
}

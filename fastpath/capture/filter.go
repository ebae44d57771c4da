package capture

import (
	"math/bits"
	"net/netip"
	"sync/atomic"

	"golang.org/x/net/bpf"

	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/reason"
)

// Endpoint selects sockets by address prefix and port. The zero Endpoint selects all.
type Endpoint struct {
	addr flowtable.Socket // its port is 0 for any
	mask flowtable.Socket
}

// NewEndpoint returns the Endpoint of a prefix and a port; port 0 is any.
func NewEndpoint(p netip.Prefix, port uint16) (e Endpoint) {
	if !p.IsValid() {
		return e
	}
	a := header.AddrFrom(p.Masked().Addr())
	n := p.Bits()
	if p.Addr().Is4() { // the mapped form
		n += 96
	}
	e.mask.Hi, e.mask.Lo = ^uint64(0), ^uint64(0)
	if n < 64 {
		e.mask.Hi, e.mask.Lo = ^(^uint64(0) >> n), 0
	} else if n < 128 {
		e.mask.Lo = ^(^uint64(0) >> (n - 64))
	}
	e.addr = flowtable.SocketOf(&a, port)
	return e
}

func (e *Endpoint) match(s flowtable.Socket) bool {
	return (s.Hi^e.addr.Hi)&e.mask.Hi|(s.Lo^e.addr.Lo)&e.mask.Lo == 0 && (e.addr.Port == 0 || e.addr.Port == s.Port)
}

// Filter selects packets. A packet must match all fields that are set.
type Filter struct {
	// Client, Frontend and Backend select both directions of flows. A packet without a flow matches
	// if it is from or to the address.
	Client, Frontend, Backend Endpoint
	// ByService: only packets of the service ports that Tap.SetServices has set.
	ByService bool
	// Reasons selects only packets that are dropped, and only at the drop, by a bit for each
	// reason; 0 selects all packets.
	Reasons uint64
	// Expression must match the bytes at each point; nil matches all.
	Expression *bpf.VM
}

// Reasons returns the bits of drop reasons for Filter.Reasons.
func Reasons(list ...reason.Drop) (mask uint64) {
	for _, r := range list {
		mask |= 1 << r
	}
	return mask
}

const _ = uint(64 - reason.Count) // Filter.Reasons has a bit for each

// Services is a set of service ports.
type Services struct{ words []uint64 }

// NewServices returns the set of the numbers in list (services.ServiceID).
func NewServices(list []uint32) *Services {
	s := &Services{}
	for _, id := range list {
		if n := int(id/64) + 1; n > len(s.words) {
			s.words = append(s.words, make([]uint64, n-len(s.words))...)
		}
		s.words[id/64] |= 1 << (id % 64)
	}
	return s
}

func (s *Services) has(id uint32) bool {
	return s != nil && id/64 < uint32(len(s.words)) && s.words[id/64]>>(id%64)&1 != 0
}

// Len returns the number of service ports in the set.
func (s *Services) Len() (n int) {
	for _, w := range s.words {
		n += bits.OnesCount64(w)
	}
	return n
}

// Tap is one capture of all workers.
type Tap struct {
	quick quick
	Filter
	Snap  int // bytes of each packet that are recorded, at most
	Rings []*Ring
	by    uint8 // fields of Filter that select by flow
	rate  rate
	// services is stored by the reader and loaded by workers.
	services atomic.Pointer[Services]
}

// quick selects flows that may match, by the address of a source.
type quick struct {
	use, v6    bool
	side       flowtable.Side
	addr, mask flowtable.Socket
}

func newQuick(e *Endpoint, side flowtable.Side) quick {
	return quick{use: true, v6: !e.addr.Is4(), side: side, addr: e.addr, mask: e.mask}
}

// Bits of Tap.by.
const (
	byClient = 1 << iota
	byFrontend
	byBackend
	byService
)

// NewTap returns a Tap for a number of workers. perSecond bounds the records of a second; 0: no
// bound. ringBytes is a power of two, and at least twice snap.
func NewTap(f Filter, snap, perSecond, workers, ringBytes int) *Tap {
	t := &Tap{Filter: f, Snap: snap}
	t.rate.each, t.rate.burst = spacing(perSecond)
	for bit, on := range map[uint8]bool{
		byClient: f.Client != Endpoint{}, byFrontend: f.Frontend != Endpoint{}, byBackend: f.Backend != Endpoint{},
		byService: f.ByService,
	} {
		if on {
			t.by |= bit
		}
	}
	if t.by&byClient != 0 {
		t.quick = newQuick(&f.Client, flowtable.ClientSide)
	}
	if t.by&byBackend != 0 {
		t.quick = newQuick(&f.Backend, flowtable.ReplySide)
	}
	for range workers {
		t.Rings = append(t.Rings, NewRing(ringBytes))
	}
	return t
}

// SetServices replaces the service ports of Filter.ByService.
func (t *Tap) SetServices(s *Services) { t.services.Store(s) }

// All reports whether packets of all flows match.
func (t *Tap) All() bool { return t.by == 0 }

// Plain reports whether the tap needs packets that are only forwarded.
func (t *Tap) Plain() bool { return t.Reasons == 0 || t.by != 0 }

// Prepaid reports whether a packet that matches is certainly recorded twice: where it arrives, and
// where it leaves or is dropped. Then Take is called for both at once, so that the rate does not
// separate them.
func (t *Tap) Prepaid() bool { return t.Reasons == 0 && t.Expression == nil }

// MatchGroup returns a bit for each of up to 31 packets of known flows: whether its flow matches.
// Like MatchFlow and MatchPacket it evaluates neither Reasons nor Expression.
func (t *Tap) MatchGroup(flows []*flowtable.Flow, group []flowtable.Search) (matched uint32) {
	if q := &t.quick; q.use {
		var maybe uint32
		if q.v6 {
			maybe = flowtable.From6(flows, group, q.side, &q.addr, &q.mask)
		} else {
			maybe = flowtable.MaybeFrom4(flows, q.side, uint32(q.addr.Lo), uint32(q.mask.Lo))
		}
		if maybe != 0 {
			matched = t.matchAll(maybe, flows, group)
		}
		return matched
	}
	maybe := uint32(1)<<len(flows) - 1
	if t.by == 0 {
		return maybe
	}
	if t.by&byService != 0 {
		maybe = 0
		services := t.services.Load()
		for i, f := range flows {
			if services.has(f.Service()) {
				maybe |= 1 << i
			}
		}
	}
	return t.matchAll(maybe, flows, group)
}

// matchAll returns the bits of maybe whose flows match.
func (t *Tap) matchAll(maybe uint32, flows []*flowtable.Flow, group []flowtable.Search) (matched uint32) {
	for ; maybe != 0; maybe &= maybe - 1 {
		i := bits.TrailingZeros32(maybe)
		if t.MatchFlow(flows[i], group[i].Family == header.PlainIPv6) {
			matched |= 1 << i
		}
	}
	return matched
}

// MatchFlow reports whether a live flow matches. v6 is its family.
func (t *Tap) MatchFlow(f *flowtable.Flow, v6 bool) bool {
	switch {
	case t.by == 0:
		return true
	case t.by&byService != 0 && !t.services.Load().has(f.Service()),
		t.by&byClient != 0 && !t.Client.match(f.Source(flowtable.ClientSide, v6)),
		t.by&byBackend != 0 && !t.Backend.match(f.Source(flowtable.ReplySide, v6)),
		t.by&byFrontend != 0 && !t.Frontend.match(f.Destination(flowtable.ClientSide, v6)):
		return false
	}
	return true
}

// MatchPacket is MatchFlow for a packet without a flow. service is the service port of its
// destination; 0 is none.
func (t *Tap) MatchPacket(src, dst flowtable.Socket, service uint32) bool {
	for _, e := range [...]*Endpoint{&t.Client, &t.Backend, &t.Frontend} {
		if !e.match(src) && !e.match(dst) {
			return false
		}
	}
	return !t.ByService || t.services.Load().has(service)
}

// MatchBytes reports whether the expression matches the bytes of a packet.
func (t *Tap) MatchBytes(b []byte) bool {
	if t.Expression == nil {
		return true
	}
	n, err := t.Expression.Run(b)
	return err == nil && n > 0
}

// Take reports whether n records of worker may be written now, and counts them if not.
func (t *Tap) Take(worker int, now uint64, n uint64) bool {
	if t.rate.take(now, n) {
		return true
	}
	t.Rings[worker].CountOver(n)
	return false
}

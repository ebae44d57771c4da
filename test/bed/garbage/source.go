package garbage

import (
	"math/rand/v2"
	"net/netip"

	"sluice.dev/sluice/nat/header/headertest"
)

// Flow is a flow that is open: both of its ends, before and behind the gateway.
type Flow struct {
	Proto        uint8
	Client, VIP  netip.AddrPort
	SNAT, Server netip.AddrPort
	// HostLink: the kernel carries packets to the server, and brings its answers.
	HostLink bool
}

// V6 reports the family.
func (f *Flow) V6() bool { return f.Client.Addr().Is6() }

// ends returns the addresses and ports of packets of one direction.
func (f *Flow) ends(fromServer bool) (src, dst netip.AddrPort) {
	if fromServer {
		return f.Server, f.SNAT
	}
	return f.Client, f.VIP
}

// Frame is a frame and where it comes from.
type Frame struct {
	Bytes      []byte
	Class      Class
	Flow       *Flow
	FromServer bool
}

// Source makes frames. It is not safe for concurrent use.
type Source struct {
	r *rand.Rand
	// places are addresses that claim to be ends, by family: 0 for IPv4.
	places [2][]netip.Addr
	flows  [2][]*Flow
	// Sound makes the transport checksums of whole packets right after a mutation, so that a
	// receiver counts only packets that the gateway should have dropped.
	Sound bool
}

// New returns a source. It claims to come from the places, among others, and to go there.
func New(seed uint64, places ...netip.Addr) *Source {
	s := &Source{r: rand.New(rand.NewPCG(seed, 15))}
	for v6, more := range [2][]string{odd4, odd6} {
		for _, a := range places {
			if a.Is6() == (v6 == 1) {
				s.places[v6] = append(s.places[v6], a)
			}
		}
		for _, a := range more {
			s.places[v6] = append(s.places[v6], netip.MustParseAddr(a))
		}
	}
	return s
}

// Aim replaces the flows whose packets are made. There must be one of each family.
func (s *Source) Aim(flows []*Flow) {
	s.flows = [2][]*Flow{}
	for _, f := range flows {
		s.flows[family(f.V6())] = append(s.flows[family(f.V6())], f)
	}
}

func family(v6 bool) int {
	if v6 {
		return 1
	}
	return 0
}

// Next returns a frame of a class that it draws, mostly mutated. The bytes are the caller's.
func (s *Source) Next() Frame {
	f := s.draw(Class(s.r.IntN(int(NumClasses))))
	if kind := s.r.IntN(10); kind > 1 { // two of ten stay as they are
		s.mutate(&f, kind)
	}
	return f
}

// draw returns any frame of a class.
func (s *Source) draw(c Class) Frame {
	v6 := c.V6(s.r.IntN(2) == 0)
	flows := s.flows[family(v6)]
	flow := flows[s.r.IntN(len(flows))]
	for range 4 { // a header of TCP reaches more code in a flow of TCP
		if proto := map[Class]uint8{TCPHeader: protoTCP, UDPHeader: protoUDP}[c]; proto == 0 || flow.Proto == proto {
			break
		}
		flow = flows[s.r.IntN(len(flows))]
	}
	return s.Frame(c, s.r.IntN(c.Count()), flow, s.r.IntN(2) == 0)
}

// Frame returns number n of a class, 0 to Count-1, as a packet of one direction of a flow, whose
// family must be one that the class has.
func (s *Source) Frame(c Class, n int, flow *Flow, fromServer bool) Frame {
	m := maker{s: s, flow: flow, fromServer: fromServer, v6: flow.V6(), n: n}
	b := classes[c].make(&m)
	return Frame{Bytes: b, Class: c, Flow: flow, FromServer: m.fromServer}
}

// maker makes one frame. take reads its number as digits of mixed base.
type maker struct {
	s          *Source
	flow       *Flow
	fromServer bool
	v6         bool
	n          int
}

// take returns the next digit of the number, of a base.
func (m *maker) take(base int) int {
	d := m.n % base
	m.n /= base
	return d
}

// of returns the value that the next digit picks.
func of[T any](m *maker, values []T) T { return values[m.take(len(values))] }

// packet describes a good packet of the flow.
func (m *maker) packet() *headertest.Packet {
	src, dst := m.flow.ends(m.fromServer)
	return between(m.flow.Proto, src, dst)
}

// between describes a good packet of a protocol from one end to the other.
func between(proto uint8, src, dst netip.AddrPort) *headertest.Packet {
	p := &headertest.Packet{Src: src.Addr(), Dst: dst.Addr(), SrcPort: src.Port(), DstPort: dst.Port(), Proto: proto}
	switch proto {
	case protoTCP:
		p.Flags, p.Seq, p.Ack = headertest.ACK, 0x01020304, 0x05060708
		p.Payload = []byte("some bytes of a stream")
	case protoUDP:
		p.Payload = []byte("a datagram")
	case protoSCTP:
		p.Chunk, p.Tag, p.Payload = 3, 0x0a0b0c0d, make([]byte, 12) // SACK (RFC 9260 section 3.3.4)
	}
	return p
}

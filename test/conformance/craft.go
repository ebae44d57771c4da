package conformance

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"

	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/test/bed/topo"
)

// Chunk types of RFC 9260 section 3.2, and the verification tag that headertest's INIT
// and INIT ACK require of the peer.
const (
	chunkInit, chunkInitAck           = 1, 2
	chunkHeartbeat, chunkHeartbeatAck = 4, 5
	chunkCookieEcho, chunkCookieAck   = 10, 11
	initiateTag                       = 0x01020304
)

const protoICMP, protoTCP, protoUDP, protoICMPv6, protoSCTP = 1, 6, 17, 58, 132

// association is an SCTP association between two packet sockets. The kernels at both
// ends may know no SCTP; they then object by ICMP protocol unreachable, which nobody
// reads.
type association struct {
	client, frontend netip.AddrPort
	backend          int
	source, target   netip.AddrPort // as the backend sees them
}

// crafter is the wires of one crafted exchange: client 0 first, then the backends.
type crafter struct {
	w     *world
	wires []*wire
	// answers is what arrived for the client while something else was waited for.
	answers []*seen
	refused bool // an ICMP error is the backend's answer
}

func newCrafter(w *world) (*crafter, error) {
	c := &crafter{w: w}
	for i, h := range append([]*topo.Host{w.Clients[0]}, w.Backends[:backends]...) {
		gateway := w.Gateway.Interfaces[min(i, 1)].MAC
		x, err := openWire(h, gateway)
		if err != nil {
			c.close()
			return nil, err
		}
		c.wires = append(c.wires, x)
	}
	return c, nil
}

func (c *crafter) close() {
	for _, w := range c.wires {
		w.close()
	}
}

// craft is a probe of crafted frames.
func (r *prober) craft(c *Case, p *probe) ([]answer, error) {
	x, err := newCrafter(r.w)
	if err != nil {
		return nil, err
	}
	defer x.close()
	switch p.how {
	case "syn":
		return x.syn(p)
	case "ping":
		return x.ping(p)
	case tagged + "tcp", tagged + "udp":
		return x.tagged(p)
	case fragments:
		return x.fragments(p)
	case unreachable:
		return x.unreachable(p)
	case tooBig:
		return x.tooBig(p)
	case late:
		return x.late(r, p)
	}
	key := c.ID() + "/" + p.keep
	r.mu.Lock()
	defer r.mu.Unlock()
	if k := r.kept[key]; k != nil {
		return x.goOn(k.sctp, chunkHeartbeat, chunkHeartbeatAck)
	}
	a, answers, err := x.begin(p)
	if a != nil && err == nil && p.keep != "" {
		r.kept[key] = &keptFlow{sctp: a}
		return x.goOn(a, chunkCookieEcho, chunkCookieAck)
	}
	return answers, err
}

// lastCraftedPort is the source port that the last crafted flow took: they count from
// here, below what hosts give out by themselves.
var lastCraftedPort atomic.Uint32

func craftedPort() uint16 { return uint16(5000 + lastCraftedPort.Add(1)) }

// forward sends a packet from the client and returns the backend that it reached, or the error that
// the client got.
func (c *crafter) forward(p *headertest.Packet, from netip.AddrPort, proto, kind uint8) (*seen, answer, error) {
	a := answer{client: from.Addr().String()}
	if err := c.wires[0].send(c.w.Clients[0], p); err != nil {
		return nil, a, err
	}
	s, err := await(c.wires, patience, func(s *seen) bool {
		if s.at == 0 {
			if s.dst == from || s.quoted == from {
				c.answers = append(c.answers, s)
			}
			return s.quoted == from && !s.noProtocol() && !c.refused
		}
		if proto == protoTCP && s.seq != craftedSeq || proto == protoUDP && !bytes.Equal(s.data, p.Payload) {
			return false // of somebody else's flow
		}
		return s.proto == proto && s.kind == kind && s.dst.Port() >= backendPorts[0] && s.dst.Port() < backendPorts[0]+
			10
	})
	switch {
	case err != nil:
		return nil, a, err
	case s == nil:
		a.verdict = drop
	case s.at == 0:
		a.verdict = icmpVerdict(s.proto == protoICMPv6, s.kind, s.code)
	default:
		a.backend, a.source = backendName(s.at-1), s.src.Addr().String()
		if err := headertest.Verify(s.frame); err != nil {
			a.verdict = "damaged: " + err.Error()
		}
	}
	if a.verdict != "" {
		return nil, a, nil
	}
	return s, a, nil
}

// begin sends an INIT, again if it does not arrive, and the INIT ACK from wherever it does.
func (c *crafter) begin(p *probe) (*association, []answer, error) {
	to := p.to[0].to
	_, from := c.w.client(p.from, to.Addr().Is6(), 0)
	a := &association{client: netip.AddrPortFrom(from, craftedPort()), frontend: to}
	init := headertest.SCTP(a.client.String(), to.String(), chunkInit)
	got, answered, err := c.forward(init, a.client, protoSCTP, chunkInit)
	if answered.verdict == drop { // once more, as a client does (RFC 9260 section 5.1, T1-init)
		got, answered, err = c.forward(init, a.client, protoSCTP, chunkInit)
	}
	if got == nil {
		return nil, []answer{answered}, err
	}
	a.backend, a.source, a.target = got.at-1, got.src, got.dst
	return a, []answer{answered}, c.reply(a, chunkInitAck)
}

// reply sends a chunk from the backend, which must arrive from the frontend.
func (c *crafter) reply(a *association, chunk uint8) error {
	p := headertest.SCTP(a.target.String(), a.source.String(), chunk)
	p.Tag = initiateTag
	if err := c.wires[1+a.backend].send(c.w.Backends[a.backend], p); err != nil {
		return err
	}
	s, err := await(c.wires[:1], patience, func(s *seen) bool {
		return s.proto == protoSCTP && s.kind == chunk && s.src == a.frontend && s.dst == a.client
	})
	if err != nil {
		return err
	}
	if s == nil {
		return errors.New("the backend's answer did not arrive")
	}
	if err := headertest.Verify(s.frame); err != nil {
		return fmt.Errorf("the backend's answer is damaged: %w", err)
	}
	return nil
}

// goOn sends the next chunk of an association that exists, and its answer.
func (c *crafter) goOn(a *association, chunk, ack uint8) ([]answer, error) {
	p := headertest.SCTP(a.client.String(), a.frontend.String(), chunk)
	p.Tag = initiateTag
	got, answered, err := c.forward(p, a.client, protoSCTP, chunk)
	if got == nil {
		return []answer{answered}, err
	}
	return []answer{answered}, c.reply(a, ack)
}

// syn sends a SYN from an address that need not be the client's.
func (c *crafter) syn(p *probe) ([]answer, error) {
	from := netip.AddrPortFrom(addressOf(p.from), craftedPort())
	_, a, err := c.forward(headertest.TCP(from.String(), p.to[0].to.String(), headertest.SYN), from, protoTCP,
		headertest.SYN)
	return []answer{a}, err
}

// ping sends an echo request. Any answer from the address is by "the VIP".
func (c *crafter) ping(p *probe) ([]answer, error) {
	to := p.to[0].to.Addr()
	_, from := c.w.client(p.from, to.Is6(), 0)
	request := headertest.Echo(from.String(), to.String(), craftedPort(), 1, false)
	if err := c.wires[0].send(c.w.Clients[0], request); err != nil {
		return nil, err
	}
	quoted := netip.AddrPortFrom(from, uint16(request.ICMPType)<<8)
	s, err := await(c.wires[:1], patience, func(s *seen) bool {
		const reply4, reply6 = 0, 129
		reply := s.proto == protoICMP && s.kind == reply4 || s.proto == protoICMPv6 && s.kind == reply6
		return reply && s.src.Addr() == to || s.quoted == quoted
	})
	switch {
	case err != nil:
		return nil, err
	case s == nil:
		return []answer{{verdict: drop}}, nil
	case s.quoted == quoted:
		return []answer{{verdict: icmpVerdict(to.Is6(), s.kind, s.code)}}, nil
	}
	return []answer{{verdict: "echo reply"}}, headertest.Verify(s.frame)
}

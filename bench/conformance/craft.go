package conformance

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/bench/topo"
	"sluice.dev/sluice/nat/header/headertest"
)

// Chunk types of RFC 9260 section 3.2, and the verification tag that headertest's INIT
// and INIT ACK ask for.
const (
	chunkInit, chunkInitAck           = 1, 2
	chunkHeartbeat, chunkHeartbeatAck = 4, 5
	chunkCookieEcho, chunkCookieAck   = 10, 11
	initiateTag                       = 0x01020304
)

const protoICMP, protoTCP, protoICMPv6, protoSCTP = 1, 6, 58, 132

// association is an SCTP association between two packet sockets. The kernels at both
// ends may know no SCTP; they then object by ICMP protocol unreachable, which nobody
// reads.
type association struct {
	client, frontend netip.AddrPort
	backend          int
	source, target   netip.AddrPort // as the backend sees them
}

// wire is a packet socket on a host's eth0.
type wire struct {
	fd  int
	mac [6]byte
	to  [6]byte // the gateway's
}

func openWire(h *topo.Host, gateway [6]byte) (*wire, error) {
	w := &wire{mac: h.Interfaces[0].MAC, to: gateway}
	err := h.Run(func() (err error) {
		// Another protocol than all, which ETH_P_ALL in network order is.
		const all = unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8
		w.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, int(uint16(all&0xffff)))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("packet socket: %w", err)
	}
	return w, nil
}

func (w *wire) close() { unix.Close(w.fd) }

func (w *wire) send(h *topo.Host, p *headertest.Packet) error {
	p.SrcMAC, p.DstMAC = w.mac, w.to
	return h.Run(func() error {
		i, err := interfaceIndex("eth0")
		if err != nil {
			return err
		}
		return unix.Sendto(w.fd, p.Bytes(), 0, &unix.SockaddrLinklayer{Ifindex: i})
	})
}

// seen is what is looked at of a packet that arrived.
type seen struct {
	src, dst netip.AddrPort
	proto    uint8
	kind     uint8 // SCTP: first chunk; TCP: flags; ICMP: type
	code     uint8 // ICMP
	quoted   netip.AddrPort
	seq      uint32 // TCP
	at       int    // which wire
	frame    []byte
}

// look parses a frame without extension headers or options.
func look(frame []byte) (s seen, ok bool) {
	ip := headertest.IP(frame)
	if len(ip) < 28 {
		return s, false
	}
	var payload []byte
	var src, dst netip.Addr
	if ip[0]>>4 == 4 {
		s.proto, payload = ip[9], ip[int(ip[0]&15)*4:]
		src, dst = netip.AddrFrom4([4]byte(ip[12:16])), netip.AddrFrom4([4]byte(ip[16:20]))
	} else {
		if len(ip) < 48 {
			return s, false
		}
		s.proto, payload = ip[6], ip[40:]
		src, dst = netip.AddrFrom16([16]byte(ip[8:24])), netip.AddrFrom16([16]byte(ip[24:40]))
	}
	if len(payload) < 8 {
		return s, false
	}
	s.frame = frame
	ports := func(b []byte) (uint16, uint16) { return binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:]) }
	from, to := ports(payload)
	switch s.proto {
	case protoSCTP:
		if len(payload) > 12 {
			s.kind = payload[12]
		}
	case protoTCP:
		if len(payload) > 13 {
			s.kind, s.seq = payload[13], binary.BigEndian.Uint32(payload[4:])
		}
	case protoICMP, protoICMPv6:
		s.kind, s.code = payload[0], payload[1]
		inner := payload[8:]
		if n := 20; s.proto == protoICMP && len(inner) >= n+4 {
			p, _ := ports(inner[n:])
			s.quoted = netip.AddrPortFrom(netip.AddrFrom4([4]byte(inner[12:16])), p)
		} else if n := 40; s.proto == protoICMPv6 && len(inner) >= n+4 {
			p, _ := ports(inner[n:])
			s.quoted = netip.AddrPortFrom(netip.AddrFrom16([16]byte(inner[8:24])), p)
		}
		from, to = 0, 0
	}
	s.src, s.dst = netip.AddrPortFrom(src, from), netip.AddrPortFrom(dst, to)
	return s, true
}

// craftedSeq is the sequence number of headertest's segments.
const craftedSeq = 0x01020304

// noProtocol says whether a kernel that knows no SCTP objects to it (RFC 792, RFC 4443
// section 3.4).
func (s *seen) noProtocol() bool {
	return s.proto == protoICMP && s.kind == 3 && s.code == 2 || s.proto == protoICMPv6 && s.kind == 4 && s.code == 1
}

// await waits until a packet that is looked for arrives on any of the wires.
func await(wires []*wire, limit time.Duration, wanted func(*seen) bool) (*seen, error) {
	set := make([]unix.PollFd, len(wires))
	for i, w := range wires {
		set[i] = unix.PollFd{Fd: int32(w.fd), Events: unix.POLLIN}
	}
	for end := time.Now().Add(limit); ; {
		left := time.Until(end)
		if left <= 0 {
			return nil, nil
		}
		if _, err := unix.Poll(set, int(left.Milliseconds())+1); err != nil && !errors.Is(err, unix.EINTR) {
			return nil, fmt.Errorf("poll: %w", err)
		}
		for i := range set {
			in := make([]byte, 2048)
			n, _, err := unix.Recvfrom(wires[i].fd, in, 0)
			if err != nil { // nothing here
				continue
			}
			if s, ok := look(in[:n]); ok {
				if s.at = i; wanted(&s) {
					return &s, nil
				}
			}
		}
	}
}

// crafter is the wires of one crafted exchange: client 0 first, then the backends.
type crafter struct {
	w     *world
	wires []*wire
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

// craftedPort is where crafted flows begin to count their source ports; below what
// hosts give out by themselves.
var craftedPort = uint16(5000)

// forward sends a packet from the client and says which backend it arrived at, or what
// the client was told.
func (c *crafter) forward(p *headertest.Packet, from netip.AddrPort, proto, kind uint8) (*seen, answer, error) {
	a := answer{client: from.Addr().String()}
	if err := c.wires[0].send(c.w.Clients[0], p); err != nil {
		return nil, a, err
	}
	s, err := await(c.wires, patience, func(s *seen) bool {
		if s.at == 0 {
			return s.quoted == from && !s.noProtocol()
		}
		if proto == protoTCP && s.seq != craftedSeq {
			return false // of somebody else's connection
		}
		return s.proto == proto && s.kind == kind && s.dst.Port() >= backendPorts[0] && s.dst.Port() < backendPorts[0]+10
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

// begin sends an INIT, and the INIT ACK from wherever it arrives.
func (c *crafter) begin(p *probe) (*association, []answer, error) {
	to := p.to[0].to
	_, from := c.w.client(p.from, to.Addr().Is6(), 0)
	craftedPort++
	a := &association{client: netip.AddrPortFrom(from, craftedPort), frontend: to}
	got, answered, err := c.forward(headertest.SCTP(a.client.String(), to.String(), chunkInit), a.client, protoSCTP, chunkInit)
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
	craftedPort++
	from := netip.AddrPortFrom(addressOf(p.from), craftedPort)
	_, a, err := c.forward(headertest.TCP(from.String(), p.to[0].to.String(), headertest.SYN), from, protoTCP, headertest.SYN)
	return []answer{a}, err
}

// ping sends an echo request. Whoever answers at the address is "the VIP".
func (c *crafter) ping(p *probe) ([]answer, error) {
	to := p.to[0].to.Addr()
	_, from := c.w.client(p.from, to.Is6(), 0)
	craftedPort++
	request := headertest.Echo(from.String(), to.String(), craftedPort, 1, false)
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

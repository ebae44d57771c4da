package conformance

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/nat/checksum"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
)

// Kinds of crafted probes of flows, in the words of the document.
const (
	tagged      = "tagged "         // then tcp or udp: one packet with VLAN tags, and the backend's answer
	fragments   = "udp in pieces"   // 4 KiB in fragments, in order and the other way round, and as much back
	unreachable = "unreachable udp" // a datagram that the backend refuses
	tooBig      = "too big udp"     // a flow whose packets are too big for a router on either side
	late        = "late tcp"        // connections of which some begin at an address that answers too late
)

// tagNames are a stack of tags, by their number.
var tagNames = [...]string{1: "802.1Q", 2: "802.1ad and 802.1Q"}

// crafted is one probe of frames.go.
func (c *Case) crafted(how, want string, to ...dest) *Case {
	for _, d := range to {
		c.probe(&probe{how: how, from: outside, to: []dest{d}, want: want, n: 1})
	}
	return c
}

// tagged sends a packet of TCP and one of UDP with VLAN identifiers, outer first.
func (c *Case) tagged(want, unasked string, tags []uint16, to ...dest) *Case {
	for _, d := range to {
		for _, proto := range [...]string{"tcp", "udp"} {
			c.probe(&probe{how: tagged + proto, from: outside, to: []dest{d}, want: want, n: 1, tags: tags,
				unasked: unasked})
		}
	}
	return c
}

// answer waits for a frontend's answer to a client.
func (c *crafter) answer(from, to netip.AddrPort, proto, kind uint8) (*seen, error) {
	wanted := func(s *seen) bool {
		return s.proto == proto && s.kind == kind && s.src == to && s.dst == from
	}
	if i := slices.IndexFunc(c.answers, wanted); i >= 0 {
		return c.answers[i], nil
	}
	s, err := await(c.wires[:1], patience, wanted)
	if err == nil && s == nil {
		err = fmt.Errorf("the answer from %s did not arrive", to)
	}
	return s, err
}

// datagram describes one that no other flow sends.
func (c *crafter) datagram(p *probe) (*headertest.Packet, netip.AddrPort, netip.AddrPort) {
	to := p.to[0].to
	_, address := c.w.client(p.from, to.Addr().Is6(), 0)
	from := netip.AddrPortFrom(address, craftedPort())
	return headertest.UDP(from.String(), to.String(), fmt.Sprintf("? %d\n", from.Port())), from, to
}

// tagged sends a packet with tags. The backend's own kernel answers it, which has no VLAN
// device and takes no frame of a VLAN: so it arrived without tags. The answer has none, either.
func (c *crafter) tagged(p *probe) ([]answer, error) {
	packet, from, to := c.datagram(p)
	proto, kind, back := uint8(protoUDP), uint8(0), uint8(0)
	if strings.HasSuffix(p.how, "tcp") {
		packet = headertest.TCP(from.String(), to.String(), headertest.SYN)
		proto, kind, back = protoTCP, headertest.SYN, headertest.SYN|headertest.ACK
	}
	packet.VLAN = p.tags
	got, a, err := c.forward(packet, from, proto, kind)
	if got == nil {
		return []answer{a}, err
	}
	s, err := c.answer(from, to, proto, back)
	if err != nil {
		return nil, err
	}
	return []answer{a}, headertest.Verify(s.frame)
}

// fragmentBytes is how much of a datagram a fragment carries, of both families.
const fragmentBytes = 1448

// fragments asks with 4 KiB in order and in reverse. Kernels put the pieces together at both ends,
// and take them only if they are whole and the checksum is right.
func (c *crafter) fragments(p *probe) (answers []answer, err error) {
	to := p.to[0].to
	host, address := c.w.client(p.from, to.Addr().Is6(), 0)
	for _, reverse := range [...]bool{false, true} {
		var s *socket
		var verdict string
		err := host.Run(func() (err error) {
			s, verdict, err = connect(false, address, to, patience)
			return err
		})
		if s == nil {
			return []answer{{verdict: verdict}}, err
		}
		from := netip.AddrPortFrom(address, s.port)
		text := "?" + strings.Repeat(" ", 4<<10-2) + "\n"
		pieces := headertest.Split(c.wires[0].frame(headertest.UDP(from.String(), to.String(), text)), fragmentBytes,
			uint32(s.port))
		if reverse {
			slices.Reverse(pieces)
		}
		a := answer{client: s.local}
		if err = c.wires[0].put(host, pieces...); err == nil {
			if a.verdict = s.wait(unix.POLLIN, patience); a.verdict == "" {
				if n := s.read(&a); n != len(text) {
					a.verdict = fmt.Sprintf("answer of %d bytes", n)
				}
			}
		}
		s.close()
		if err != nil {
			return nil, err
		}
		answers = append(answers, a)
	}
	return answers, nil
}

// unreachable sends a datagram to a frontend whose backends have nothing on the port, and returns
// the client's ICMP error and its sender.
func (c *crafter) unreachable(p *probe) ([]answer, error) {
	packet, from, to := c.datagram(p)
	c.refused = true
	got, a, err := c.forward(packet, from, protoUDP, 0)
	if got == nil {
		return []answer{a}, err
	}
	kind, code := uint8(3), uint8(3) // RFC 792, RFC 4443 section 3.1
	if to.Addr().Is6() {
		kind, code = 1, 4
	}
	told, err := c.told(0, kind, code, from, to.Addr())
	return []answer{a, {verdict: "client " + told}}, err
}

// told waits for an ICMP error of a type and code about packets of an end on a wire.
func (c *crafter) told(wire int, kind, code uint8, quoted netip.AddrPort, frontend netip.Addr) (string, error) {
	wanted := func(s *seen) bool {
		return s.quoted == quoted && s.dst.Addr() == quoted.Addr() && s.kind == kind && s.code == code
	}
	var s *seen
	if i := slices.IndexFunc(c.answers, wanted); wire == 0 && i >= 0 {
		s = c.answers[i]
	} else {
		var err error
		if s, err = await(c.wires[wire:wire+1], patience, wanted); err != nil || s == nil {
			return "told nothing", err
		}
	}
	text := fmt.Sprintf("told ICMP %d/%d", s.kind, s.code)
	if mtu := s.rest & 0xffff; mtu != 0 {
		text += fmt.Sprintf(" MTU %d", mtu)
	}
	if s.src.Addr() == frontend {
		text += " by the frontend"
	}
	return text, headertest.Verify(s.frame)
}

// narrow is the MTU of the routers that find packets too big: it stays with the kernels of
// client and backend, so it is one that the other probes do not notice.
const narrow = 1400

// tooBig has routers report packets of a flow as too big: one towards the backends about the
// client's packets, one towards the clients about the backend's answers (RFC 792, RFC 4443 section
// 3.2).
func (c *crafter) tooBig(p *probe) ([]answer, error) {
	packet, from, to := c.datagram(p)
	got, a, err := c.forward(packet, from, protoUDP, 0)
	if got == nil {
		return []answer{a}, err
	}
	reply, err := c.answer(from, to, protoUDP, 0)
	if err != nil {
		return nil, err
	}
	backend, client := c.w.Backends[got.at-1], c.w.Clients[0]
	kind, code := uint8(3), uint8(4)
	inside, outer := c.w.Backends[2].Addr4(), c.w.Clients[1].Addr4()
	if to.Addr().Is6() {
		kind, code = 2, 0
		inside, outer = c.w.Backends[2].Addr6(), c.w.Clients[1].Addr6()
	}
	about := headertest.ICMPError(inside.String(), got.src.Addr().String(), kind, code, narrow, got.frame, -1)
	grow(about.Payload)
	if err := c.wires[got.at].send(backend, about); err != nil {
		return nil, err
	}
	toClient, err := c.told(0, kind, code, from, to.Addr())
	if err != nil {
		return nil, err
	}
	about = headertest.ICMPError(outer.String(), to.Addr().String(), kind, code, narrow, reply.frame, -1)
	grow(about.Payload)
	if err := c.wires[0].send(client, about); err != nil {
		return nil, err
	}
	toBackend, err := c.told(got.at, kind, code, got.dst, netip.Addr{})
	return []answer{a, {verdict: "client " + toClient}, {verdict: "backend " + toBackend}}, err
}

// grow has the header of an IP packet claim more than narrow bytes, and that it may not be
// fragmented: routers quote the beginning of a packet only, and an announced MTU is believed if the
// quoted packet was larger.
func grow(ip []byte) {
	if ip[0]>>4 == 6 {
		binary.BigEndian.PutUint16(ip[4:], narrow+1-header.IPv6Bytes)
		return
	}
	binary.BigEndian.PutUint16(ip[2:], narrow+1)
	ip[6] |= 0x40
	sum := checksum.Sum(append(slices.Clone(ip[:10]), ip[12:header.IPv4Bytes]...))
	binary.BigEndian.PutUint16(ip[10:], ^sum)
}

// lateSeq is the sequence number of late answers.
const lateSeq = 0x7a7e0001

// late opens connections at the same time, of which some begin at late4. When all are open it
// answers the SYNs that late4 received.
func (c *crafter) late(r *prober, p *probe) ([]answer, error) {
	// Flows have source ports of this range (sluiceOptions names no other). SYNs from other ports
	// are the gateway's own checks, to which an answer is not late.
	flowPorts := config.Default().SNAT.Ports
	var quiet []*seen
	var watching sync.WaitGroup
	var errWatch error
	watching.Go(func() {
		_, errWatch = await(c.wires[backends:], p.slow, func(s *seen) bool {
			if s.proto == protoTCP && s.kind == headertest.SYN && s.dst.Addr() == netip.MustParseAddr(late4) &&
				flowPorts.Contains(s.src.Port()) {
				quiet = append(quiet, s)
			}
			return false
		})
	})
	answers, err := r.connectAtOnce(p)
	watching.Wait()
	if err != nil || errWatch != nil {
		return nil, errors.Join(err, errWatch)
	}
	before, err := r.drops("late_answer")
	if err != nil {
		return nil, err
	}
	flows := map[netip.AddrPort]bool{}
	for _, s := range quiet {
		if flows[s.src] {
			continue // its repetition
		}
		flows[s.src] = true
		a := headertest.TCP(s.dst.String(), s.src.String(), headertest.SYN|headertest.ACK)
		a.Seq, a.Ack = lateSeq, s.seq+1
		if err := c.wires[backends].send(c.w.Backends[backends-1], a); err != nil {
			return nil, err
		}
	}
	if len(flows) == 0 {
		return []answer{{verdict: "nobody was sent to the late one"}}, nil
	}
	return c.dropped(r, answers, before+uint64(len(flows)))
}

// dropped checks that no late answer reaches the client, and that all are counted.
func (c *crafter) dropped(r *prober, answers []answer, want uint64) ([]answer, error) {
	s, err := await(c.wires[:1], time.Second, func(s *seen) bool { return s.proto == protoTCP && s.seq == lateSeq })
	if err != nil {
		return nil, err
	}
	now, err := r.drops("late_answer")
	verdict := "late answers counted"
	switch {
	case s != nil:
		verdict = "a late answer from " + s.src.String()
	case now != want:
		verdict = fmt.Sprintf("%d late answers counted, want %d", now, want)
	}
	return append(answers, answer{verdict: verdict}), err
}

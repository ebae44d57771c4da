package garbage

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"net/netip"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// Judge judges frames that a gateway sent, by the frames that it received. It learns from the
// packets towards servers which client an answer must reach. It is not safe for concurrent use.
type Judge struct {
	// VIPs are addresses that clients send to; Sources are the source addresses that servers see,
	// other than the clients' own; Servers are the backends.
	VIPs, Sources, Servers map[netip.Addr]bool

	open    map[reply]asker // tuple of a server's answer -> tuple that it must leave with
	clients map[reply]bool  // what answers leave with, of all flows that servers got a packet of
	asked   map[reply]int   // by what answers to packets too big for their path leave with: when
	packets int             // judged so far
	parsers [2]*gopacket.DecodingLayerParser
	layers  struct {
		ip4  layers.IPv4
		ip6  layers.IPv6
		tcp  layers.TCP
		udp  layers.UDP
		list []gopacket.LayerType
	}
}

// reply is the tuple of an answer.
type reply struct {
	proto    uint8
	src, dst netip.AddrPort
}

// asker is the client of the last packet that left with a tuple.
type asker struct {
	reply
	when int
}

// NewJudge returns a judge that knows of no flow.
func NewJudge(vips, sources, servers []netip.Addr) *Judge {
	j := &Judge{VIPs: set(vips), Sources: set(sources), Servers: set(servers), open: map[reply]asker{},
		clients: map[reply]bool{}, asked: map[reply]int{}}
	l := &j.layers
	for i, first := range []gopacket.LayerType{layers.LayerTypeIPv4, layers.LayerTypeIPv6} {
		j.parsers[i] = gopacket.NewDecodingLayerParser(first, &l.ip4, &l.ip6, &l.tcp, &l.udp)
		j.parsers[i].IgnoreUnsupported = true
	}
	return j
}

func set(list []netip.Addr) map[netip.Addr]bool {
	m := map[netip.Addr]bool{}
	for _, a := range list {
		m[a] = true
	}
	return m
}

// TooBig tells of a packet that may have made a flow although it was too big for its path: the
// judge does not see how it would have left.
func (j *Judge) TooBig(in []byte) {
	if v, err := decode(in); err == nil {
		src, dst := v.ends()
		j.packets++
		j.asked[reply{v.proto, dst, src}] = j.packets
	}
}

// Refused returns the reason why a receiver drops a frame, or nil.
func Refused(frame []byte) error {
	_, err := decode(frame)
	return err
}

// WrongSum reports whether the transport checksum of a whole packet that is not Refused is wrong,
// or missing where only a socket that asks for it takes such a datagram (RFC 6935).
func WrongSum(frame []byte) bool {
	v, err := decode(frame)
	if err != nil || v.fragment() || v.checksumField() < 0 {
		return false
	}
	return v.unsummed() && v.v6 || !v.unsummed() && v.residual() != 0
}

// Fragment reports whether a frame that is not Refused has a fragment.
func Fragment(frame []byte) bool {
	v, err := decode(frame)
	return err == nil && v.fragment()
}

// Same reports whether two frames carry the same IP packet.
func Same(a, b []byte) bool {
	x, y := ipOf(a), ipOf(b)
	return x != nil && bytes.Equal(x, y)
}

// ipOf returns the IP packet of a frame without checking its content, or nil.
func ipOf(frame []byte) []byte {
	at := 12
	for len(frame) >= at+6 && (be16(frame[at:]) == 0x8100 || be16(frame[at:]) == 0x88a8) {
		at += 4
	}
	if len(frame) < at+22 {
		return nil
	}
	b := frame[at+2:]
	n := int(be16(b[2:]))
	if be16(frame[at:]) == 0x86dd {
		n = 40 + int(be16(b[4:]))
	}
	if n > len(b) {
		return nil
	}
	return b[:n]
}

// Forwarded returns the fault of a frame that was made from another one: the gateway should have
// dropped that one, or the frames differ in more than the fields that a translator changes, or the
// addresses and ports are wrong.
func (j *Judge) Forwarded(in, out []byte) error {
	a, err := decode(in)
	if err != nil {
		return fmt.Errorf("it is invalid: %w", err)
	}
	b, err := decode(out)
	if err != nil {
		return fmt.Errorf("became invalid: %w", err)
	}
	if a.v6 != b.v6 || len(a.ip) != len(b.ip) || a.l4 != b.l4 || a.proto != b.proto {
		return errors.New("is another kind of packet now")
	}
	if a.multicast {
		return errors.New("was sent to many")
	}
	if a.echo() || a.reflectedPart(&b) {
		return echoed(&a, &b)
	}
	if b.ttl() != a.ttl()-1 || a.ttl() <= 1 {
		return fmt.Errorf("TTL %d became %d", a.ttl(), b.ttl())
	}
	if err := unchanged(&a, &b); err != nil {
		return err
	}
	if err := j.relate(&a, &b); err != nil {
		return err
	}
	return j.second(&a, &b)
}

// unchanged compares the fields that must not differ, and the checksums.
func unchanged(a, b *view) error {
	var may mask
	may.header(a, 0)
	if !a.later() {
		may.transport(a, a.l4)
	}
	if a.isError() {
		if err := may.quote(a, b); err != nil {
			return err
		}
	}
	for i := range a.ip {
		if a.ip[i] != b.ip[i] && !may.at(i) {
			return fmt.Errorf("byte %d changed from %#02x to %#02x", i, a.ip[i], b.ip[i])
		}
	}
	switch {
	case a.later() || a.checksumField() < 0:
		return nil
	case a.unsummed() != b.unsummed():
		return errors.New("the checksum of a datagram came or went")
	case a.unsummed():
		return nil
	}
	if x, y := a.residual(), b.residual(); x != y {
		return fmt.Errorf("the checksum was wrong by %#x, and is by %#x", x, y)
	} else if a.isError() && x != 0 {
		return errors.New("an ICMP error with a wrong checksum")
	}
	return nil
}

// mask has the bytes of a packet that may differ, as far as they are within its first 256.
type mask [256 / 64]uint64

func (m *mask) at(i int) bool { return i < 256 && m[i/64]>>(i%64)&1 != 0 }

func (m *mask) allow(from, to int) {
	for i := from; i < min(to, 256); i++ {
		m[i/64] |= 1 << (i % 64)
	}
}

// header allows what changes in an IP header at an offset.
func (m *mask) header(v *view, at int) {
	if v.v6 {
		m.allow(at+7, at+40) // hop limit, addresses
		if v.fragment() {
			m.allow(at+v.idAt, at+v.idAt+4)
		}
		return
	}
	m.allow(at+8, at+9)   // TTL
	m.allow(at+10, at+20) // checksum, addresses
	if v.fragment() {
		m.allow(at+4, at+6)
	}
}

// transport allows what changes in a transport header at an offset.
func (m *mask) transport(v *view, at int) {
	field := v.checksumField()
	bytes := 2
	switch v.proto {
	case protoSCTP:
		bytes = 4
		fallthrough
	case protoTCP, protoUDP:
		m.allow(at, at+4)
	}
	if field >= 0 {
		m.allow(at+field, at+field+bytes)
	}
}

// quoted reads the packet that an error quotes, which may be cut off.
func (v *view) quoted() (q view, err error) {
	q = view{v6: v.v6, ip: v.ip[v.l4+8:], fragmentAt: -1}
	switch {
	case v.v6 && len(q.ip) >= 40:
		q.proto, q.l4 = q.ip[6], 40
		err = q.chain()
	case !v.v6 && len(q.ip) >= 20:
		q.proto, q.l4 = q.ip[9], int(q.ip[0]&15)*4
		if q.l4 < 20 || q.l4 > len(q.ip) {
			err = errTruncated
		}
	default:
		err = errTruncated
	}
	if err == nil && len(q.transport()) < 8 {
		err = errTruncated
	}
	return q, err
}

// quote allows what changes in the packet that an error quotes, but for its TTL.
func (m *mask) quote(a, b *view) error {
	x, err := a.quoted()
	if err != nil {
		return fmt.Errorf("it quotes what is invalid: %w", err)
	}
	y, err := b.quoted()
	if err != nil {
		return fmt.Errorf("it quotes what became invalid: %w", err)
	}
	// Routers leave the quoted header's checksum as it was: it is as right or wrong as before.
	if was, is := add(0, x.ip[:x.l4])%0xffff, add(0, y.ip[:y.l4])%0xffff; !a.v6 && was != is {
		return fmt.Errorf("the quoted header's checksum was wrong by %#x, and is by %#x", was, is)
	}
	at := a.l4 + 8
	if a.v6 {
		m.allow(at+8, at+40)
	} else {
		m.allow(at+10, at+20)
	}
	if x.icmp() {
		m.allow(at+x.l4+4, at+x.l4+6) // the identifier of an echo
	}
	m.transport(&x, at+x.l4)
	return nil
}

// echoed: an echo request to a VIP, or a fragment of one, becomes that of its reply.
func echoed(a, b *view) error {
	if a.fragment() {
		return echoedPart(a, b)
	}
	request, answer := uint8(8), uint8(0)
	if a.v6 {
		request, answer = 128, 129
	}
	x, y := a.transport(), b.transport()
	switch {
	case x[0] != request || y[0] != answer:
		return fmt.Errorf("ICMP type %d became %d", x[0], y[0])
	case a.src() != b.dst() || a.dst() != b.src():
		return errors.New("an echo reply to another")
	case !bytes.Equal(x[4:], y[4:]) || x[1] != y[1]:
		return errors.New("an echo reply with other data")
	case a.residual() != 0 || b.residual() != 0:
		return errors.New("an echo reply, or its request, with a wrong checksum")
	}
	return nil
}

// echoedPart: a fragment keeps its place and its data. The sum over the
// first one stays the same although its type changes.
func echoedPart(a, b *view) error {
	var may mask
	may.header(a, 0)
	x, y := a.transport(), b.transport()
	if !a.later() {
		request, answer := uint8(8), uint8(0)
		if a.v6 {
			request, answer = 128, 129
		}
		if x[0] != request || y[0] != answer {
			return fmt.Errorf("ICMP type %d became %d", x[0], y[0])
		}
		if add(0, x)%0xffff != add(0, y)%0xffff {
			return errors.New("the first fragment of an echo reply has another sum than its request")
		}
		may.allow(a.l4, a.l4+1)
		may.allow(a.l4+2, a.l4+4)
	}
	for i := range a.ip {
		if a.ip[i] != b.ip[i] && !may.at(i) {
			return fmt.Errorf("byte %d of a fragment changed from %#02x to %#02x", i, a.ip[i], b.ip[i])
		}
	}
	if a.src() != b.dst() || a.dst() != b.src() {
		return errors.New("a fragment of an echo reply to another")
	}
	if !bytes.Equal(a.identification(), b.identification()) {
		return errors.New("a fragment of an echo reply with another identification")
	}
	return nil
}

// echo reports whether a packet is an echo, or a fragment of one. A later fragment over IPv6 may be
// of anything (reflectedPart).
func (v *view) echo() bool { return v.icmp() && !v.isError() && !(v.v6 && v.later()) }

// reflectedPart reports whether b is a later fragment over IPv6 on its way back. Its next header
// may have any value: only the first fragment's gives the protocol of the datagram (RFC 8200
// section 4.5).
func (v *view) reflectedPart(b *view) bool {
	return v.v6 && v.later() && v.src() == b.dst() && v.dst() == b.src()
}

// identification is that of a fragment.
func (v *view) identification() []byte {
	if v.v6 {
		return v.ip[v.idAt : v.idAt+4]
	}
	return v.ip[4:6]
}

// relate judges the ends: a packet to a server comes from an address of ours or from its own
// client's, whose port may be another; an answer goes from the VIP to the client whose packets have
// the answer's tuple, and to no other.
func (j *Judge) relate(a, b *view) error {
	if a.isError() {
		return j.reported(a, b)
	}
	src, dst := b.ends()
	from, to := a.ends()
	answer := j.VIPs[src.Addr()] && !j.VIPs[to.Addr()] // its client may be a server itself
	if j.Servers[dst.Addr()] && !answer {
		switch {
		case !j.VIPs[to.Addr()]:
			return fmt.Errorf("a server gets what was for %v", to)
		case !j.Sources[src.Addr()] && src.Addr() != from.Addr():
			return fmt.Errorf("a server gets it from %v", src)
		}
		if src.Port() != 0 {
			client := reply{a.proto, to, from}
			j.packets++
			j.open[reply{b.proto, dst, src}], j.clients[client] = asker{client, j.packets}, true
		}
		return nil
	}
	if !j.VIPs[src.Addr()] {
		return fmt.Errorf("a client gets it from %v", src)
	}
	if src.Port() == 0 {
		return nil
	}
	if in := (reply{a.proto, from, to}); !j.answers(in, reply{b.proto, src, dst}) {
		return fmt.Errorf("%v to %v became %v to %v, and the last packet with that tuple was of %+v", from, to, src,
			dst, j.open[in].reply)
	}
	return nil
}

// answers reports whether an answer of a server must leave as another: to the client whose packet
// was the last one that left with the answer's tuple, or one whose packet came later and was too
// big for its path, as it may have the tuple now.
func (j *Judge) answers(in, out reply) bool {
	last := j.open[in]
	return last.reply == out || j.asked[out] > last.when
}

// another reports whether a server's answer may be of a flow that has changed its source port since
// the last packet to the server: a client's SYN that got no answer is sent again from another port.
func (j *Judge) another(in, out reply) bool {
	_, known := j.open[in]
	return !known && j.clients[out]
}

// reported judges the ends of an error: it comes from where the packet that it quotes was going,
// and goes to who sent that; and that packet is one of a flow, in the same direction.
func (j *Judge) reported(a, b *view) error {
	x, _ := a.quoted() // mask.quote has read them
	y, _ := b.quoted()
	if b.src() != y.dst() || b.dst() != y.src() || a.dst() != x.src() {
		return fmt.Errorf("an error from %v to %v, about a packet from %v to %v", b.src(), b.dst(), y.src(), y.dst())
	}
	from, to := x.ends()
	src, dst := y.ends()
	toServer := j.answers(reply{x.proto, src, dst}, reply{x.proto, from, to}) || // it quotes an answer
		j.another(reply{x.proto, src, dst}, reply{x.proto, from, to})
	toClient := j.answers(reply{x.proto, to, from}, reply{x.proto, dst, src})
	if !toServer && !toClient {
		return fmt.Errorf("about a packet from %v to %v, which was one from %v to %v", src, dst, from, to)
	}
	return nil
}

// second decodes both frames with gopacket: its results must agree except for the translated
// fields.
func (j *Judge) second(in, out *view) error {
	l := &j.layers
	a, err := j.read(in)
	if err != nil {
		return nil // it takes less than Linux (options of TCP): decode has judged it
	}
	b, err := j.read(out)
	if err != nil {
		return fmt.Errorf("gopacket, about what was fine before: %w", err)
	}
	src, dst := out.ends()
	switch b.kind {
	case layers.LayerTypeTCP:
		if uint16(l.tcp.SrcPort) != src.Port() || uint16(l.tcp.DstPort) != dst.Port() {
			return fmt.Errorf("gopacket reads ports %d, %d", l.tcp.SrcPort, l.tcp.DstPort)
		}
	case layers.LayerTypeUDP:
		if uint16(l.udp.SrcPort) != src.Port() || uint16(l.udp.DstPort) != dst.Port() {
			return fmt.Errorf("gopacket reads ports %d, %d", l.udp.SrcPort, l.udp.DstPort)
		}
	}
	if a != b {
		return fmt.Errorf("gopacket reads %+v, of what was %+v", b, a)
	}
	return nil
}

// fields are what gopacket reads and translation leaves.
type fields struct {
	kind                   gopacket.LayerType
	version, headerWords   uint8
	length                 uint16
	seq, ack               uint32
	offset                 uint8
	window, urgent         uint16
	syn, fin, rst, isAck   bool
	datagram, payloadBytes int
}

func (j *Judge) read(v *view) (f fields, err error) {
	l := &j.layers
	if err := j.parsers[family(v.v6)].DecodeLayers(v.ip, &l.list); err != nil {
		return f, err
	}
	for _, kind := range l.list {
		switch f.kind = kind; kind {
		case layers.LayerTypeIPv4:
			f.version, f.headerWords, f.length = l.ip4.Version, l.ip4.IHL, l.ip4.Length
		case layers.LayerTypeIPv6:
			f.version, f.length = l.ip6.Version, l.ip6.Length
		case layers.LayerTypeTCP:
			t := &l.tcp
			f.seq, f.ack, f.offset, f.window, f.urgent = t.Seq, t.Ack, t.DataOffset, t.Window, t.Urgent
			f.syn, f.fin, f.rst, f.isAck, f.payloadBytes = t.SYN, t.FIN, t.RST, t.ACK, len(t.Payload)
		case layers.LayerTypeUDP:
			f.datagram, f.payloadBytes = int(l.udp.Length), len(l.udp.Payload)
		}
	}
	return f, nil
}

// Own returns the fault of a frame that the gateway made itself: it must be an ICMP error about one
// of the packets received, addressed to its sender, or an RST in answer to one.
func (j *Judge) Own(out []byte, received func(yield func(frame []byte) bool)) error {
	v, err := decode(out)
	if err != nil {
		return fmt.Errorf("it is invalid: %w", err)
	}
	reset := v.proto == protoTCP && !v.fragment() && v.transport()[13]&4 != 0
	if !v.isError() && !reset {
		return errors.New("it is no ICMP error and no RST")
	}
	if v.residual() != 0 {
		return errors.New("its checksum is wrong")
	}
	if reset {
		return v.answers(received)
	}
	quote, failure := v.transport()[8:], errors.New("it quotes what was not received")
	for in := range received { // the same packet may have come more than once
		a, err := decode(in)
		switch {
		case err != nil || !bytes.HasPrefix(a.ip, quote):
		case v.dst() != a.src() || v.src() != a.dst():
			failure = fmt.Errorf("from %v to %v about a packet from %v to %v", v.src(), v.dst(), a.src(), a.dst())
		case a.isError() || a.later() || a.multicast:
			failure = errors.New("about what no error may be about (RFC 1122 section 3.2.2)")
		default:
			return nil
		}
	}
	return failure
}

// answers returns the fault of an RST: it must answer a segment that was received, by RFC 9293
// section 3.10.7.1.
func (v *view) answers(received func(yield func(frame []byte) bool)) error {
	src, dst := v.ends()
	t := v.transport()
	for in := range received {
		a, err := decode(in)
		if err != nil || a.proto != protoTCP || a.fragment() || a.multicast {
			continue
		}
		from, to := a.ends()
		s := a.transport()
		if from != dst || to != src || s[13]&4 != 0 {
			continue
		}
		if s[13]&16 != 0 { // it has an ACK, which becomes the sequence number
			if t[13] == 4 && bytes.Equal(t[4:8], s[8:12]) {
				return nil
			}
			continue
		}
		length := uint32(len(s)-int(s[12]>>4)*4) + uint32(s[13]>>1&1) + uint32(s[13]&1)
		if t[13] == 20 && be32(t[4:]) == 0 && be32(t[8:]) == be32(s[4:])+length {
			return nil
		}
	}
	return errors.New("an RST for no segment that was received")
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// crc32c is RFC 9260 appendix A.
func crc32c(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }

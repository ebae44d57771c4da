package fastpath_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/nat/reason"
	"sluice.dev/sluice/test/bed/garbage"
	"sluice.dev/sluice/test/bed/size"
)

const (
	garbageFrame = 4096 // bytes of a UMEM frame
	guardBytes   = 64
	sctpVIP4     = "203.0.113.16"
	sctpVIP6     = "2001:db8:f::16"
)

// dump is a gateway that gets garbage among real flows. It sees each frame on its way into the
// worker and out of it.
type dump struct {
	*lab
	judge *garbage.Judge
	mem   []byte // the UMEM
	flows []*garbage.Flow
	port  uint16 // of the next client

	shadow   []byte // the received content of each frame, at the frame's offset
	received [frames]received
	now      []int // the frames received in this step
	pieces   [][]byte

	in, out, own, back uint64
	classes            [garbage.NumClasses]struct{ in, refused, forwarded, returned uint64 }
	class              map[string]garbage.Class // of injected packets that are not received yet
}

// received is a packet in a frame.
type received struct {
	addr, end uint64
	class     garbage.Class
	host      bool // by the host link
	live      bool // the packet has not left or been dropped
	foreign   bool // the frame had a packet of the worker's own since
}

// tap is a link of which a dump sees all frames.
type tap struct {
	fastpath.Link
	d    *dump
	host bool
}

func newDump(t testing.TB) *dump {
	list := func(all ...string) (out []netip.Addr) {
		for _, a := range all {
			out = append(out, netip.MustParseAddr(a))
		}
		return out
	}
	d := &dump{port: 1024, class: map[string]garbage.Class{}, shadow: make([]byte, frames*garbageFrame),
		judge: garbage.NewJudge(list(vip4, vip6, keepVIP, localVIP, node4, sctpVIP4, sctpVIP6),
			list(snat4, snat6, hostSource), list(backend4, backend6, local4))}
	d.lab = newLab(t, labConfig{flows: 1 << 16, frameSize: garbageFrame, snat: services.PortRange{First: 20000,
		Count: 40000}, tap: func(link fastpath.Link, mem []byte, host bool) fastpath.Link {
		d.mem = mem
		return &tap{link, d, host}
	}, edit: func(b *services.Builder) {
		b.Settings().UnservedPort = services.UnservedReject
		serve(b, 10, sctpVIP4, 9, header.ProtoSCTP, backend4, 9, false)
		serve(b, 11, sctpVIP6, 9, header.ProtoSCTP, backend6, 9, false)
	}})
	for range 8 {
		for kind := range flowKinds {
			d.open(kind)
		}
	}
	if len(d.flows) != 8*len(flowKinds) {
		t.Fatalf("%d flows are open", len(d.flows))
	}
	return d
}

// flowKinds are the frontends that have flows.
var flowKinds = []struct {
	proto       uint8
	client, vip string
	hostLink    bool
}{
	{header.ProtoTCP, client4, vip4 + ":80", false},
	{header.ProtoUDP, client4, vip4 + ":53", false},
	{header.ProtoTCP, client6, "[" + vip6 + "]:80", false},
	{header.ProtoUDP, client6, "[" + vip6 + "]:53", false},
	{header.ProtoTCP, client4, keepVIP + ":80", false},
	{header.ProtoTCP, client4, localVIP + ":80", true},
	{header.ProtoTCP, client4, node4 + ":30080", false},
	{header.ProtoSCTP, client4, sctpVIP4 + ":9", false},
	{header.ProtoSCTP, client6, "[" + sctpVIP6 + "]:9", false},
}

// open makes an established flow of a kind, unless the gateway rejects it.
func (d *dump) open(kind int) {
	k := flowKinds[kind]
	d.port = max(d.port+1, 1024)
	g := d.workers[0]
	f := &garbage.Flow{Proto: k.proto, HostLink: k.hostLink, VIP: netip.MustParseAddrPort(k.vip),
		Client: netip.AddrPortFrom(netip.MustParseAddr(k.client), d.port)}
	link := g.nic
	if k.hostLink {
		link = g.host
	}
	for i := range 4 {
		src, dst, from := f.Client, f.VIP, g.nic
		if i%2 == 1 {
			src, dst, from = f.Server, f.SNAT, link
		}
		from.Inject(handshake(k.proto, i, src.String(), dst.String()))
		d.step(time.Microsecond)
		to := link
		if i%2 == 1 {
			to = g.nic
		}
		frame, ok := to.Take(nil)
		if !ok {
			return
		}
		if i == 0 {
			var p header.Packet
			header.Parse(frame, &p)
			f.SNAT, f.Server = ends(&p.Tuple)
		}
	}
	d.flows = append(d.flows, f)
}

// handshake returns packet i of the first four packets of a flow.
func handshake(proto uint8, i int, src, dst string) []byte {
	switch proto {
	case header.ProtoUDP:
		return headertest.UDP(src, dst, "x").Bytes()
	case header.ProtoSCTP:
		return headertest.SCTP(src, dst, []uint8{1, 2, 10, 11}[i]).Bytes()
	}
	p := headertest.TCP(src, dst, []uint8{headertest.SYN, headertest.SYN | headertest.ACK, headertest.ACK,
		headertest.ACK}[i])
	p.Seq, p.Ack = []uint32{1000, 5000, 1001, 5001}[i], []uint32{0, 1001, 5001, 1001}[i]
	return p.Bytes()
}

// Receive records the content of each frame, and puts guard bytes around it.
func (t *tap) Receive(batch []fastpath.Desc) int {
	n := t.Link.Receive(batch)
	for _, b := range batch[:n] {
		i := b.Addr / garbageFrame
		r := received{addr: b.Addr, end: b.Addr + uint64(b.Len), host: t.host, live: true}
		packet := t.d.mem[r.addr:r.end]
		r.class = t.d.class[string(packet[:min(len(packet), classKey)])]
		if copy(t.d.shadow[r.addr:r.end], packet); len(packet) > 1514 {
			t.d.judge.TooBig(packet)
		}
		for _, guard := range t.d.guards(&r) {
			for j := range guard {
				guard[j] = guardAt(j)
			}
		}
		t.d.received[i] = r
		t.d.now = append(t.d.now, int(i))
		t.d.in++
	}
	return n
}

// classKey is the number of bytes that distinguish a packet from others of its batch.
const classKey = 128

func guardAt(i int) byte { return byte(i*37 + 0xa5) }

// guards returns the bytes before and after a packet.
func (d *dump) guards(r *received) [2][]byte {
	frameEnd := (r.addr/garbageFrame + 1) * garbageFrame
	return [2][]byte{d.mem[r.addr-guardBytes : r.addr], d.mem[r.end:min(r.end+guardBytes, frameEnd)]}
}

// Transmit checks the packets that leave.
func (t *tap) Transmit(batch []fastpath.Desc) int {
	n := t.Link.Transmit(batch)
	for _, b := range batch[:n] {
		out := t.d.mem[b.Addr : b.Addr+uint64(b.Len)]
		if err := t.d.left(t, b.Addr, out); err != nil {
			r := &t.d.received[b.Addr/garbageFrame]
			t.d.t.Fatalf("%v (%v, host link %v)\nin  %x\nout %x", err, r.class, t.host, t.d.shadow[r.addr:r.end], out)
		}
	}
	return n
}

// left checks a frame that leaves.
func (d *dump) left(t *tap, addr uint64, out []byte) error {
	d.out++
	r := &d.received[addr/garbageFrame]
	in := d.shadow[r.addr:r.end]
	if !r.live {
		r.foreign = true
		return d.made(out)
	}
	class := &d.classes[r.class]
	if t.host != r.host && garbage.Same(in, out) {
		r.live = false
		class.returned++
		d.back++
		if !t.host {
			return nil
		}
		return d.returned(in)
	}
	err := d.judge.Forwarded(in, out)
	if err == nil {
		r.live = false
		class.forwarded++
		return nil
	}
	if whole := d.join(in, out); whole != nil {
		r.live = false
		class.forwarded++
		if r.host && garbage.Same(in, whole) {
			return nil
		}
		return d.judge.Forwarded(in, whole)
	}
	made := d.made(out)
	if made == nil { // the packet was dropped, and its frame has another packet now
		r.live, r.foreign = false, true
		return nil
	}
	return fmt.Errorf("%w; or, if it is the worker's own, %w", err, made)
}

// returned checks a packet that goes to the kernel unchanged. It must not have a source address of
// the node. It must be valid, except for fragments of SCTP, which may belong to the node. And the
// kernel must not route it back.
func (d *dump) returned(in []byte) error {
	var p header.Packet
	if r := header.Parse(in, &p); r != reason.SCTPFragment {
		if err := garbage.Refused(in); err != nil {
			return fmt.Errorf("the kernel gets an invalid packet: %w", err)
		}
	}
	for _, vip := range []string{vip4, vip6, keepVIP, localVIP, emptyVIP, sctpVIP4, sctpVIP6} {
		if p.Tuple.Dst == addr(vip) {
			return fmt.Errorf("the kernel gets a packet for %s, which the node does not have", vip)
		}
	}
	for _, own := range []string{node4, snat4, snat6, hostSource} {
		if p.Tuple.Src == addr(own) {
			return fmt.Errorf("the kernel gets a packet with the forged source %s", own)
		}
	}
	return nil
}

// made checks a frame that was not received: a fragment of a split packet, or an error.
func (d *dump) made(out []byte) error {
	if header.EtherTypeIPv4 == binary.BigEndian.Uint16(out[12:]) && binary.BigEndian.Uint16(out[20:])&0x3fff != 0 {
		d.pieces = append(d.pieces, bytes.Clone(out))
		return garbage.Refused(out)
	}
	d.own++
	return d.judge.Own(out, d.all)
}

// join reassembles the first fragment of a packet and the fragments that were sent before it, in
// the form of the received packet. It returns nil if they are not fragments of that packet.
func (d *dump) join(in, first []byte) []byte {
	if len(d.pieces) == 0 || len(in) <= 1514 || len(first) >= len(in) {
		return nil
	}
	ip := headertest.IP(in)
	if ip == nil || ip[0] != 0x45 || offset(first) != offset(in) {
		return nil
	}
	whole := bytes.Clone(first)
	at := offset(first) + len(first) - 34
	for _, p := range d.pieces {
		if !bytes.Equal(p[18:20], first[18:20]) || offset(p) != at {
			return nil
		}
		whole = append(whole, p[34:]...)
		at += len(p) - 34
	}
	if len(whole) != 14+len(ip) {
		return nil
	}
	d.own += uint64(len(d.pieces))
	d.pieces = d.pieces[:0]
	if binary.BigEndian.Uint16(ip[6:])&0x3fff == 0 {
		copy(whole[18:20], ip[4:6])
	}
	copy(whole[16:18], ip[2:4])
	copy(whole[20:22], ip[6:8])
	headertest.SealIPv4(whole)
	return whole
}

// offset is that of a fragment of IPv4, in bytes.
func offset(frame []byte) int { return int(binary.BigEndian.Uint16(frame[20:])&0x1fff) * 8 }

// settle checks the invariants between two steps: no fragment is left over, no byte outside of a
// packet was written, and every packet is accounted for.
func (d *dump) settle() {
	d.t.Helper()
	if len(d.pieces) != 0 {
		d.t.Fatalf("%d fragments of no packet: %x", len(d.pieces), d.pieces[0])
	}
	for _, i := range d.now {
		r := &d.received[i]
		if r.foreign || d.unsent(r) {
			continue
		}
		for _, guard := range d.guards(r) {
			for j, b := range guard {
				if b != guardAt(j) {
					d.t.Fatalf("byte %d outside a packet was written: %x\nin  %x", j, guard, d.shadow[r.addr:r.end])
				}
			}
		}
	}
	d.now = d.now[:0]
	clear(d.class)
}

// unsent reports whether a frame, whose packet was dropped, has an ICMP error that was made and
// then dropped for lack of a route to its destination.
func (d *dump) unsent(r *received) bool {
	frame := d.mem[r.addr : (r.addr/garbageFrame+1)*garbageFrame]
	n := header.Claimed(frame)
	return r.live && !bytes.Equal(frame[:r.end-r.addr], d.shadow[r.addr:r.end]) && n > 0 && n <= len(frame) &&
		d.judge.Own(frame[:n], d.all) == nil
}

// all yields the received packets that may still be in the worker.
func (d *dump) all(yield func([]byte) bool) {
	for i := range d.received {
		if r := &d.received[i]; r.end > r.addr && !yield(d.shadow[r.addr:r.end]) {
			return
		}
	}
}

// account compares the sums of the frames with the worker's counters, and the drops with their
// reasons.
func (d *dump) account() {
	d.t.Helper()
	d.step(time.Millisecond) // publishes the counters
	s := d.workers[0].stats
	var drops uint64
	for i := range s.Drops {
		drops += s.Drops[i].Load()
	}
	in, out := d.in+s.Generated.Load(), d.out+drops+uint64(s.Held.Load())
	if in != out || d.in != s.Rx.Load() || d.out != s.Tx.Load()+s.Returned.Load() || s.Drops[reason.None].Load() != 0 {
		d.t.Fatalf("%d received and %d made, %d left and %d dropped; the worker has %d received, %d and %d left", d.in,
			s.Generated.Load(), d.out, drops, s.Rx.Load(), s.Tx.Load(), s.Returned.Load())
	}
}

// throw injects a frame, by the link that its flow has on that side.
func (d *dump) throw(f *garbage.Frame) {
	g := d.workers[0]
	link := g.nic
	if f.FromServer && f.Flow.HostLink {
		link = g.host
	}
	c := &d.classes[f.Class]
	c.in++
	if len(f.Bytes) == 0 || !link.Inject(f.Bytes) {
		c.refused++ // no NIC delivers it
		return
	}
	d.class[string(f.Bytes[:min(len(f.Bytes), classKey)])] = f.Class
}

// run lets the worker handle the injected frames.
func (d *dump) run(pause time.Duration) {
	d.t.Helper()
	d.step(pause)
	d.settle()
	d.workers[0].nic.Loop()
	d.workers[0].host.Loop()
}

// TestGarbage: 200,000 packets (or SLUICE_PACKETS) of all classes, most of them mutated, come from
// clients and servers, among open flows. Package garbage checks the packets that leave, and the
// sums of counters are exact.
func TestGarbage(t *testing.T) {
	packets := 200_000
	switch {
	case size.Race:
		packets = 10_000
	case testing.Short():
		packets = 50_000
	}
	if text := os.Getenv("SLUICE_PACKETS"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		packets = n
	}
	d := newDump(t)
	d.settle()
	var places []netip.Addr
	for _, a := range []string{vip4, vip6, keepVIP, localVIP, node4, snat4, snat6, backend4, backend6, local4, client4,
		client6, hostSource, emptyVIP, "10.0.8.1", "10.0.1.1"} {
		places = append(places, netip.MustParseAddr(a))
	}
	const seed = 1
	source := garbage.New(seed, places...)
	source.Aim(d.flows)
	opened := len(d.flows)
	for n, batch := 0, 0; n < packets; batch++ {
		if batch%2 == 0 { // replace flows that garbage has ended
			before := len(d.flows)
			d.open(batch / 2 % len(flowKinds))
			if opened += len(d.flows) - before; len(d.flows) > before {
				d.flows = d.flows[1:]
			}
			d.settle()
			source.Aim(d.flows)
		}
		for range 200 {
			f := source.Next()
			d.throw(&f)
			n++
		}
		d.run(20 * time.Millisecond)
		if batch%64 == 0 {
			d.account()
		}
	}
	d.account()
	d.report(packets, opened)
}

func (d *dump) report(packets, opened int) {
	var b strings.Builder
	fmt.Fprintf(&b, "%d packets, %d flows opened; %d received, %d left (%d of them as they came), %d made\n", packets,
		opened, d.in, d.out, d.back, d.own)
	for c := range garbage.NumClasses {
		s := &d.classes[c]
		fmt.Fprintf(&b, "%-12v %9d packets, %9d forwarded, %9d to or from the kernel, %9d too long or empty\n", c, s.in,
			s.forwarded, s.returned, s.refused)
		if s.forwarded == 0 {
			d.t.Errorf("no packet of class %v was forwarded", c)
		}
	}
	drops := d.drops()
	for _, r := range slices.Sorted(maps.Keys(drops)) {
		fmt.Fprintf(&b, "%-22s %9d dropped\n", r, drops[r])
	}
	d.t.Log(b.String())
}

// FuzzGarbage: any frames, from any side, with or without the addresses and ports of open flows,
// several in a step. Each begins with a byte that selects the flow (bits 0 to 4), the side (bit 5),
// whether the flow's addresses and ports are written into the frame (bit 6) and whether a step
// follows (bit 7). The second byte is the frame's length in units of four bytes.
func FuzzGarbage(f *testing.F) {
	source := garbage.New(3)
	flows := newDump(f).flows
	source.Aim(flows)
	for c := range garbage.NumClasses {
		var script []byte
		for n := range 8 {
			i := slices.IndexFunc(flows, func(f *garbage.Flow) bool { return f.V6() == c.V6(n%2 == 0) })
			b := source.Frame(c, (n*7919)%c.Count(), flows[i], n%3 == 0).Bytes
			b = b[:min(len(b), 255*4)/4*4]
			script = append(append(script, byte(i|n%3<<5|n%2<<7|1<<6), byte(len(b)/4)), b...)
		}
		f.Add(script)
	}
	f.Fuzz(func(t *testing.T, script []byte) {
		d := newDump(t)
		for len(script) >= 2 {
			op, n := script[0], min(int(script[1])*4, len(script)-2)
			frame := garbage.Frame{Bytes: slices.Clone(script[2 : 2+n]), Flow: d.flows[int(op&31)%len(d.flows)],
				FromServer: op>>5&1 != 0}
			if script = script[2+n:]; op>>6&1 != 0 {
				aim(&frame)
			}
			d.throw(&frame)
			if op>>7 != 0 || len(d.class) == ringSize/2 {
				d.run(10 * time.Millisecond)
			}
		}
		d.run(10 * time.Millisecond)
		d.account()
	})
}

// aim writes the addresses and ports of a frame's flow at their offsets in a packet without tags
// and options, and corrects the header checksum.
func aim(f *garbage.Frame) {
	src, dst := f.Flow.Client, f.Flow.VIP
	if f.FromServer {
		src, dst = f.Flow.Server, f.Flow.SNAT
	}
	from, to, ports, etherType := 14+12, 14+16, 14+20, uint16(header.EtherTypeIPv4)
	if f.Flow.V6() {
		from, to, ports, etherType = 14+8, 14+24, 14+40, header.EtherTypeIPv6
	}
	b := f.Bytes
	if len(b) < ports+4 {
		return
	}
	binary.BigEndian.PutUint16(b[12:], etherType)
	copy(b[from:], src.Addr().AsSlice())
	copy(b[to:], dst.Addr().AsSlice())
	binary.BigEndian.PutUint16(b[ports:], src.Port())
	binary.BigEndian.PutUint16(b[ports+2:], dst.Port())
	if !f.Flow.V6() {
		headertest.SealIPv4(b)
	}
}

package fastpath_test

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/nat/reason"
	"sluice.dev/sluice/test/bed/size"
)

// longRoom is the room for a packet in a frame of the lab, in bytes.
const longRoom = frameSize - 256

// mtu sets the MTUs towards clients and backends.
func (l *lab) mtu(clients, backends uint16) {
	l.hops.SetHop(hopClient, &nexthop.Hop{Kind: nexthop.OnLink, Ready: true, MTU: clients, DstMAC: macClient,
		SrcMAC: macOurs})
	l.hops.SetHop(hopBackend, &nexthop.Hop{Kind: nexthop.OnLink, Ready: true, MTU: backends, DstMAC: macBackend,
		SrcMAC: macOurs})
}

func longLab(t testing.TB, edit func(*services.Builder)) (*lab, *gate) {
	l := newLab(t, labConfig{long: true, edit: edit})
	l.mtu(9000, 9000)
	return l, l.workers[0]
}

// text is a payload whose bytes differ.
func text(n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8)
	}
	return string(b)
}

// TestLongSizes: packets of every length around the ends of buffers are forwarded, and only their
// headers change.
func TestLongSizes(t *testing.T) {
	for name, c := range map[string]struct{ client, vip, backend string }{
		"IPv4": {join(client4, 5), join(vip4, 53), join(backend4, 5353)}, "IPv6": {join(client6, 5), join(vip6, 53),
			join(backend6, 5353)},
	} {
		t.Run(name, func(t *testing.T) {
			l, g := longLab(t, nil)
			headers := len(headertest.UDP(c.client, c.vip, "").Bytes())
			n, sum := uint64(0), uint64(0)
			for buffers := 1; buffers <= 5; buffers++ {
				for d := -3; d <= 3; d++ {
					payload := text(buffers*longRoom + d - headers)
					l.send(0, headertest.UDP(c.client, c.vip, payload))
					frame, p := l.out(g.nic)
					l.wantTuple(&p, "", c.backend)
					if !strings.HasSuffix(string(frame), payload) || len(frame) != headers+len(payload) {
						t.Fatalf("%d bytes arrived as %d, changed", headers+len(payload), len(frame))
					}
					n, sum = n+1, sum+uint64(len(frame))
				}
			}
			s := g.stats
			if s.Rx.Load() != n || s.Tx.Load() != n || s.RxBytes.Load() != sum || s.TxBytes.Load() != sum {
				t.Errorf("received %d (%d bytes), sent %d (%d bytes), want %d (%d bytes)", s.Rx.Load(),
					s.RxBytes.Load(), s.Tx.Load(), s.TxBytes.Load(), n, sum)
			}
			l.nothing(g.nic, g.host)
		})
	}
}

// TestLongEqualsShort: a gateway whose packets are in several frames sends the same bytes as one
// whose frames are large enough, for all kinds of packets.
func TestLongEqualsShort(t *testing.T) {
	steps := 600
	if size.Race {
		steps = 150
	}
	for _, mtu := range [][2]uint16{{9000, 9000}, {9000, 1500}, {1500, 9000}} {
		seed := rand.Uint64()
		t.Logf("MTU %d, seed %d", mtu, seed)
		r := rand.New(rand.NewPCG(seed, 0))
		edit := func(b *services.Builder) {
			serve(b, 10, "203.0.113.15", 53, header.ProtoUDP, "10.0.9.3", 53, false) // an unresolved neighbour
			serve(b, 11, vip4, 9, header.ProtoSCTP, backend4, 9, false)
		}
		// The limit of held fragments counts frames, so the two gateways would reach it at
		// different packets.
		const held = 512
		labs := [2]*lab{
			newLab(t, labConfig{long: true, edit: edit, heldFragments: held}),
			newLab(t, labConfig{frameSize: 16384, edit: edit, heldFragments: held}),
		}
		var learn [][]byte
		long := 0
		for step := range steps {
			var packets [][]byte
			for range r.IntN(16) {
				packets = append(packets, longPacket(r, learn)...)
			}
			pause := []time.Duration{time.Microsecond, 2 * time.Millisecond, 2 * time.Second}[max(r.IntN(30)-27, 0)]
			var sent [2][][]byte
			for i, l := range labs {
				l.mtu(mtu[0], mtu[1])
				for _, p := range packets {
					if !l.workers[0].nic.Inject(p) {
						t.Fatal("the link took no more")
					}
				}
				for range 3 {
					l.step(pause / 3)
				}
				sent[i] = drain(l.workers[0].nic, l.workers[0].host)
				l.step(time.Microsecond)
			}
			if !slices.EqualFunc(sent[0], sent[1], bytes.Equal) {
				t.Fatalf("step %d: in several frames\n%x\nin one\n%x", step, sent[0], sent[1])
			}
			if a, b := labs[0].counters(), labs[1].counters(); a != b {
				t.Fatalf("step %d: counters\n%s\nand\n%s", step, a, b)
			}
			for _, f := range sent[0] {
				if len(f) > longRoom {
					long++
				}
				if f != nil && r.IntN(4) == 0 {
					learn = append(learn[max(0, len(learn)-100):], f)
				}
			}
		}
		if long < steps*5/6 && mtu[0] == mtu[1] {
			t.Errorf("only %d long packets were sent", long)
		}
		t.Logf("%d long packets sent, drops %v", long, labs[0].drops())
	}
}

// longPacket returns a packet of any kind and length, or the fragments of one.
func longPacket(r *rand.Rand, learn [][]byte) [][]byte {
	lengths := []int{r.IntN(200), longRoom - r.IntN(100), longRoom + r.IntN(200), 2*longRoom - r.IntN(200),
		r.IntN(8900)}
	payload := text(lengths[r.IntN(len(lengths))])
	client, vip, port := client4, vip4, uint16(1000+r.IntN(20))
	if r.IntN(2) == 0 {
		client, vip = client6, vip6
	}
	var p *headertest.Packet
	switch r.IntN(8) {
	case 0, 1:
		p = headertest.TCP(join(client, port), join(vip, 80), headertest.ACK|uint8(r.IntN(2))*headertest.SYN)
		p.Payload = []byte(payload)
	case 2, 3:
		p = headertest.UDP(join(client, port), join(vip, 53), payload)
	case 4:
		p = headertest.Echo(client, vip, port, 1, false)
		p.Payload = []byte(payload)
	case 5:
		p = headertest.SCTP(join(client4, port), join(vip4, 9), 1)
		if r.IntN(3) > 0 {
			p.Chunk, p.Tag, p.Payload = 0, 5, []byte(payload)
		}
	case 6:
		p = headertest.UDP(join(client4, port), join([]string{"203.0.113.15", "203.0.113.99", localVIP}[r.IntN(3)], 53),
			payload)
	default:
		if len(learn) == 0 {
			return nil
		}
		return [][]byte{answer(learn[r.IntN(len(learn))], payload)}
	}
	p.DF = r.IntN(2) == 0
	p.TTL = []uint8{64, 64, 64, 64, 1}[r.IntN(5)]
	p.Padding = max(0, r.IntN(60)-50)
	if r.IntN(4) == 0 && len(payload) > 3000 {
		list := headertest.Split(p.Bytes(), []int{1480, 2000, 2504}[r.IntN(3)], r.Uint32())
		if r.IntN(3) == 0 {
			slices.Reverse(list)
		}
		return list
	}
	b := p.Bytes()
	if r.IntN(40) == 0 {
		b[r.IntN(min(len(b), 60))] ^= byte(1 + r.IntN(255))
	}
	return [][]byte{b}
}

// answer returns a backend's reply to a frame, if it was sent to a backend: a long answer, or an
// error that quotes the frame.
func answer(frame []byte, payload string) []byte {
	var p header.Packet
	if header.Parse(frame, &p) != reason.None {
		return frame
	}
	src, dst := ends(&p.Tuple)
	switch {
	case len(payload)%3 == 0:
		kind, code := uint8(3), uint8(4)
		if p.Tuple.V6 {
			kind, code = 2, 0
		}
		return headertest.ICMPError(dst.Addr().String(), src.Addr().String(), kind, code, 1400, frame, -1).Bytes()
	case p.Tuple.Proto == header.ProtoUDP && p.Fragment == header.NotFragment:
		return headertest.UDP(dst.String(), src.String(), payload).Bytes()
	case p.Tuple.Proto == header.ProtoTCP:
		a := headertest.TCP(dst.String(), src.String(), headertest.ACK)
		a.Payload = []byte(payload)
		return a.Bytes()
	}
	return frame
}

// TestLongIsHeld: a long packet is held, with all its frames, for a next hop or a first fragment.
func TestLongIsHeld(t *testing.T) {
	l, g := longLab(t, unresolved)
	payload := text(8000)
	parts := headertest.Split(headertest.UDP(join(client4, 5), join(vip4, 99), payload).Bytes(), 4000, 7)
	g.nic.Inject(parts[1])
	l.step(time.Microsecond)
	if n := g.stats.FramesHeld.Load(); g.stats.Held.Load() != 1 || n != 3 {
		t.Fatalf("%d packets in %d frames are held, want 1 in 3", g.stats.Held.Load(), n)
	}
	g.nic.Inject(parts[0])
	l.step(2 * time.Millisecond)
	l.step(2 * time.Millisecond)
	if n := g.stats.FramesHeld.Load(); g.stats.Held.Load() != 2 || n != 6 {
		t.Fatalf("%d packets in %d frames are held for their next hop, want 2 in 6", g.stats.Held.Load(), n)
	}
	l.resolve("10.0.9.1")
	l.step(2 * time.Millisecond)
	for range 2 {
		if _, p := l.out(g.nic); p.Fragment == header.NotFragment || p.Tuple.Dst != addr("10.0.9.1") {
			t.Fatalf("sent %+v", p)
		}
	}
	// Packets whose neighbour does not answer are dropped, and so are packets held at the end.
	g.nic.Inject(parts[1])
	l.step(2 * time.Millisecond)
	later := headertest.Split(headertest.UDP(join(client4, 6), join(vip4, 99), payload).Bytes(), 4000, 8)[1]
	g.nic.Inject(later)
	l.step(time.Microsecond)
	l.out(g.nic)
	l.step(2 * time.Second)
	l.wantDrop(reason.FragmentTimeout, 1)
	if n := g.stats.FramesHeld.Load(); n != 0 {
		t.Errorf("%d frames are held", n)
	}
}

// TestLongFillsTheQueue: the limit of held fragments counts frames, so later fragments in several
// buffers without a first fragment cannot take more of the UMEM than short ones.
func TestLongFillsTheQueue(t *testing.T) {
	l, g := longLab(t, nil)
	const limit, buffers = 64, 3 // newLab's limit; the buffers of a fragment of 4,000 bytes
	for n := range limit {
		whole := headertest.UDP(join(client4, 5), join(vip4, 99), text(8000)).Bytes()
		if !g.nic.Inject(headertest.Split(whole, 4000, uint32(n))[1]) {
			t.Fatal("the link took no more packets")
		}
		l.step(time.Microsecond)
	}
	if held := g.stats.Held.Load(); held != limit/buffers {
		t.Errorf("%d packets are held, want %d of %d frames each", held, limit/buffers, buffers)
	}
	if frames := g.stats.FramesHeld.Load(); frames > limit {
		t.Errorf("held packets take %d frames, the limit is %d", frames, limit)
	}
	l.wantDrop(reason.FragmentLimit, limit-limit/buffers)
}

// TestLongIsTooBig: the sender gets an error with the MTU, which quotes the first buffer, or the
// packet is fragmented.
func TestLongIsTooBig(t *testing.T) {
	for _, mtu := range []uint16{1280, 1500, 3000} {
		l, g := longLab(t, nil)
		l.mtu(9000, mtu)
		for _, c := range []struct{ client, vip string }{{client4, vip4}, {client6, vip6}} {
			big := headertest.UDP(join(c.client, 5), join(c.vip, 53), text(8000))
			big.DF = true
			l.send(0, big)
			frame, p := l.out(g.nic)
			rest := int(frame[p.L4+6])<<8 | int(frame[p.L4+7])
			if !header.IsICMPError(p.Tuple.V6, p.ICMPType) || rest != int(mtu) || p.Tuple.Dst != addr(c.client) {
				t.Errorf("MTU %d: answered by %+v with MTU %d", mtu, p, rest)
			}
			l.nothing(g.nic)
		}
		l.wantDrop(reason.PacketTooBig, 2)
		payload := text(8000)
		l.send(0, headertest.UDP(join(client4, 5), join(vip4, 53), payload))
		whole := make([]byte, 8+len(payload))
		got := 0
		for got < len(whole) {
			frame, p := l.out(g.nic)
			if n := int(p.End - p.L3); n > int(mtu) || n < int(mtu)-1500 && p.Fragment == header.FirstFragment {
				t.Errorf("MTU %d: a fragment of %d bytes", mtu, n)
			}
			got += copy(whole[p.FragmentOffset:], frame[p.L4:p.End])
		}
		if l.nothing(g.nic); string(whole[8:]) != payload {
			t.Errorf("MTU %d: the fragments make another payload", mtu)
		}
	}
}

// TestLongMalformed: malformed chains are dropped with a named reason, and all their frames are
// freed.
func TestLongMalformed(t *testing.T) {
	udp := headertest.UDP(join(client4, 5), join(vip4, 53), text(8000)).Bytes()
	in := func(n int) (parts [][]byte) { // in n buffers
		for i := range n {
			parts = append(parts, udp[len(udp)*i/n:len(udp)*(i+1)/n])
		}
		return parts
	}
	v6 := headertest.UDP(join(client6, 5), join(vip6, 53), text(3000))
	v6.Extensions = []headertest.Extension{{Type: headertest.Destination, Data: append([]byte{1, 4, 0, 0, 0, 0},
		bytes.Repeat([]byte{1, 6, 0, 0, 0, 0, 0, 0}, 20)...)}}
	huge := make([][]byte, fastpath.MaxBuffers)
	for i := range huge {
		huge[i] = bytes.Repeat([]byte{0}, longRoom)
	}
	for _, c := range []struct {
		name   string
		parts  [][]byte
		reason reason.Drop // None: sent
	}{
		{"as many buffers as can be", in(fastpath.MaxBuffers), reason.None},
		{"one too many", in(fastpath.MaxBuffers + 1), reason.FrameBuffers},
		{"far too many", in(100), reason.FrameBuffers},
		{"an empty one in the middle", [][]byte{udp[:1000], nil, udp[1000:2000], udp[2000:3500], udp[3500:]},
			reason.FrameBuffers},
		{"an empty one at the end", [][]byte{udp[:1700], udp[1700:], nil}, reason.FrameBuffers},
		{"an empty first one", [][]byte{nil, udp[:1700]}, reason.FrameBuffers},
		{"only an empty one", [][]byte{nil}, reason.FrameBuffers},
		{"Ethernet header in two", [][]byte{udp[:13], udp[13:1000]}, reason.FrameTruncated},
		{"IP header in two", [][]byte{udp[:33], udp[33:1000]}, reason.FrameTruncated},
		{"UDP header in two", [][]byte{udp[:41], udp[41:1700], udp[1700:3400], udp[3400:5100], udp[5100:6800],
			udp[6800:]}, reason.UDPLength},
		{"extension header in two", [][]byte{v6.Bytes()[:100], v6.Bytes()[100:1800], v6.Bytes()[1800:]},
			reason.IPv6ExtensionHeader},
		{"shorter than it says", [][]byte{udp[:1700], udp[1700:3000]}, reason.FrameTruncated},
		{"nothing", huge, reason.EtherType},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, g := longLab(t, nil)
			if len(c.parts[0]) > longRoom {
				t.Fatal("a buffer holds less")
			}
			if !g.nic.InjectParts(c.parts...) {
				t.Fatal("not taken")
			}
			l.step(time.Microsecond)
			if c.reason == reason.None {
				l.out(g.nic)
				return
			}
			l.nothing(g.nic, g.host)
			l.wantDrop(c.reason, 1)
		})
	}
}

// TestLongPadding: bytes behind the IP packet are not sent, and their frames are freed.
func TestLongPadding(t *testing.T) {
	l, g := longLab(t, nil)
	short := headertest.UDP(join(client4, 5), join(vip4, 53), "x").Bytes()
	long := headertest.UDP(join(client4, 5), join(vip4, 53), text(3000)).Bytes()
	padding := bytes.Repeat([]byte{0xee}, 900)
	for _, c := range []struct {
		parts [][]byte
		bytes int
	}{
		{[][]byte{short, padding, padding}, len(short)},
		{[][]byte{append(bytes.Clone(short), 0xee), padding}, len(short)},
		{[][]byte{long[:1000], long[1000:2000], append(bytes.Clone(long[2000:]), 0xee), padding, padding}, len(long)},
		{[][]byte{long[:1000], long[1000:2000], long[2000:], padding}, len(long)},
	} {
		if !g.nic.InjectParts(c.parts...) {
			t.Fatal("not taken")
		}
		l.step(time.Microsecond)
		if frame, _ := l.out(g.nic); len(frame) != c.bytes {
			t.Errorf("%d bytes were sent, want %d", len(frame), c.bytes)
		}
	}
	l.step(time.Microsecond)
	if free, links := g.stats.FramesFree.Load(), g.stats.FramesLinks.Load(); free+links != frames {
		t.Errorf("%d frames are free and %d the links'", free, links)
	}
}

// TestLongFillsTheRing: a ring takes all frames of a packet or none, and a packet without room is
// counted once.
func TestLongFillsTheRing(t *testing.T) {
	l, g := longLab(t, nil)
	r := rand.New(rand.NewPCG(1, 2))
	sent, taken, bytes := uint64(0), 0, 0
	for range 40 {
		for range 60 { // sent packets stay in the ring, which fills
			size := []int{10, 1700, 3000, 8900}[r.IntN(4)]
			if g.nic.Inject(headertest.UDP(join(client4, 5), join(vip4, 53), text(size)).Bytes()) {
				sent++
			}
		}
		l.step(time.Microsecond)
		l.step(time.Microsecond)
		if r.IntN(2) == 0 {
			for range r.IntN(50) {
				frame, ok := g.nic.Take(nil)
				if !ok {
					break
				}
				if err := headertest.Verify(frame); err != nil {
					t.Fatal(err)
				}
				taken, bytes = taken+1, bytes+len(frame)
			}
		}
	}
	full := l.drops()[reason.TxRingFull.String()]
	if s := g.stats; s.Rx.Load() != sent || s.Tx.Load()+full != sent || full == 0 {
		t.Errorf("%d packets came, %d are sent, drops %v", sent, s.Tx.Load(), l.drops())
	}
	for {
		frame, ok := g.nic.Take(nil)
		if !ok {
			break
		}
		taken, bytes = taken+1, bytes+len(frame)
	}
	if s := g.stats; uint64(taken) != s.Tx.Load() || uint64(bytes) != s.TxBytes.Load() {
		t.Errorf("%d packets (%d bytes) were taken of %d (%d bytes) that were sent", taken, bytes, s.Tx.Load(),
			s.TxBytes.Load())
	}
}

// TestLongToShortLink: a link without support for packets in several frames gets none.
func TestLongToShortLink(t *testing.T) {
	l, g := longLab(t, nil)
	g.nic.Inject(headertest.UDP(join(client4, 5), join(vip4, 53), text(3000)).Bytes())
	g.host.Chain(nil)
	l.step(time.Microsecond)
	l.out(g.nic)
	g.nic.Inject(headertest.UDP(join(client4, 5), join("203.0.113.99", 53), text(3000)).Bytes()) // the kernel's
	l.step(time.Microsecond)
	l.nothing(g.nic, g.host)
	l.wantDrop(reason.PacketTooBig, 1)
}

// TestLongAllocatesNothing: packets in several frames are forwarded without allocations.
func TestLongAllocatesNothing(t *testing.T) {
	l, g := longLab(t, nil)
	frame := headertest.UDP(join(client4, 5), join(vip4, 53), text(8000)).Bytes()
	parts := [][]byte{frame[:1700], frame[1700:3400], frame[3400:5100], frame[5100:6800], frame[6800:]}
	once := func() {
		g.nic.InjectParts(parts...)
		l.now++
		g.Step(l.now)
		g.nic.Loop()
	}
	once()
	if n := testing.AllocsPerRun(100, once); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// FuzzLong: a packet in several buffers is handled like the same packet in one, or dropped. Each
// cut is the length of a buffer, in bytes.
func FuzzLong(f *testing.F) {
	f.Add([]byte{200, 200, 200}, headertest.UDP(join(client4, 5), join(vip4, 53), text(900)).Bytes())
	f.Add([]byte{50, 0, 20}, headertest.UDP(join(client6, 5), join(vip6, 53), text(300)).Bytes())
	f.Add([]byte{80, 99}, headertest.Echo(client4, vip4, 1, 1, false).Bytes())
	f.Add([]byte{75, 1}, headertest.TCP(join(client4, 5), join(vip4, 80), headertest.SYN).Bytes())
	f.Add([]byte{255, 1}, headertest.ICMPError(backend4, snat4, 3, 4, 1400, headertest.UDP(join(snat4, 20001),
		join(backend4, 5353), text(400)).Bytes(), -1).Bytes())
	f.Fuzz(func(t *testing.T, cuts, frame []byte) {
		if len(frame) == 0 || len(frame) > longRoom {
			return
		}
		var parts [][]byte
		rest := frame
		for _, c := range cuts {
			n := min(int(c), len(rest))
			parts, rest = append(parts, rest[:n]), rest[n:]
		}
		parts = append(parts, rest)
		if len(parts) > ringSize {
			return
		}
		whole, long := newLab(t, labConfig{flows: 64, long: true}), newLab(t, labConfig{flows: 64, long: true})
		whole.workers[0].nic.Inject(frame)
		long.workers[0].nic.InjectParts(parts...)
		var sent [2][][]byte
		for i, l := range []*lab{whole, long} {
			l.step(time.Microsecond)
			sent[i] = drain(l.workers[0].nic, l.workers[0].host)
		}
		if slices.EqualFunc(sent[0], sent[1], bytes.Equal) {
			return
		}
		// The packet may only be dropped if its headers are not all in the first buffer, or its
		// buffers cannot be sent.
		if n := len(long.drops()); n == 0 || len(parts[0]) >= 200 && len(parts) <= fastpath.MaxBuffers &&
			!slices.ContainsFunc(parts, func(b []byte) bool { return len(b) == 0 }) {
			t.Fatalf("in one buffer\n%x (%v)\nin %d\n%x (%v)", sent[0], whole.drops(), len(parts), sent[1],
				long.drops())
		}
	})
}

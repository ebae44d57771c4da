package pipeline

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"

	"sluice.dev/sluice/nat/checksum"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
)

// edits change a packet of an open flow before both programs get it. l4 is the offset of its
// transport header. A packet that one program does not forward must not be forwarded by the other.
var edits = []struct {
	name   string
	only   uint8 // protocol; 0 is both
	family int   // 4, 6; 0 is both
	edit   func(frame []byte, l4 int) []byte
}{
	{name: "as it is", edit: func(f []byte, _ int) []byte { return f }},
	{name: "last hop but one", edit: func(f []byte, l4 int) []byte { return withTTL(f, l4, 2) }},
	{name: "last hop", edit: func(f []byte, l4 int) []byte { return withTTL(f, l4, 1) }},
	{name: "trailing bytes", edit: func(f []byte, _ int) []byte { return append(f, "trailer"...) }},
	{name: "cut short", edit: func(f []byte, l4 int) []byte { return f[:l4+8] }},
	{name: "broadcast", edit: func(f []byte, _ int) []byte { f[0] |= 1; return f }},
	{name: "EtherType", edit: func(f []byte, _ int) []byte { f[13] ^= 1; return f }},
	{name: "version", edit: func(f []byte, l4 int) []byte { f[14] ^= 0x20; return seal(f, l4) }},
	{name: "header checksum", family: 4, edit: func(f []byte, _ int) []byte { f[24] ^= 1; return f }},
	{name: "may be fragmented", family: 4, edit: func(f []byte, l4 int) []byte { f[20] = 0; return seal(f, l4) }},
	{name: "loopback source", family: 4, edit: func(f []byte, l4 int) []byte { f[26] = 127; return seal(f, l4) }},
	{name: "multicast source", family: 4, edit: func(f []byte, l4 int) []byte { f[26] = 224; return seal(f, l4) }},
	{name: "link-local source", family: 6, edit: func(f []byte, _ int) []byte { f[22], f[23] = 0xfe, 0x80; return f }},
	{name: "source is destination", family: 4,
		edit: func(f []byte, l4 int) []byte { copy(f[26:30], f[30:34]); return seal(f, l4) }},
	{name: "port zero", edit: func(f []byte, l4 int) []byte { f[l4], f[l4+1] = 0, 0; return f }},
	{name: "stranger's port", edit: func(f []byte, l4 int) []byte { f[l4+2] ^= 0x40; return f }},
	{name: "wrong checksum stays wrong", edit: func(f []byte, l4 int) []byte { f[l4+5] ^= 0x55; return f }},
	{name: "PSH", only: header.ProtoTCP, edit: func(f []byte, l4 int) []byte { f[l4+13] |= header.TCPPSH; return f }},
	{name: "no flags", only: header.ProtoTCP, edit: func(f []byte, l4 int) []byte { f[l4+13] = 0; return f }},
	{name: "data offset", only: header.ProtoTCP, edit: func(f []byte, l4 int) []byte { f[l4+12] = 6 << 4; return f }},
	{name: "no UDP checksum", only: header.ProtoUDP, edit: func(f []byte, l4 int) []byte {
		f[l4+6], f[l4+7] = 0,
			0
		return f
	}},
	{name: "UDP checksum all ones", only: header.ProtoUDP, edit: func(f []byte, l4 int) []byte {
		f[l4+6],
			f[l4+7] = 0xff, 0xff
		return f
	}},
	{name: "UDP length", only: header.ProtoUDP, edit: func(f []byte, l4 int) []byte { f[l4+5]++; return f }},
	{name: "UDP surplus", only: header.ProtoUDP, edit: func(f []byte, l4 int) []byte { f[l4+5]--; return f }},
}

func withTTL(f []byte, l4 int, ttl byte) []byte {
	if l4 == header.EthernetBytes+header.IPv4Bytes {
		f[22] = ttl
	} else {
		f[21] = ttl
	}
	return seal(f, l4)
}

// seal recomputes the header checksum.
func seal(f []byte, l4 int) []byte {
	if ip := f[header.EthernetBytes:l4]; len(ip) == header.IPv4Bytes {
		ip[10], ip[11] = 0, 0
		binary.BigEndian.PutUint16(ip[10:], ^checksum.Sum(ip))
	}
	return f
}

// TestReferenceAgrees gives the worker and the reference the same flows and the same packets: they
// must send the same bytes, and one must not forward a packet that the other drops.
func TestReferenceAgrees(t *testing.T) {
	p := built(t)
	for _, v6 := range []bool{false, true} {
		t.Run(family(v6), func(t *testing.T) {
			w, g := openWorld(t, worldConfig{v6: v6, services: 1, backends: 5, capacity: 1000}, 40)
			r, err := p.start(t.Context(), v6, 0, 5, 1000, -1)
			if err != nil {
				t.Fatal(err)
			}
			defer r.close()
			first := map[uint8]bool{}
			for i := range w.flows {
				f := w.flows[i]
				teach(t, w, r, &f)
				teachImpossible(t, w, r, f, !first[f.proto])
				first[f.proto] = true
			}
			forwarded, dropped := 0, 0
			for i := range w.flows {
				for _, k := range []kind{fromClient, fromBackend} {
					f, d := agreeOn(t, w, g, r, &w.flows[i], k)
					forwarded, dropped = forwarded+f, dropped+d
				}
			}
			if forwarded < 300 || dropped < 300 {
				t.Errorf("%d packets were forwarded and %d were not: too few of one kind to compare", forwarded,
					dropped)
			}
		})
	}
}

func agreeOn(t *testing.T, w *world, g *gate, r *reference, f *flow, k kind) (forwarded, dropped int) {
	t.Helper()
	for _, e := range edits {
		if e.only != 0 && e.only != f.proto || e.family != 0 && (e.family == 6) != w.v6 {
			continue
		}
		var b [128]byte
		n := w.frame(&b, f, k, 77)
		l4 := header.EthernetBytes + header.IPv4Bytes
		if w.v6 {
			l4 = header.EthernetBytes + header.IPv6Bytes
		}
		packet := e.edit(append([]byte(nil), b[:n]...), l4)
		sent := both(t, w, g, r, e.name, packet)
		if sent == nil {
			dropped++
			continue
		}
		forwarded++
		if e.name == "as it is" && f.proto == header.ProtoUDP {
			// The checksum that becomes zero: the difference of the packet's sum.
			old, new := binary.BigEndian.Uint16(packet[l4+6:]), binary.BigEndian.Uint16(sent[l4+6:])
			binary.BigEndian.PutUint16(packet[l4+6:], checksum.Add(^new, old))
			if sent = both(t, w, g, r, "UDP checksum that becomes zero", packet); sent == nil ||
				sent[l4+6]&sent[l4+7] != 0xff {
				t.Errorf("a UDP checksum that becomes zero is sent in %x", sent)
			}
		}
	}
	return forwarded, dropped
}

// both gives a packet to both programs and returns the packet that the worker sends, or nil.
func both(t *testing.T, w *world, g *gate, r *reference, name string, packet []byte) []byte {
	t.Helper()
	inC, err := r.ask("packet " + hex.EncodeToString(packet))
	if err != nil {
		t.Fatal(err)
	}
	sent, want := oneThrough(t, g, packet), "dropped"
	if sent != nil && isError(sent, w.v6) {
		sent = nil
	}
	if sent != nil {
		want = "sent " + hex.EncodeToString(sent)
	}
	if inC != want {
		t.Errorf("%s\npacket %x\nthe worker: %s\nthe reference: %s", name, packet, want, inC)
	}
	return sent
}

// teachImpossible adds flows of impossible clients to the reference, as the edits make them: it
// must drop their packets for their content alone. All flows here have the same address, so only
// one can have port zero.
func teachImpossible(t *testing.T, w *world, r *reference, f flow, portZero bool) {
	t.Helper()
	f.snat += snatAddrs
	if portZero {
		zero := f
		zero.clientPort = 0
		teach(t, w, r, &zero)
	}
	if w.v6 {
		return
	}
	for _, first := range []uint32{127, 224} {
		f.snat += snatAddrs
		f.client = first<<24 | f.client&0xffffff
		teach(t, w, r, &f)
	}
}

// oneThrough returns the packet that the worker forwards, or nil.
func oneThrough(t *testing.T, g *gate, packet []byte) []byte {
	t.Helper()
	if !g.nic.Inject(packet) {
		t.Fatal("the link took no packet")
	}
	g.Step(g.now)
	sent, _ := g.nic.Take(nil)
	g.host.Loop()
	g.Step(g.now)
	return sent
}

// isError: an ICMP message of the gateway itself, which the reference does not send.
func isError(frame []byte, v6 bool) bool {
	if v6 {
		return frame[20] == header.ProtoICMPv6
	}
	return frame[23] == header.ProtoICMP
}

// teach adds a flow of the worker to the reference.
func teach(t *testing.T, w *world, r *reference, f *flow) {
	t.Helper()
	client, backend := w.tuple(f, fromClient), w.tuple(f, fromBackend)
	end := func(a header.Addr, port uint16) string {
		if w.v6 {
			return fmt.Sprintf("%x %d", a[:], port)
		}
		return fmt.Sprintf("%x %d", a[12:], port)
	}
	line := fmt.Sprintf("flow %d %d %s %s %s %s", f.proto, int(hopFirstNode)+int(f.pod)%nodes,
		end(client.Src, client.SrcPort), end(client.Dst, client.DstPort), end(backend.Src, backend.SrcPort),
		end(backend.Dst, backend.DstPort))
	if answer, err := r.ask(line); err != nil || answer != "ok" {
		t.Fatalf("%s: %q, %v", line, answer, err)
	}
}

// shared is built once for all tests: compiling takes longer than the tests.
var shared = sync.OnceValues(func() (p *program, err error) {
	p, err = buildReference(context.Background())
	if err == nil {
		removeShared = p.remove
	}
	return p, err
})

// removeShared removes the files of shared, if it was built.
var removeShared = func() {}

func TestMain(m *testing.M) {
	status := m.Run()
	removeShared()
	os.Exit(status)
}

// built returns the compiled reference.
func built(t *testing.T) *program {
	t.Helper()
	p, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func openWorld(t *testing.T, c worldConfig, flows int) (*world, *gate) {
	t.Helper()
	w, err := newWorld(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.close)
	g, err := w.addGate(0, 1)
	if err == nil {
		err = g.open(w.addClients(flows, rand.New(rand.NewPCG(1, 1))))
	}
	if err != nil {
		t.Fatal(err)
	}
	return w, g
}

// TestReferenceChecksItself: the reference checks itself before it is ready, over thousands of
// packets in both modes.
func TestReferenceChecksItself(t *testing.T) {
	p := built(t)
	for _, v6 := range []bool{false, true} {
		r, err := p.start(t.Context(), v6, 2000, 8, 3000, -1)
		if err != nil {
			t.Fatal(err)
		}
		for _, serial := range []bool{false, true} {
			if ns, err := r.sample(load{mixed: true}, 3, serial); err != nil || ns <= 0 {
				t.Errorf("%s, serial %v: %v ns, %v", family(v6), serial, ns, err)
			}
		}
		r.close()
	}
}

// TestFramesAreRight: the measured packets are valid, as real hosts send them.
func TestFramesAreRight(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		w, g := openWorld(t, worldConfig{v6: v6, services: 3, backends: 7, capacity: 1000}, 100)
		for i := range w.flows {
			for k := fromClient; k <= answer; k++ {
				var b [128]byte
				frame := b[:w.frame(&b, &w.flows[i], k, uint32(i))]
				if err := headertest.Verify(frame); err != nil {
					t.Fatalf("%s, kind %d: %v: %x", family(v6), k, err, frame)
				}
				if v6 && len(frame) != maxFrame || !v6 && len(frame) != minFrame {
					t.Fatalf("%s, kind %d: %d bytes", family(v6), k, len(frame))
				}
			}
		}
		sent := oneThrough(t, g, first(w))
		if err := headertest.Verify(sent); err != nil {
			t.Fatalf("%s: sent: %v", family(v6), err)
		}
	}
}

func first(w *world) []byte {
	var b [128]byte
	return append([]byte(nil), b[:w.frame(&b, &w.flows[0], fromBackend, 1)]...)
}

package simulate

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"sluice.dev/sluice/fastpath/capture"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/gateway/captures"
	"sluice.dev/sluice/gateway/offline"
	"sluice.dev/sluice/internal/boottime"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/nat/reason"
	"sluice.dev/sluice/serve/status"
)

// oneWorker keeps the tap of the only capture.
type oneWorker struct {
	mu  sync.Mutex
	tap *capture.Tap
}

func (w *oneWorker) Len() int { return 1 }

func (w *oneWorker) SetTaps(_ context.Context, list []*capture.Tap) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tap = list[0]
	return nil
}

func (w *oneWorker) get() *capture.Tap {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.tap
}

// stream is a CaptureWriter in memory.
type stream struct {
	mu sync.Mutex
	bytes.Buffer
}

func (s *stream) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Buffer.Write(b)
}

func (s *stream) Flush() error { return nil }

// point is a packet at a point of a gateway.
type point struct {
	record capture.Record
	packet *headertest.Packet
}

// captureOf returns the capture that a gateway's own writer makes of packets.
func captureOf(t testing.TB, points []point) []byte {
	t.Helper()
	w, out, handle := &oneWorker{}, &stream{}, new(services.Handle)
	handle.Store(services.NewBuilder(nil).Build())
	set := captures.New(captures.Config{Workers: w, Interfaces: []string{"eth0", "sluice0"}, Services: handle,
		Ports: func(int) []int { return []int{0, 1} }})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := set.Run(ctx, &status.CaptureQuery{}, out)
		done <- err
	}()
	for w.get() == nil {
		time.Sleep(time.Millisecond)
	}
	ring, now := w.get().Rings[0], boottime.Nanos()
	for i, p := range points {
		b := p.packet.Bytes()
		p.record.At, p.record.Bytes = now+uint64(i)*1e6, uint32(len(b))
		to, ok := ring.Add(&p.record, len(b))
		if !ok {
			t.Fatal("the ring has no room")
		}
		copy(to, b)
	}
	ring.Publish()
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// TestOwnCapture: of a capture by `sluice capture` each packet takes part once: the client's where
// it came in, and the answer where it left. Packets that the gateway made, and dropped ones, take
// no part.
func TestOwnCapture(t *testing.T) {
	const client, snat, backend = "198.51.100.1:1000", "10.0.1.2:21360", "10.1.0.11:8080"
	socket := func(s string) flowtable.Socket {
		ap := netip.MustParseAddrPort(s)
		a := header.AddrFrom(ap.Addr())
		return flowtable.SocketOf(&a, ap.Port())
	}
	toBackend := capture.Flow{Known: true, Proto: header.ProtoTCP, Client: socket(client), Frontend: socket(web4),
		Source: socket(snat), Backend: socket(backend)}
	answer := toBackend
	answer.Reply = true
	syn, ack := uint8(headertest.SYN), uint8(headertest.ACK)
	in := func(f capture.Flow, src, dst string, flags uint8) point {
		return point{capture.Record{Point: capture.In, Flow: f}, headertest.TCP(src, dst, flags)}
	}
	out := func(f capture.Flow, v capture.Verdict, src, dst string, flags uint8) point {
		return point{capture.Record{Point: capture.Out, Flow: f, Verdict: v}, headertest.TCP(src, dst, flags)}
	}
	b := captureOf(t, []point{
		in(toBackend, client, web4, syn),
		out(toBackend, capture.Forwarded, snat, backend, syn),
		in(answer, backend, snat, syn|ack),
		out(answer, capture.Forwarded, web4, client, syn|ack),
		in(toBackend, client, web4, ack),
		out(toBackend, capture.Forwarded, snat, backend, ack),
		out(toBackend, capture.Generated, web4, client, headertest.RST|ack),
		{capture.Record{Point: capture.Dropped, Verdict: capture.Drop, Reason: reason.NoFlow},
			headertest.TCP("198.51.100.3:1", web4, syn)},
		in(toBackend, client, web4, ack|headertest.PSH),
	})
	path := filepath.Join(t.TempDir(), "own.pcapng")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	v := simulate(t, query(path))
	want := status.SimulateCapture{File: path, First: v.Capture.First, Last: v.Capture.Last, Packets: 9, Clients: 3,
		Replies: 1, Others: 5}
	if v.Capture != want {
		t.Errorf("got %+v, want %+v", v.Capture, want)
	}
	if v.Flows.Forwarded != 1 || v.Packets.Forwarded != 3 || len(v.Drops) != 0 {
		t.Errorf("flows %+v, packets %+v, drops %v", v.Flows, v.Packets, v.Drops)
	}
	if d := v.Capture.Last.Sub(v.Capture.First); d != 8*time.Millisecond {
		t.Errorf("it lasts %v", d)
	}
}

// ngCapture is a capture of a client's handshake in the form pcapng, with an interface that is no
// Ethernet.
func ngCapture(t testing.TB) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := pcapgo.NewNgWriter(&b, layers.LinkTypeEthernet)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.AddInterface(pcapgo.NgInterface{Name: "any", LinkType: layers.LinkTypeLinuxSLL,
		TimestampResolution: 9}); err != nil {
		t.Fatal(err)
	}
	const client = "198.51.100.1:1000"
	for i, p := range []*headertest.Packet{headertest.TCP(client, web4, headertest.SYN),
		headertest.TCP(web4, client, headertest.SYN|headertest.ACK), headertest.TCP(client, web4, headertest.ACK)} {
		frame := p.Bytes()
		for link := range 2 {
			ci := gopacket.CaptureInfo{Timestamp: time.Unix(1_790_000_000, int64(i)*1000), CaptureLength: len(frame),
				Length: len(frame), InterfaceIndex: link}
			if err := w.WritePacket(ci, frame); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestForms: pcapng and compressed files are read; packets that are no Ethernet frames are counted.
func TestForms(t *testing.T) {
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	if _, err := z.Write(ngCapture(t)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{"plain": ngCapture(t), "gzip": packed.Bytes()} {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		v := simulate(t, query(path))
		if c := v.Capture; c.Packets != 6 || c.Clients != 2 || c.Replies != 1 || c.Unusable != 3 {
			t.Errorf("%s: %+v", name, c)
		}
	}
}

// shared is a gateway for many captures: making its tables takes longer than a small capture.
type shared struct{ g *gateway }

func share(t testing.TB) *shared {
	t.Helper()
	o, err := offline.Load(t.Context(), offline.Input{Config: "testdata/gateway.yaml", Manifests: "testdata/old"})
	if err != nil {
		t.Fatal(err)
	}
	g, err := newGateway(o, 1500, [32]byte{1}, uint64(start))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.close)
	return &shared{g}
}

// run simulates a capture in memory.
func (x *shared) run(t testing.TB, b []byte) (counts, error) {
	t.Helper()
	f := &captureFile{name: "test", links: map[layers.LinkType]bool{}}
	if err := f.begin(bytes.NewReader(b)); err != nil {
		return counts{}, err
	}
	s := newSimulation(f, 1500)
	s.now = x.g.now
	s.use(x.g)
	err := s.run(t.Context())
	s.view(&status.SimulateQuery{})
	return s.counts, err
}

// TestTruncated: a file that ends anywhere is read up to there.
func TestTruncated(t *testing.T) {
	x := share(t)
	r := record(t)
	r.connect("198.51.100.1:1000", web4)
	plain, err := os.ReadFile(r.close())
	if err != nil {
		t.Fatal(err)
	}
	for _, whole := range [][]byte{plain, ngCapture(t)} {
		last := uint64(0)
		for end := range len(whole) {
			c, err := x.run(t, whole[:end])
			if err != nil && c.Packets > 0 || c.Packets < last {
				t.Fatalf("of %d bytes: %d packets, %v", end, c.Packets, err)
			}
			last = c.Packets
		}
		if last == 0 {
			t.Error("no packet was read")
		}
	}
}

// TestHugeLengths: lengths that the file does not have cost no memory and end the file.
func TestHugeLengths(t *testing.T) {
	x := share(t)
	head := binary.LittleEndian.AppendUint32(nil, magicPcap)
	head = binary.LittleEndian.AppendUint32(head, 4<<16|2)
	head = append(head, make([]byte, 8)...)
	head = binary.LittleEndian.AppendUint32(head, 1<<32-1) // snapshot length
	head = binary.LittleEndian.AppendUint32(head, 1)
	packet := func(recorded, length uint32, b []byte) []byte {
		out := binary.LittleEndian.AppendUint32(append([]byte(nil), head...), 1)
		out = binary.LittleEndian.AppendUint32(out, 2)
		out = binary.LittleEndian.AppendUint32(out, recorded)
		return append(binary.LittleEndian.AppendUint32(out, length), b...)
	}
	syn := headertest.TCP("198.51.100.1:1", web4, headertest.SYN).Bytes()
	n := uint32(len(syn))
	for _, c := range []struct {
		name    string
		bytes   []byte
		clients uint64
		packets uint64
	}{
		{"whole", packet(n, n, syn), 1, 1},
		{"zero", packet(0, 0, nil), 0, 1},
		{"zero of many", packet(0, 1<<31, nil), 0, 1},
		{"all bytes are claimed", packet(1<<32-1, 1<<32-1, syn), 0, 0},
		{"a long packet", packet(n, 1<<32-1, syn), 0, 1},
		{"the longest packet", packet(n, maxFrame, syn), 1, 1},
	} {
		got, err := x.run(t, c.bytes)
		if err != nil || got.Clients != c.clients || got.Packets != c.packets {
			t.Errorf("%s: %+v, %v", c.name, got.SimulateCapture, err)
		}
	}
}

// FuzzCapture: no capture makes the simulation fail otherwise than by an error, and each packet is
// counted once.
func FuzzCapture(f *testing.F) {
	r := record(f)
	r.connect("198.51.100.1:1000", web4)
	r.add(headertest.UDP("198.51.100.1:2000", dns, "question"), data("198.51.100.1:1000", web4, 100))
	plain, err := os.ReadFile(r.close())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(plain)
	f.Add(ngCapture(f))
	x := share(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 1 && b[0] == magicGzip>>8 && b[1] == magicGzip&0xff {
			return // the reader of gzip is not ours
		}
		c, err := x.run(t, b)
		if err == io.EOF {
			t.Error("the end of the file is no error")
		}
		if sum := c.Clients + c.Replies + c.Earlier + c.Unusable + c.Others; err == nil && sum != c.Packets {
			t.Errorf("%+v: the parts add up to %d", c.SimulateCapture, sum)
		}
	})
}

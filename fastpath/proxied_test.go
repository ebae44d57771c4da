package fastpath_test

import (
	"bytes"
	"container/heap"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/nat/reason"
	"sluice.dev/sluice/test/bed/size"
)

// proxied makes all Services have the PROXY protocol.
func proxied(b *services.Builder) {
	for _, vip := range []string{vip4, vip6, keepVIP} {
		f, _ := b.Settings().FrontendByKey(services.FrontendKey{Addr: addr(vip), Port: 80, Proto: header.ProtoTCP})
		svc, next := *f.Service, *f
		svc.ProxyProtocol = true
		next.Service = &svc
		b.SetService(&svc)
		b.SetFrontend(&next)
	}
}

// proxyLab is a gateway between one client and one backend, as models, and a network that loses,
// repeats and reorders packets.
type proxyLab struct {
	*lab
	rnd             *rand.Rand
	path            string // of the flow table; "": it is on the heap
	client, backend *tcpModel
	start           uint64
	now             time.Duration
	packets         packetHeap
	n               int // packets ever sent
	loss            float64
	jitter          time.Duration
	// lose drops a packet before it is delivered, if it returns true.
	lose func(toBackend, byGateway bool, frame []byte) bool
	// headers counts the segments with the header that reached the backend's side of the network.
	headers int
}

type packetInFlight struct {
	at    time.Duration
	n     int
	to    byte // g, c or b
	frame []byte
}

type packetHeap []packetInFlight

func (h packetHeap) Len() int { return len(h) }
func (h packetHeap) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].n < h[j].n
}
func (h packetHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *packetHeap) Push(x any)   { *h = append(*h, x.(packetInFlight)) }
func (h *packetHeap) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}

// proxyEnds has the addresses of a case.
type proxyEnds struct{ client, vip, backend string }

var (
	ends4    = proxyEnds{join(client4, 40000), join(vip4, 80), join(backend4, 8080)}
	ends6    = proxyEnds{join(client6, 40000), join(vip6, 80), join(backend6, 8080)}
	endsKept = proxyEnds{join(client4, 40000), join(keepVIP, 80), join(backend4, 8081)}
)

// newProxyLab returns a lab whose flow table is in a file at path, or on the heap if path is "".
func newProxyLab(t *testing.T, seed uint64, e proxyEnds, path string) *proxyLab {
	t.Helper()
	s := &proxyLab{rnd: rand.New(rand.NewPCG(seed, 0)), path: path, start: uint64(time.Hour)}
	s.boot(t)
	s.client = newModel(e.client, e.vip, s.rnd.Uint32(), s.bytes(3000))
	s.backend = newModel(e.backend, "", s.rnd.Uint32(), s.bytes(3000))
	s.backend.state = modelListen
	return s
}

// boot starts the gateway on the table's file.
func (s *proxyLab) boot(t *testing.T) {
	t.Helper()
	c := labConfig{workers: 2, now: s.start + uint64(s.now), edit: proxied}
	if s.path != "" {
		f, err := flowtable.OpenFile(s.path, flowtable.Config{IPv4Flows: 256, IPv6Flows: 256,
			Timeouts: flowtable.DefaultTimeouts()}, flowtable.Time(c.now), flowtable.ResizeFit)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() }) // after its workers
		c.table = f.Table
	}
	s.lab = newLab(t, c)
}

// kill ends the gateway as kill -9 does, and starts it again with a copy of the table's file: what
// the rings and the workers' memory have is lost.
func (s *proxyLab) kill(t *testing.T) {
	t.Helper()
	b, err := os.ReadFile(s.path)
	if err != nil {
		t.Fatal(err)
	}
	s.path += "+"
	if err := os.WriteFile(s.path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	s.boot(t)
}

func (s *proxyLab) bytes(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(s.rnd.Uint32())
	}
	return b
}

func (s *proxyLab) send(to byte, frame []byte, byGateway bool) {
	if s.lose != nil && s.lose(to == 'b' || to == 'g' && !byGateway, byGateway, frame) || s.rnd.Float64() < s.loss {
		return
	}
	copies := 1
	if s.rnd.Float64() < s.loss {
		copies = 2
	}
	for range copies {
		delay := time.Millisecond
		if s.jitter > 0 {
			delay += time.Duration(s.rnd.Int64N(int64(s.jitter)))
		}
		s.n++
		heap.Push(&s.packets, packetInFlight{s.now + delay, s.n, to, bytes.Clone(frame)})
	}
}

// isHeader reports whether a frame has the PROXY header.
func isHeader(frame []byte) bool { return bytes.Contains(frame, []byte("\r\n\r\n\x00\r\nQUIT\n")) }

// deliver delivers one packet.
func (s *proxyLab) deliver(p *packetInFlight) {
	switch p.to {
	case 'c':
		s.client.receive(s.now, p.frame)
	case 'b':
		if isHeader(p.frame) {
			s.headers++
		}
		var h header.Packet
		header.Parse(p.frame, &h)
		src, _ := ends(&h.Tuple)
		if h.TCPFlags == headertest.SYN {
			s.backend.remote = src.String()
		}
		s.backend.receive(s.now, p.frame)
	case 'g':
		g := s.workers[s.rnd.IntN(len(s.workers))]
		g.nic.Inject(p.frame)
	}
}

// advance advances the time to the next packet or tick, and moves packets.
func (s *proxyLab) advance(tick time.Duration) {
	next := s.now + tick
	if len(s.packets) > 0 {
		next = min(next, s.packets[0].at)
	}
	s.now = max(s.now, next)
	for len(s.packets) > 0 && s.packets[0].at <= s.now {
		p := heap.Pop(&s.packets).(packetInFlight)
		s.deliver(&p)
	}
	s.client.tick(s.now)
	s.backend.tick(s.now)
	s.lab.now = s.start + uint64(s.now)
	s.step(0)
	for _, m := range []*tcpModel{s.client, s.backend} {
		for _, p := range m.out {
			s.send('g', p.Bytes(), m == s.backend)
		}
		m.out = nil
	}
	s.takeAll()
}

// takeAll puts all packets that the gateway sent on the network.
func (s *proxyLab) takeAll() {
	for _, g := range s.workers {
		for {
			frame, ok := g.nic.Take(nil)
			if !ok {
				break
			}
			var h header.Packet
			header.Parse(frame, &h)
			to := byte('c')
			if h.Tuple.Dst == addrOf(s.backend.local) {
				to = 'b'
			}
			s.send(to, frame, true)
		}
	}
}

func addrOf(end string) header.Addr { return header.AddrFrom(netip.MustParseAddrPort(end).Addr()) }

// run advances until done or the limit.
func (s *proxyLab) run(limit time.Duration, done func() bool) bool {
	for end := s.now + limit; s.now < end; {
		if done() {
			return true
		}
		s.advance(10 * time.Millisecond)
	}
	return done()
}

// wantHeader is the header of a connection, built apart from the program.
func wantHeader(client, vip string) []byte {
	src, dst := netip.MustParseAddrPort(client), netip.MustParseAddrPort(vip)
	b := []byte{0x0d, 0x0a, 0x0d, 0x0a, 0, 0x0d, 0x0a, 0x51, 0x55, 0x49, 0x54, 0x0a, 0x21, 0x11, 0, 12}
	if src.Addr().Is6() {
		b[13], b[15] = 0x21, 36
	}
	b = append(append(b, src.Addr().AsSlice()...), dst.Addr().AsSlice()...)
	return binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(b, src.Port()), dst.Port())
}

func (s *proxyLab) check(t *testing.T, e proxyEnds) {
	t.Helper()
	for _, m := range []*tcpModel{s.client, s.backend} {
		for i, f := range m.faults {
			if i < 5 {
				t.Errorf("at %s: %s", m.local, f)
			}
		}
	}
	if want := append(wantHeader(e.client, e.vip), s.client.stream...); !bytes.HasPrefix(want, s.backend.got) {
		t.Errorf("the backend read %d bytes %.80x..., want %.80x...", len(s.backend.got), s.backend.got, want)
	}
	if !bytes.HasPrefix(s.backend.stream, s.client.got) {
		t.Errorf("the client read %d other bytes than were sent", len(s.client.got))
	}
}

func (s *proxyLab) complete() bool {
	return s.client.finished && s.backend.finished && s.client.una == s.client.end() && s.backend.una == s.backend.end()
}

// TestProxyStreams: for any loss, repetition and reordering, and wherever the gateway is killed,
// the backend reads the header and then the client's bytes, the client reads the backend's bytes,
// and no segment has numbers that a TCP would not send.
func TestProxyStreams(t *testing.T) {
	seed := rand.Uint64()
	if text := os.Getenv("SLUICE_SEED"); text != "" {
		seed, _ = strconv.ParseUint(text, 10, 64)
	}
	t.Logf("seed %d (SLUICE_SEED)", seed)
	runs := 60
	switch {
	case size.Race:
		runs = 4
	case testing.Short():
		runs = 12
	}
	for i, e := range []proxyEnds{ends4, ends6, endsKept} {
		for run := range runs {
			name := fmt.Sprintf("%s, %d", e.vip, run)
			if !t.Run(name, func(t *testing.T) { proxyStream(t, seed+uint64(1000*i+run), e) }) {
				return
			}
		}
	}
}

// proxyStream opens a random connection, lets both ends send random streams, and kills the gateway
// up to twice.
func proxyStream(t *testing.T, seed uint64, e proxyEnds) {
	s := newProxyLab(t, seed, e, filepath.Join(t.TempDir(), "flows"))
	r := s.rnd
	s.loss, s.jitter = float64(r.IntN(4))*0.08, time.Duration(1+r.IntN(30))*time.Millisecond
	s.client.timestamps = r.IntN(2) == 0
	s.backend.timestamps = s.client.timestamps
	request, answer := s.client.stream[:r.IntN(3000)], s.backend.stream[:r.IntN(3000)]
	speaksFirst := r.IntN(2) == 0
	// If the client's ACK is lost before the gateway, nobody repeats it where neither the client
	// nor a backend with SYN cookies has anything to send.
	s.backend.cookies = !speaksFirst && r.IntN(2) == 0
	kills := r.IntN(3)
	s.client.stream, s.client.fin = request, true
	s.backend.stream = nil
	if speaksFirst {
		s.client.stream, s.client.fin = nil, false
	}
	s.client.open(0)
	ok := s.run(20*time.Minute, func() bool {
		if len(s.backend.got) >= len(wantHeader(e.client, e.vip)) && !s.backend.fin {
			s.backend.stream, s.backend.fin = answer, true // the server has read the header
		}
		if speaksFirst && !s.client.fin && (len(s.client.got) > 0 || s.client.finished) {
			s.client.stream, s.client.fin = request, true
		}
		if kills > 0 && r.IntN(40) == 0 {
			kills--
			s.kill(t)
		}
		return s.complete()
	})
	if s.check(t, e); !ok {
		t.Errorf("not complete after %v: client sent %d of %d, got %d of %d; backend's state %d; drops %v", s.now,
			s.client.una, s.client.end(), len(s.client.got), len(answer), s.backend.state, s.drops())
	}
	if t.Failed() {
		t.Logf("loss %v, jitter %v, backend speaks first %v, cookies %v", s.loss, s.jitter, speaksFirst,
			s.backend.cookies)
	}
}

// TestProxyHeaderLost: a header that is lost ten times is sent again, whoever speaks first, and
// whether or not the backend repeats its SYN-ACK.
func TestProxyHeaderLost(t *testing.T) {
	for _, speaksFirst := range []bool{false, true} {
		for _, cookies := range []bool{false, true} {
			for _, e := range []proxyEnds{ends4, ends6} {
				name := fmt.Sprintf("%s, backend speaks first %v, SYN cookies %v", e.vip, speaksFirst, cookies)
				t.Run(name, func(t *testing.T) {
					s := newProxyLab(t, 1, e, "")
					lost := 0
					s.lose = func(_, byGateway bool, frame []byte) bool {
						if lose := byGateway && isHeader(frame) && lost < 10; lose {
							lost++
							return true
						}
						return false
					}
					s.backend.cookies = cookies
					banner := s.backend.stream
					s.backend.stream = nil
					request := s.client.stream
					if speaksFirst {
						s.client.stream = nil
					}
					s.client.open(0)
					header := len(wantHeader(e.client, e.vip))
					if !s.run(2*time.Minute, func() bool { return len(s.backend.got) >= header }) {
						t.Fatalf("no header in %v, %d lost", s.now, lost)
					}
					s.backend.stream, s.client.stream = banner, request
					if !s.run(time.Minute, func() bool {
						return s.client.una == len(request) && s.backend.una == len(banner)
					}) {
						t.Errorf("%d and %d bytes were acknowledged", s.client.una, s.backend.una)
					}
					if s.check(t, e); lost != 10 {
						t.Errorf("%d headers were lost", lost)
					}
				})
			}
		}
	}
}

// TestProxyEnds: a connection that either end closes or resets at any moment ends at both ends.
func TestProxyEnds(t *testing.T) {
	stages := 60
	if os.Getenv("SLUICE_E2E") == "full" {
		stages = 168 // 1,008 connections
	}
	step := 1
	if size.Race {
		step = 5
	}
	for _, e := range []proxyEnds{ends4, ends6} {
		for stage := 0; stage < stages; stage += step {
			for _, kind := range []string{"both close", "the client resets", "the backend resets"} {
				name := fmt.Sprintf("%s, %s after %d ms", e.vip, kind, stage)
				if !t.Run(name, func(t *testing.T) { proxyEnd(t, e, stage, kind) }) {
					return
				}
			}
		}
	}
}

func proxyEnd(t *testing.T, e proxyEnds, stage int, kind string) {
	s := newProxyLab(t, uint64(stage), e, "")
	s.loss = 0.05 * float64(stage%3)
	s.client.open(0)
	for range stage {
		s.advance(time.Millisecond)
	}
	done := s.complete
	switch kind {
	case "both close":
		s.client.fin, s.backend.fin = true, true
	case "the client resets":
		s.client.abort(s.now)
		// A backend that sends nothing does not learn of an RST that is lost.
		done = func() bool { return s.backend.state != modelOpen || s.backend.una == s.backend.end() }
	case "the backend resets":
		s.backend.abort(s.now)
		// Neither does a client.
		done = func() bool { return s.client.state == modelClosed || s.client.una == s.client.end() }
	}
	ok := s.run(5*time.Minute, done)
	if s.check(t, e); !ok {
		t.Errorf("client's state %d, backend's %d, %d of %d and %d of %d acknowledged; drops %v", s.client.state,
			s.backend.state, s.client.una, s.client.end(), s.backend.una, s.backend.end(), s.drops())
	}
}

// TestProxyWindow: the header takes a part of the backend's window, so the client may send less.
// The first header is lost, so the client's bytes arrive while the window must hold both.
func TestProxyWindow(t *testing.T) {
	for _, e := range []proxyEnds{ends4, ends6} {
		s := newProxyLab(t, 3, e, "")
		s.backend.window = 200
		lost := false
		s.lose = func(_, byGateway bool, frame []byte) bool {
			lose := byGateway && isHeader(frame) && !lost
			lost = lost || lose
			return lose
		}
		s.client.open(0)
		if !s.run(5*time.Minute, func() bool { return s.client.una == s.client.end() }) {
			t.Errorf("%d of %d bytes were acknowledged", s.client.una, s.client.end())
		}
		s.check(t, e)
	}
}

// TestProxyOneSegment: the header is one segment, the client's ACK that completes the handshake,
// with the client's window and timestamps. The client's bytes leave as they came: a segment at the
// MTU, and the urgent pointer.
func TestProxyOneSegment(t *testing.T) {
	l := newLab(t, labConfig{edit: proxied})
	g := l.workers[0]
	src, dst := l.proxyHandshake(t)
	p := headertest.TCP(join(client4, 40000), join(vip4, 80), headertest.ACK)
	p.Window, p.TCPOptions = 777, []byte{1, 1, 8, 10, 0, 0, 0, 5, 0, 0, 0, 6}
	l.send(0, p)
	frame, h := l.out(g.nic)
	l.nothing(g.nic)
	s := readSegment(frame)
	if l.wantTuple(&h, src, dst); s.seq != headertest.ISN+1 || s.ack != headertest.ISN+1 || s.window != 777 ||
		s.flags != headertest.ACK|headertest.PSH || s.ts == nil || *s.ts != [2]uint32{5, 6} ||
		!bytes.Equal(s.data, wantHeader(join(client4, 40000), join(vip4, 80))) {
		t.Errorf("the header is %+v", s)
	}
	p = headertest.TCP(join(client4, 40000), join(vip4, 80), headertest.ACK|headertest.URG)
	p.Payload = bytes.Repeat([]byte("x"), 1460)
	l.send(0, p)
	frame, h = l.out(g.nic)
	if s = readSegment(frame); int(h.End-h.L3) != 1500 || s.seq != headertest.ISN+1+28 || s.flags&headertest.URG == 0 ||
		!bytes.Equal(s.data, p.Payload) {
		t.Errorf("%d bytes at %d, flags %x", h.End-h.L3, s.seq, s.flags)
	}
	l.nothing(g.nic, g.host)
	if n := g.stats.ProxyHeaders.Load(); n != 1 {
		t.Errorf("%d headers are counted", n)
	}
}

// proxyHandshake opens a connection up to the SYN-ACK, and returns the ends of the backend's side.
func (l *lab) proxyHandshake(t *testing.T) (src, dst string) {
	t.Helper()
	l.send(0, headertest.TCP(join(client4, 40000), join(vip4, 80), headertest.SYN))
	_, h := l.out(l.workers[0].nic)
	from, to := ends(&h.Tuple)
	l.send(0, headertest.TCP(to.String(), from.String(), headertest.SYN|headertest.ACK))
	frame, _ := l.out(l.workers[0].nic)
	if s := readSegment(frame); s.ack != headertest.ISN+1 || s.window != 64240-28 {
		t.Errorf("the SYN-ACK has %+v", s)
	}
	return from.String(), to.String()
}

// TestProxyResend: a backend's bare ACK that does not acknowledge the header becomes the header,
// with its timestamps exchanged, and so does a client's bare ACK. An RST of the client comes behind
// the header, and the backend's ACK then goes to the client. Once the header is acknowledged, bare
// ACKs are translated.
func TestProxyResend(t *testing.T) {
	l := newLab(t, labConfig{edit: proxied})
	g := l.workers[0]
	src, dst := l.proxyHandshake(t)
	client := func(flags uint8, data string) *headertest.Packet {
		p := headertest.TCP(join(client4, 40000), join(vip4, 80), flags)
		p.Payload = []byte(data)
		return p
	}
	header := func(why string) modelSegment {
		t.Helper()
		frame, h := l.out(g.nic)
		l.wantTuple(&h, src, dst)
		s := readSegment(frame)
		if s.seq != headertest.ISN+1 || s.ack != headertest.ISN+1 || !isHeader(frame) {
			t.Errorf("%s: %+v, want the header", why, s)
		}
		return s
	}
	l.send(0, client(headertest.ACK, ""))
	header("the handshake")
	l.send(0, client(headertest.ACK, ""))
	header("the client's ACK again")
	l.send(0, client(headertest.ACK, "data"))
	frame, _ := l.out(g.nic)
	if s := readSegment(frame); s.seq != headertest.ISN+1+28 || string(s.data) != "data" {
		t.Errorf("the data left as %+v", s)
	}
	missing := headertest.TCP(dst, src, headertest.ACK)
	missing.TCPOptions = []byte{1, 1, 8, 10, 0, 0, 0, 5, 0, 0, 0, 6}
	l.send(0, missing)
	if s := header("the backend's ACK"); s.ts == nil || *s.ts != [2]uint32{6, 5} {
		t.Errorf("timestamps %v", s.ts)
	}
	l.nothing(g.nic, g.host)

	rst := client(headertest.RST|headertest.ACK, "")
	rst.Seq += 4
	l.send(0, rst)
	header("the client's RST")
	frame, _ = l.out(g.nic)
	if s := readSegment(frame); s.flags&headertest.RST == 0 || s.seq != headertest.ISN+1+28+4 {
		t.Errorf("the RST left as %+v", s)
	}
	l.send(0, missing)
	frame, h := l.out(g.nic)
	l.wantTuple(&h, join(vip4, 80), join(client4, 40000))
	if s := readSegment(frame); s.ack != headertest.ISN+1 {
		t.Errorf("the client gets the ACK %#x", s.ack)
	}

	acked := headertest.TCP(dst, src, headertest.ACK)
	acked.Ack += 28 + 4
	l.send(0, acked)
	frame, _ = l.out(g.nic)
	if s := readSegment(frame); s.ack != headertest.ISN+1+4 {
		t.Errorf("the client gets the ACK %#x", s.ack)
	}
	l.send(0, client(headertest.ACK, ""))
	frame, _ = l.out(g.nic)
	if s := readSegment(frame); len(s.data) > 0 || s.seq != headertest.ISN+1+28 {
		t.Errorf("after the acknowledgement the client's ACK left as %+v", s)
	}
	l.nothing(g.nic, g.host)
}

// TestProxyFirst: no byte of the client passes before the header: not in a SYN, not before the
// handshake is proven, and not a header of the client's own.
func TestProxyFirst(t *testing.T) {
	l := newLab(t, labConfig{edit: proxied})
	g := l.workers[0]
	own := wantHeader("192.0.2.99:1", join(vip4, 80))
	syn := headertest.TCP(join(client4, 40000), join(vip4, 80), headertest.SYN)
	syn.Payload = own
	syn.TCPOptions = []byte{2, 4, 5, 180, 34, 10, 1, 2, 3, 4, 5, 6, 7, 8, 1, 1, 254, 6, 0xf9, 0x89, 1, 2, 1, 1, 30, 4,
		1, 0x81}
	l.send(0, syn)
	frame, h := l.out(g.nic)
	if s := readSegment(frame); len(s.data) > 0 || bytes.Contains(frame, []byte{34, 10}) ||
		bytes.Contains(frame, []byte{0xf9, 0x89}) || bytes.Contains(frame, []byte{30, 4, 1}) ||
		!bytes.Contains(frame, []byte{2, 4, 5, 180}) {
		t.Errorf("the SYN left as %x", frame)
	}
	from, to := ends(&h.Tuple)
	early := headertest.TCP(join(client4, 40000), join(vip4, 80), headertest.ACK)
	early.Payload, early.Ack = own, 12345
	l.send(0, early)
	l.nothing(g.nic, g.host)
	l.send(0, headertest.TCP(to.String(), from.String(), headertest.SYN|headertest.ACK))
	l.out(g.nic)
	l.send(0, early)
	l.nothing(g.nic, g.host)
	l.wantDrop(reason.ProxyHandshake, 2)
	early.Ack = headertest.ISN + 1 // the ACK of the handshake was lost, data proves it
	l.send(0, early)
	frame, _ = l.out(g.nic)
	if s := readSegment(frame); !bytes.Equal(s.data, wantHeader(join(client4, 40000), join(vip4, 80))) ||
		s.seq != headertest.ISN+1 {
		t.Errorf("first came %x at %d", s.data, s.seq)
	}
	frame, _ = l.out(g.nic)
	if s := readSegment(frame); !bytes.Equal(s.data, own) || s.seq != headertest.ISN+1+28 {
		t.Errorf("then came %x at %d", s.data, s.seq)
	}
}

// TestProxyICMP: an ICMP error quotes sequence numbers of its receiver's side.
func TestProxyICMP(t *testing.T) {
	l := newLab(t, labConfig{edit: proxied})
	g := l.workers[0]
	src, dst := l.proxyHandshake(t)
	toVIP := func(flags uint8, seq, ack uint32, data string) *headertest.Packet {
		p := headertest.TCP(join(client4, 40000), join(vip4, 80), flags)
		p.Seq, p.Ack, p.Payload, p.DF = seq, ack, []byte(data), true
		return p
	}
	l.send(0, toVIP(headertest.ACK, headertest.ISN+1, headertest.ISN+1, ""))
	l.out(g.nic)
	data := toVIP(headertest.ACK, headertest.ISN+1, headertest.ISN+1, string(bytes.Repeat([]byte("d"), 1400)))
	l.send(0, data)
	frame, _ := l.out(g.nic)
	for _, quoted := range []int{28, -1} {
		e := headertest.ICMPError(backend4, netip.MustParseAddrPort(src).Addr().String(), 3, 4, 1300, frame, quoted)
		l.send(0, e)
		got, _ := l.out(g.nic)
		quote := headertest.IP(got)[28:]
		if seq := binary.BigEndian.Uint32(quote[24:]); seq != headertest.ISN+1 {
			t.Errorf("%d bytes quoted: the client gets %#x", quoted, seq)
		}
	}
	opening := headertest.TCP(src, dst, headertest.SYN).Bytes()
	quoteSYN := func(when string, syn []byte) {
		t.Helper()
		for _, quoted := range []int{28, -1} {
			to := netip.MustParseAddrPort(src).Addr().String()
			l.send(0, headertest.ICMPError(backend4, to, 3, 1, 0, syn, quoted))
			got, _ := l.out(g.nic)
			if seq := binary.BigEndian.Uint32(headertest.IP(got)[28+24:]); seq != headertest.ISN {
				t.Errorf("%s, %d bytes of a SYN quoted: the client gets %#x", when, quoted, seq)
			}
		}
	}
	quoteSYN("header sent", opening)
	answer := headertest.TCP(dst, src, headertest.ACK)
	answer.Ack, answer.Payload, answer.DF = headertest.ISN+1+28+1400, bytes.Repeat([]byte("a"), 1400), true
	l.send(0, answer)
	frame, _ = l.out(g.nic)
	if s := readSegment(frame); s.ack != headertest.ISN+1+1400 {
		t.Errorf("the client gets the ACK %#x", s.ack)
	}
	quoteSYN("header acknowledged", opening)
	l.send(0, toVIP(headertest.SYN, headertest.ISN+999, 0, ""))
	again, _ := l.out(g.nic)
	quoteSYN("a later SYN", again)
	l.send(0, headertest.ICMPError("198.51.100.1", vip4, 3, 4, 1300, frame, -1))
	got, _ := l.out(g.nic)
	quote := headertest.IP(got)[28:]
	if ack := binary.BigEndian.Uint32(quote[28:]); ack != headertest.ISN+1+28+1400 {
		t.Errorf("the backend gets the ACK %#x quoted", ack)
	}
}

// TestProxyIdle: without any packet of either end the header is sent again, by the sweep, for a
// minute.
func TestProxyIdle(t *testing.T) {
	l := newLab(t, labConfig{edit: proxied})
	l.proxyHandshake(t)
	l.send(0, headertest.TCP(join(client4, 40000), join(vip4, 80), headertest.ACK))
	l.out(l.workers[0].nic)
	var at []int
	for second := range 120 {
		for range 20 {
			l.step(50 * time.Millisecond)
		}
		for {
			frame, ok := l.workers[0].nic.Take(nil)
			if !ok {
				break
			}
			if at = append(at, second); !isHeader(frame) {
				t.Fatalf("sent %x", frame)
			}
		}
	}
	if len(at) < 11 || len(at) > 13 || at[0] > 5 || at[len(at)-1] > 61 {
		t.Errorf("headers after %v s", at)
	}
}

// TestProxyAllocatesNothing: packets of these flows cost no garbage.
func TestProxyAllocatesNothing(t *testing.T) {
	l := newLab(t, labConfig{edit: proxied})
	g := l.workers[0]
	src, dst := l.proxyHandshake(t)
	frames := [][]byte{
		headertest.TCP(join(client4, 40000), join(vip4, 80), headertest.ACK).Bytes(),
		headertest.TCP(dst, src, headertest.ACK).Bytes(),
	}
	buf := make([]byte, 0, 2048)
	if n := testing.AllocsPerRun(100, func() {
		for _, f := range frames {
			g.nic.Inject(f)
		}
		g.Step(l.now)
		for {
			if _, ok := g.nic.Take(buf); !ok {
				break
			}
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkProxied: a client's data segments of an established connection, with and without a
// header.
func BenchmarkProxied(b *testing.B) {
	for name, edit := range map[string]func(*services.Builder){"plain": nil, "header": proxied} {
		b.Run(name, func(b *testing.B) {
			l := newLab(b, labConfig{edit: edit})
			g := l.workers[0]
			l.send(0, headertest.TCP(join(client4, 40000), join(vip4, 80), headertest.SYN))
			_, h := l.out(g.nic)
			src, dst := ends(&h.Tuple)
			l.send(0, headertest.TCP(dst.String(), src.String(), headertest.SYN|headertest.ACK))
			l.send(0, headertest.TCP(join(client4, 40000), join(vip4, 80), headertest.ACK))
			acked := headertest.TCP(dst.String(), src.String(), headertest.ACK)
			acked.Ack += 28
			l.send(0, acked)
			for range 3 {
				l.out(g.nic)
			}
			data := headertest.TCP(join(client4, 40000), join(vip4, 80), headertest.ACK)
			data.Payload = make([]byte, 100)
			frame := data.Bytes()
			buf := make([]byte, 0, 2048)
			for b.Loop() {
				for range 64 {
					g.nic.Inject(frame)
				}
				g.Step(l.now)
				for range 64 {
					g.nic.Take(buf)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(64*b.N), "ns/packet")
		})
	}
}

// TestProxyKeepsTheACK: the header has the options, the congestion bits, the DSCP and the flow
// label of the client's ACK that it replaces. It has no option for which a backend may discard it.
func TestProxyKeepsTheACK(t *testing.T) {
	options := []byte{1, 1, 8, 10, 0, 0, 0, 5, 0, 0, 0, 6, 1, 1, 5, 10, 1, 2, 3, 9, 1, 2, 3, 19,
		29, 4, 1, 2, 19, 3, 1, 30, 4, 1, 2, 172, 2, 0, 9, 9}
	kept := append(options[:24:24], 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 172, 2, 1, 1, 1)
	for _, e := range []proxyEnds{ends4, ends6} {
		l := newLab(t, labConfig{edit: proxied})
		g := l.workers[0]
		l.send(0, headertest.TCP(e.client, e.vip, headertest.SYN))
		_, h := l.out(g.nic)
		src, dst := ends(&h.Tuple)
		l.send(0, headertest.TCP(dst.String(), src.String(), headertest.SYN|headertest.ACK))
		l.out(g.nic)
		p := headertest.TCP(e.client, e.vip, headertest.ACK)
		p.TCPOptions = options
		sent := p.Bytes()
		ip := headertest.IP(sent)
		bits := ip[20:]
		if v6 := ip[0]>>4 == 6; v6 {
			bits = ip[40:]
			copy(ip, []byte{0x6b, 0x8a, 0xbc, 0xde})
		} else {
			ip[1] = 0xb8
			sum := uint32(^binary.BigEndian.Uint16(ip[10:])) + 0xb8
			binary.BigEndian.PutUint16(ip[10:], ^uint16(sum&0xffff+sum>>16))
		}
		bits[12], bits[13] = bits[12]|1, bits[13]|0xc0
		sum := uint32(^binary.BigEndian.Uint16(bits[16:])) + 0x01c0
		binary.BigEndian.PutUint16(bits[16:], ^uint16(sum&0xffff+sum>>16))
		want := bytes.Clone(ip)
		g.nic.Inject(sent)
		l.step(time.Microsecond)
		frame, h := l.out(g.nic)
		got := headertest.IP(frame)
		tcp, asked := frame[h.L4:], want[len(want)-20-len(options):]
		if !isHeader(frame) || got[1] != want[1] || h.Tuple.V6 && !bytes.Equal(got[:4], want[:4]) {
			t.Errorf("%s: left as % x", e.vip, got)
		}
		if tcp[12] != asked[12] || tcp[13] != asked[13]|headertest.PSH ||
			!bytes.Equal(tcp[20:20+len(kept)], kept) {
			t.Errorf("%s: the TCP header is % x", e.vip, tcp[:60])
		}
	}
}

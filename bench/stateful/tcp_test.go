package stateful

import (
	"encoding/binary"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/bench/framing"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/test/bed/memlink"
)

// newTestPair is newPair for tests; change may modify the profile first.
func newTestPair(t *testing.T, change func(p *Profile), templates ...Template) *pair {
	t.Helper()
	p := smallProfile(t, templates...)
	if change != nil {
		change(p)
	}
	if err := p.Validate(); err != nil {
		t.Fatal(err)
	}
	r, err := newPair(p)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// transport returns a frame from its TCP header on, if it is TCP over IPv4.
func transport(frame []byte) ([]byte, bool) {
	if len(frame) < header.EthernetBytes+header.IPv4Bytes+header.TCPBytes || frame[12] != 8 || frame[13] != 0 ||
		frame[header.EthernetBytes+9] != byte(ProtocolTCP) {
		return nil, false
	}
	return frame[header.EthernetBytes+header.IPv4Bytes:], true
}

// TestCorrupt: a changed byte with the old checksum means a lost segment; with a corrected checksum
// it ends the connection.
func TestCorrupt(t *testing.T) {
	for _, repaired := range []bool{false, true} {
		r := newTestPair(t, nil, page())
		changed := 0
		r.fault = func(to *memlink.Link, frame []byte) {
			if b, ok := transport(frame); ok && to == r.clientLink && len(b) > 1000 && changed < 5 {
				changed++
				b[500] ^= 0x10
				if repaired {
					framing.Seal(b, r.client.addressesOf(frame), header.ProtoTCP)
				}
			}
			to.Inject(frame)
		}
		play(t, r, 50, 20*time.Second)
		c, bad := r.client.stats.Total(), r.client.stats.Packets.BadChecksum
		if repaired && (c.Failed[Corrupt] == 0 || bad != 0) || !repaired && (bad != 5 || c.Completed != c.Opened) {
			t.Errorf("repaired %v: %d changed, %d bad checksums, %+v", repaired, changed, bad, c)
		}
	}
}

// few gives clients so few addresses and ports that each must be reused many times.
func few(p *Profile) {
	p.Clients, _ = ParsePool("10.81.0.1", "20000-20009") // constants
	p.Servers, _ = ParsePool("10.82.0.1", "")
	p.Concurrency, p.CPS, p.TCP.TimeWait = 10, 200, 5*time.Second
}

// TestTimeWaitOfServer: a newer connection with the same addresses and ports ends TIME_WAIT.
func TestTimeWaitOfServer(t *testing.T) {
	r := newTestPair(t, few, page())
	play(t, r, 100, 20*time.Second)
	clean(t, r, 100)
	if n := r.server.stats.Packets.Reused; n < 90 {
		t.Errorf("TIME_WAIT was ended %d times by a younger connection", n)
	}
}

// TestTimeWaitOfClient: a client that closed first keeps the address and port for the whole
// TIME_WAIT.
func TestTimeWaitOfClient(t *testing.T) {
	closing := page()
	closing.Close = Client
	r := newTestPair(t, few, closing)
	play(t, r, 1000, 12*time.Second) // 2 turns of 5 s are over
	c := r.client.stats.Total()
	if c.Opened != 30 || c.Completed != 30 || r.client.stats.Packets.NoTuple == 0 {
		t.Errorf("%+v, packets %+v", c, r.client.stats.Packets)
	}
}

// TestTimeWaitIsEvictedWhenFull: a full table evicts connections in TIME_WAIT.
func TestTimeWaitIsEvictedWhenFull(t *testing.T) {
	r := newTestPair(t, func(p *Profile) { p.TCP.TimeWait = time.Minute }, page())
	c := r.server.c
	c.Capacity, c.GatewayMAC = 250, clientMAC
	link := memlink.New(c.UMEM, pairFrameSize, pairRing)
	c.Link, r.serverLink = link, link
	var err error
	if r.server, err = New(c); err != nil {
		t.Fatal(err)
	}
	play(t, r, 1000, 20*time.Second)
	clean(t, r, 1000)
	if r.server.stats.Packets.CutShort == 0 || r.server.stats.Packets.Full != 0 {
		t.Errorf("packets %+v", r.server.stats.Packets)
	}
}

// TestUnanswered: SYN is repeated at doubling intervals, and then given up.
func TestUnanswered(t *testing.T) {
	r := newTestPair(t, func(p *Profile) { p.Concurrency, p.TCP.Retries = 1, 4 }, page())
	var at []time.Duration
	r.fault = func(to *memlink.Link, frame []byte) {
		if _, ok := transport(frame); ok {
			at = append(at, time.Duration(r.client.since))
			return
		}
		to.Inject(frame)
	}
	play(t, r, 1, time.Minute)
	if c := r.client.stats.Total(); c.Failed[Unanswered] != 1 || c.Retransmits != 4 || len(at) != 5 {
		t.Fatalf("%d SYN, %+v", len(at), c)
	}
	for k, want := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second} {
		if apart := at[k+1] - at[k]; (apart - want).Abs() > 5*time.Millisecond {
			t.Errorf("retransmission %d after %s, want %s", k+1, apart, want)
		}
	}
}

// TestRefused: a port that the server does not know is refused at once.
func TestRefused(t *testing.T) {
	r := newTestPair(t, nil, page())
	r.server.plan.byPort = [2][1 << 16]uint8{}
	play(t, r, 20, 20*time.Second)
	if c := r.client.stats.Total(); c.Failed[Refused] != c.Opened || c.ResetsIn != c.Opened {
		t.Errorf("%+v", c)
	}
}

// TestServerResetsUnknownConnection: a server resets a connection that it has lost.
func TestServerResetsUnknownConnection(t *testing.T) {
	think := page()
	think.Steps = append(think.Steps, Step{From: Client, Size: 10, After: time.Second}, Step{From: Server, Size: 20})
	r := newTestPair(t, nil, think)
	forgotten := false
	r.fault = func(to *memlink.Link, frame []byte) {
		if !forgotten && r.client.since > uint64(500*time.Millisecond) {
			forgotten = true
			for i := range r.server.conns {
				if r.server.conns[i].state == open {
					r.server.release(uint32(i))
				}
			}
		}
		to.Inject(frame)
	}
	play(t, r, 200, 20*time.Second)
	c := r.client.stats.Total()
	if !forgotten || c.Failed[Reset] < 100 || c.Failed[Reset] != c.Failures() || c.Completed+c.Failures() != c.Opened {
		t.Errorf("%+v", c)
	}
}

// TestLateFIN: the side that closes first waits for the peer's FIN for the template's timeout, also
// if that is longer than its retransmission timer, and then gives up. The wire removes the FIN flag
// from each early FIN of the peer and keeps the acknowledgement. A closed window does not shorten
// the wait: there is no data to probe with.
func TestLateFIN(t *testing.T) {
	for _, tc := range []struct {
		name   string
		close  Side
		late   time.Duration // how long the wire removes the peer's FIN
		closed bool          // the peer's window is closed meanwhile
		failed uint64
	}{
		{"client closes first", Client, time.Second, false, 0},
		{"server closes first", Server, time.Second, false, 0},
		{"closed window", Client, time.Second, true, 0},
		{"never", Client, time.Minute, false, 1},
		{"never, closed window", Client, time.Minute, true, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			template := page()
			template.Close = tc.close
			r := newTestPair(t, func(p *Profile) { p.Concurrency = 1 }, template)
			first, firstLink := r.client, r.clientLink
			if tc.close == Server {
				first, firstLink = r.server, r.serverLink
			}
			var closedAt, resetAfter time.Duration
			r.fault = func(to *memlink.Link, frame []byte) {
				b, ok := transport(frame)
				now := time.Duration(first.since)
				switch {
				case !ok:
				case to != firstLink && b[13]&header.TCPRST != 0:
					resetAfter = now - closedAt
				case to != firstLink && b[13]&header.TCPFIN != 0 && closedAt == 0:
					closedAt = now
				case to == firstLink && closedAt != 0 && now-closedAt < tc.late:
					b[13] &^= header.TCPFIN
					if tc.closed {
						b[14], b[15] = 0, 0
					}
					framing.Seal(b, first.addressesOf(frame), header.ProtoTCP)
				}
				to.Inject(frame)
			}
			play(t, r, 1, 20*time.Second)
			c := first.stats.Total()
			if c.Opened != 1 || c.Completed+tc.failed != 1 || c.Failed[Timeout] != tc.failed ||
				c.Failures() != tc.failed {
				t.Errorf("%+v", c)
			}
			if want := 5 * time.Second; tc.failed != 0 && (resetAfter-want).Abs() > 10*time.Millisecond {
				t.Errorf("given up %s after the own FIN, want %s", resetAfter, want)
			}
		})
	}
}

// TestLastFrame: a packet stays inside its frame, for every frame of the UMEM.
func TestLastFrame(t *testing.T) {
	e := newTestPair(t, nil, page()).client
	frames := e.pool.Free()
	for range frames {
		_, ok := e.take(&conn{protocol: ProtocolTCP}, 1480)
		if at := e.tx[e.txN].Addr % pairFrameSize; !ok || at+uint64(len(e.frame)) > pairFrameSize {
			t.Fatalf("room %v: %d bytes from byte %d of a frame of %d", ok, len(e.frame), at, pairFrameSize)
		}
	}
	if _, ok := e.take(&conn{protocol: ProtocolTCP}, 1480); ok || frames == 0 {
		t.Errorf("room in none of %d frames", frames)
	}
}

// TestPartialWindowIsRetransmitted: if only a part of the window could be sent, and that part is
// lost, it is retransmitted after the RTO.
func TestPartialWindowIsRetransmitted(t *testing.T) {
	r := newTestPair(t, func(p *Profile) { p.Concurrency = 1 }, page())
	var taken []uint64
	lost := 0
	r.fault = func(to *memlink.Link, frame []byte) {
		b, ok := transport(frame)
		switch {
		case !ok || len(b) <= header.TCPBytes+4:
		case to == r.serverLink && taken == nil: // the request: frames for two segments remain
			for r.server.pool.Free() > 2 {
				addr, _ := r.server.pool.Get()
				taken = append(taken, addr)
			}
		case to == r.clientLink && lost < 2:
			if lost++; lost == 2 {
				for _, addr := range taken {
					r.server.pool.Put(addr)
				}
			}
			return
		}
		to.Inject(frame)
	}
	play(t, r, 1, time.Second)
	clean(t, r, 1)
	if s := r.server.stats.Total(); lost != 2 || s.Retransmits == 0 {
		t.Errorf("%d segments were lost: %+v", lost, s)
	}
}

// TestWindow: at most the smaller window is in flight, and no segment is longer than the peer's
// MSS.
func TestWindow(t *testing.T) {
	r := newTestPair(t, func(p *Profile) { p.TCP.Window, p.TCP.MSS, p.Concurrency = 3000, 700, 1 }, large())
	inFlight, most := map[*memlink.Link]int{}, 0
	r.fault = func(to *memlink.Link, frame []byte) {
		if b, ok := transport(frame); ok {
			n := len(b) - int(b[12]>>4)*4
			if n > 700 {
				t.Errorf("a segment of %d bytes", n)
			}
			inFlight[to] += n
			if n > 0 {
				most = max(most, inFlight[to])
			} else if to == r.clientLink { // an acknowledgement of all received data
				inFlight[r.serverLink] = 0
			} else {
				inFlight[r.clientLink] = 0
			}
		}
		to.Inject(frame)
	}
	play(t, r, 2, 20*time.Second)
	clean(t, r, 2)
	if most > 3000 || most < 2000 {
		t.Errorf("%d bytes were in flight", most)
	}
}

// TestMemoryCommand: the command that measures only the engines, with small windows.
func TestMemoryCommand(t *testing.T) {
	c := Defaults()
	c.Memory, c.Window, c.Repeat, c.Concurrent = true, heldThink+100*time.Millisecond, 1, 20_000
	var out, progress discard
	c.Out, c.Progress = &out, &progress
	if err := Run(t.Context(), c); err != nil || out == 0 {
		t.Errorf("%d bytes printed, %v", out, err)
	}
	// With so few connections, all may be silent for most of a second, so there is no figure.
	c.Window = 10 * time.Millisecond
	if err := Run(t.Context(), c); err == nil || !strings.Contains(err.Error(), "no packet") {
		t.Errorf("in windows without a packet: %v", err)
	}
}

// discard counts the bytes written to it.
type discard int

func (d *discard) Write(b []byte) (int, error) {
	*d += discard(len(b))
	return len(b), nil
}

// TestClosedWindow: a window that stays closed for longer than all retries take does not end the
// connection as long as probes are answered, and no probe is counted as a retransmission. The
// server's probe intervals double.
func TestClosedWindow(t *testing.T) {
	const opens = 30 * time.Second
	for _, tc := range []struct {
		name   string
		taken  bool // the peer accepts the byte of a probe
		silent bool // the peer does not answer
		shrunk bool // the window is closed while segments are in flight
	}{
		{"answered", false, false, false},
		{"taken", true, false, false},
		{"unanswered", false, true, false},
		{"shrunk", false, false, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			template := page()
			template.Timeout = 2 * time.Minute
			r := newTestPair(t, func(p *Profile) { p.Concurrency, p.TCP.Retries = 1, 3 }, template)
			var probes []time.Duration
			begun := !tc.shrunk
			r.fault = func(to *memlink.Link, frame []byte) {
				b, ok := transport(frame)
				if now := time.Duration(r.server.since); !ok || b[13]&header.TCPSYN != 0 || now >= opens {
					to.Inject(frame)
					return
				} else if n := len(b) - header.TCPBytes; to == r.serverLink && begun {
					b[14], b[15] = 0, 0
				} else if to == r.clientLink && n > 1 {
					if begun {
						return // the segments behind the first
					}
					begun = true
				} else if to == r.clientLink && n == 1 {
					probes = append(probes, now)
					if tc.silent {
						return
					}
					if !tc.taken { // again the byte before it, which the peer drops and acknowledges
						binary.BigEndian.PutUint32(b[4:], binary.BigEndian.Uint32(b[4:])-1)
					}
				}
				framing.Seal(b, r.server.addressesOf(frame), header.ProtoTCP)
				to.Inject(frame)
			}
			play(t, r, 1, 3*time.Minute)
			c, s := r.client.stats.Total(), r.server.stats.Total()
			if tc.silent {
				if s.Failed[Timeout] != 1 || len(probes) != 3 || s.Retransmits != 0 || s.BytesOut != 0 {
					t.Errorf("%d probes: %+v", len(probes), s)
				}
				return
			}
			clean(t, r, 1)
			if again := s.Retransmits != 0; again != tc.shrunk || c.BytesIn != s.BytesOut {
				t.Errorf("client %+v\nserver %+v", c, s)
			}
			if len(probes) < 7 {
				t.Fatalf("probes at %s", probes)
			}
			for k := range probes[2:] {
				one, next := probes[k+1]-probes[k], probes[k+2]-probes[k+1]
				if ratio := float64(next) / float64(one); ratio < 1.9 || ratio > 2.1 {
					t.Fatalf("probes at %s", probes)
				}
			}
		})
	}
}

// TestWholeExchange: the time of an exchange is from its SYN to the last byte of the answer, and
// each completed exchange has one.
func TestWholeExchange(t *testing.T) {
	p, err := Named("http")
	if err != nil {
		t.Fatal(err)
	}
	p.Templates = p.Templates[:1]
	r, err := newPair(p)
	if err != nil {
		t.Fatal(err)
	}
	for now := uint64(time.Hour); r.client.stats.Templates[0].Completed < 100; now += uint64(10 * time.Microsecond) {
		if now > uint64(time.Hour+10*time.Second) {
			t.Fatalf("%d exchanges were completed in 10 s", r.client.stats.Templates[0].Completed)
		}
		r.step(now)
	}
	s := &r.client.stats
	if n := s.Whole[0].TotalCount(); n < 100 || n > int64(s.Templates[0].Connected) {
		t.Errorf("%d exchanges were timed, of %d connections and %d completed", n, s.Templates[0].Connected,
			s.Templates[0].Completed)
	}
	connect, first, whole := s.Connect[0].Mean(), s.FirstByte[0].Mean(), s.Whole[0].Mean()
	if whole < connect+first {
		t.Errorf("to connect took %.1f us, then to the first byte %.1f, and all together %.1f", connect, first, whole)
	}
}

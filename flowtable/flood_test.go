package flowtable

import (
	"fmt"
	"testing"
	"time"

	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/test/bed/size"
)

// scale divides the sizes of these tests under the race detector, and also their rates: so a cap or
// a range of ports still absorbs a flood for the same time.
func scale() uint32 {
	if size.Race || testing.Short() {
		return 20
	}
	return 1
}

// testKey makes the table's behaviour the same in each run.
var testKey = HashKey{1, 2, 3, 4, 5, 6}

// honest is a client's connection in the middle of its handshake.
type honest struct {
	flow NewFlow
	due  Time // when the client's ACK and the backend's data arrive
}

// synFlood drives a table: one handle gets a flood of SYNs from forged addresses, which the
// backends answer; one handle, perhaps the same, gets clients whose handshake takes 50 ms.
type synFlood struct {
	t              *testing.T
	tb             *Table
	flooded, other *Handle
	now            Time
	n              uint32 // clients so far
	open           []honest
	refused, lost  int
	made           int
}

const handshake = Time(50 * time.Millisecond)

func (s *synFlood) enter() {
	s.flooded.Enter(s.now)
	if s.other != s.flooded {
		s.other.Enter(s.now)
	}
}

// forged sends forged SYNs; the backend answers each.
func (s *synFlood) forged(syns uint32) {
	for range syns {
		s.n++
		f := newFlow(header.ProtoTCP, false, s.n)
		if r, status := s.flooded.Create(s.now, &f); status == Created {
			s.flooded.Observe(r, ReplySide, seg(ReplySide, header.TCPSYN|header.TCPACK), s.now)
		}
	}
}

// connect begins an honest handshake.
func (s *synFlood) connect() {
	s.n++
	s.made++
	f := newFlow(header.ProtoTCP, false, s.n)
	r, status := s.other.Create(s.now, &f)
	if status != Created {
		s.refused++
		return
	}
	s.other.Observe(r, ReplySide, seg(ReplySide, header.TCPSYN|header.TCPACK), s.now)
	s.open = append(s.open, honest{f, s.now + handshake})
}

// complete completes the handshakes that are due.
func (s *synFlood) complete() {
	for len(s.open) > 0 && s.open[0].due <= s.now {
		r, _ := s.other.lookup(&s.open[0].flow.Client, s.now)
		if r == 0 {
			s.lost++
		} else {
			s.other.Observe(r, ClientSide, seg(ClientSide, header.TCPACK), s.now)
			s.other.Observe(r, ReplySide, seg(ReplySide, header.TCPACK), s.now)
		}
		s.open = s.open[1:]
	}
}

// establish makes connections that exist before the flood.
func (s *synFlood) establish(flows uint32) {
	for n := range flows {
		if n%64 == 0 {
			s.enter()
		}
		s.n++
		s.other.establish(s.other.mustCreate(s.t, s.now, newFlow(header.ProtoTCP, false, s.n)), s.now)
	}
}

// TestHonestHandshakesInSYNFlood: as long as the half-open cap absorbs a flood for longer than a
// handshake takes, no honest handshake fails or is ended, for any contents and order of the table,
// and for any worker that gets the flood.
func TestHonestHandshakesInSYNFlood(t *testing.T) {
	for _, c := range []struct {
		established, rate uint32 // SYNs a second
		seconds           int
		halfOpen          uint32
	}{
		{200_000, 10_000, 18, 163_840},
		{500_000, 40_000, 6, 163_840},
		{500_000, 40_000, 2, 12_000}, // the cap absorbs the flood for 0.3 s
	} {
		for _, order := range []string{"established first", "half-open first", "mixed"} {
			for _, handles := range []int{1, 2} {
				if handles == 1 && (c.halfOpen == 12_000 || size.Race) {
					continue
				}
				name := fmt.Sprintf("%d established, %d SYN/s, cap %d, %s, %d handles", c.established, c.rate,
					c.halfOpen, order, handles)
				t.Run(name, func(t *testing.T) {
					testSYNFlood(t, c.established/scale(), c.rate/scale(), c.halfOpen/scale(), c.seconds, order,
						handles)
				})
			}
		}
	}
}

func testSYNFlood(t *testing.T, established, rate, halfOpen uint32, seconds int, order string, handles int) {
	tb, h := testTableOf(t, Config{IPv4Flows: 1_048_576 / scale(), IPv6Flows: 262_144 / scale(), HalfOpen: halfOpen,
		Timeouts: DefaultTimeouts(), HashKey: testKey})
	tb.ShareRings(handles)
	s := synFlood{t: t, tb: tb, flooded: h, other: h, now: bootTime}
	if handles == 2 {
		var err error
		if s.other, err = tb.Register(); err != nil {
			t.Fatal(err)
		}
	}
	s.enter()
	if order != "established first" {
		seconds = min(seconds, 3) // the cap is nearly reached
	}
	switch order {
	case "established first":
		s.establish(established)
	case "half-open first":
		s.forged(halfOpen * 9 / 10)
		s.establish(established)
	case "mixed":
		for range 100 {
			s.establish(established / 100)
			s.forged(halfOpen * 9 / 1000)
		}
	}
	s.now += second
	const perSecond = 500 // steps
	for step := range seconds * perSecond {
		s.now += second / perSecond
		s.enter()
		s.complete()
		s.forged(rate / perSecond / 2)
		s.connect()
		s.forged(rate/perSecond - rate/perSecond/2)
		s.flooded.Sweep(s.now, tb.SweepQuota(time.Second/perSecond))
		if step%perSecond == 0 {
			if n := tb.Counts().HalfOpen; n > uint64(halfOpen) {
				t.Fatalf("%d half-open flows, the cap is %d", n, halfOpen)
			}
		}
	}
	c := tb.Counts()
	if c.Shed[ShedHalfOpen] == 0 {
		t.Error("the flood did not reach the cap")
	}
	if s.refused+s.lost > 0 {
		t.Errorf("of %d honest handshakes %d were refused, and %d flows ended before the client's ACK", s.made,
			s.refused, s.lost)
	}
	if n := c.Refused[HalfOpenLimit]; n > c.Created[0]/1000 {
		t.Errorf("%d SYNs refused", n)
	}
	if want := uint64(int(established) + s.made - len(s.open)); c.States[Established] != want {
		t.Errorf("%d established flows, want %d", c.States[Established], want)
	}
	validate(t, tb)
}

// spoofedUDP sends two datagrams from a forged address, with the backend's reply in between.
func (h *Handle) spoofedUDP(now Time, f *NewFlow) Status {
	r, s := h.Create(now, f)
	if s == Created {
		h.assure(r, now)
	}
	return s
}

// TestUDPPortsInSpoofedFlood: 230 forged datagrams a second, two for each flow, to one backend, for
// five minutes. Honest queries get a port and keep it until they are answered, and sessions that
// are in use keep theirs.
func TestUDPPortsInSpoofedFlood(t *testing.T) {
	for _, c := range []struct {
		name   string
		prefix bool
	}{{"one prefix", true}, {"random addresses", false}} {
		t.Run(c.name, func(t *testing.T) {
			tb, h := testTable(t, 200_000, 0)
			flow := func(n uint32, src header.Addr) NewFlow {
				f := toOneBackend(header.ProtoUDP, false, n)
				f.Client.Src = src
				return f
			}
			const sessions, perSecond = 500, 100 // steps
			seconds := uint32(300)
			if scale() > 1 {
				seconds = 60
			}
			for n := range uint32(sessions) {
				h.assure(h.mustCreate(t, bootTime, flow(n, addrN(false, 12, n*256))), bootTime)
			}
			now, spoofed, queries, answered := bootTime, uint32(0), uint32(0), 0
			var asked []honest
			for step := range seconds * perSecond {
				now += second / perSecond
				h.Enter(now)
				for ; spoofed < step*115/perSecond; spoofed++ {
					src := addrN(false, 13, spoofed*2654435761>>8)
					if c.prefix {
						src = addrN(false, 13, spoofed%256)
					}
					f := flow(1_000_000+spoofed, src)
					f.Client.SrcPort = uint16(1024 + spoofed/256)
					h.spoofedUDP(now, &f)
				}
				if step%5 == 0 { // 20 a second, from a thousand networks
					f := flow(2_000_000+queries, addrN(false, 14, queries%1000*256))
					if _, s := h.Create(now, &f); s == Created {
						asked = append(asked, honest{f, now + second/20})
					}
					queries++
				}
				for len(asked) > 0 && asked[0].due <= now {
					if r, _ := h.lookup(&asked[0].flow.Client, now); r != 0 {
						answered++
						h.Observe(r, ReplySide, seg(ReplySide, 0), now)
					}
					asked = asked[1:]
				}
				for n := step % (10 * perSecond); n < sessions; n += 10 * perSecond { // each every 10 s
					f := flow(n, addrN(false, 12, n*256))
					if r, _ := h.lookup(&f.Client, now); r != 0 {
						h.assure(r, now)
					} else {
						t.Fatalf("session %d lost its port after %d s", n, (now-bootTime)/second)
					}
				}
				h.Sweep(now, tb.SweepQuota(time.Second/perSecond))
			}
			if all := int(queries) - len(asked); answered < all*99/100 {
				t.Errorf("%d of %d honest queries answered", answered, all)
			}
			validate(t, tb)
		})
	}
}

// TestPrefixThatHoldsMostGivesWay: among UDP flows with equally little use, Create ends one of the
// prefix that holds most ports, even if others are older. It ends no flow with more use.
func TestPrefixThatHoldsMostGivesWay(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		tb, h := testTable(t, 100*b2u(!v6), 100*b2u(v6))
		now := bootTime + 60*second
		prefix := [4]uint32{1, 2, 2, 3} // of the holders of four ports
		var held [4]Ref
		for i, p := range prefix {
			f := newFlow(header.ProtoUDP, v6, uint32(i))
			f.Client.Src[6+8*b2i(!v6)] = byte(p)
			f.Backend, f.SourcePort, f.Ports = addrN(v6, 11, 1), 7000+uint16(i), Ports{}
			born := bootTime + Time(i)*second
			held[i] = h.mustCreate(t, born, f)
			h.assure(held[i], born)
		}
		h.assure(held[2], bootTime+10*second) // used in another second
		for i, want := range []uint16{7001, 7000, 7003, 7002} {
			f := newFlow(header.ProtoUDP, v6, uint32(100+i))
			f.Backend, f.Ports = addrN(v6, 11, 1), Ports{First: 7000, Count: 4, Start: uint16(i), Stride: 1}
			r, s := h.Create(now, &f)
			if s != Created || h.reply(r).DstPort != want {
				t.Fatalf("IPv6 %v, flow %d: %v at port %d, want %d", v6, i, s, h.reply(r).DstPort, want)
			}
			h.assure(r, now)
		}
		validate(t, tb)
	}
}

func b2u(b bool) uint32 { return uint32(b2i(b)) }

// TestResetConnectionsHoldNoPorts: 100 connections a second to one backend, which ends each with an
// RST, for ten minutes: their flows are kept for four minutes, as the RST may be forged, and yet no
// connection is refused.
func TestResetConnectionsHoldNoPorts(t *testing.T) {
	tb, h := testTable(t, 200_000, 0)
	refused, connections := 0, uint32(60_000)
	if scale() > 1 {
		connections = 20_000 // also more than there are ports
	}
	for n := range connections {
		now := bootTime + Time(n)*second/100
		h.Enter(now)
		f := toOneBackend(header.ProtoTCP, false, n)
		r, s := h.Create(now, &f)
		if s != Created {
			refused++
			continue
		}
		h.establish(r, now)
		h.Observe(r, ReplySide, seg(ReplySide, header.TCPRST|header.TCPACK), now)
		h.Sweep(now, tb.SweepQuota(10*time.Millisecond))
	}
	if refused > 0 {
		t.Errorf("%d of %d connections refused", refused, connections)
	}
	if tb.Counts().Shed[ShedReset] == 0 {
		t.Error("no reset flow was shed")
	}
	validate(t, tb)
}

// TestClientsOfCrashedBackendReconnect: a backend with 9,000 connections crashes, restarts at once
// and answers each connection with an RST: all clients connect again within five seconds.
func TestClientsOfCrashedBackendReconnect(t *testing.T) {
	const clients = 9000
	tb, h := testTable(t, 200_000, 0)
	for n := range uint32(clients) {
		if n%64 == 0 {
			h.Enter(bootTime)
		}
		r := h.mustCreate(t, bootTime, toOneBackend(header.ProtoTCP, false, n))
		h.establish(r, bootTime)
		h.Observe(r, ReplySide, seg(ReplySide, header.TCPRST|header.TCPACK), bootTime)
	}
	again := 0
	for n := range uint32(clients) {
		now := bootTime + 5*second*Time(n)/clients
		h.Enter(now)
		f := toOneBackend(header.ProtoTCP, false, 100_000+n)
		if r, s := h.Create(now, &f); s == Created {
			again++
			h.establish(r, now)
		}
	}
	if again != clients {
		t.Errorf("%d of %d connected again", again, clients)
	}
	validate(t, tb)
}

// TestUnansweredUDPFlood: one client, or the clients of a few networks, ask questions that a
// backend does not answer: each question holds a source port for 30 s, and together they need more
// ports than there are. Questions of other clients, 100 a second, get a port and keep it until they
// are answered.
func TestUnansweredUDPFlood(t *testing.T) {
	for _, c := range []struct{ networks, perSecond, ports uint32 }{
		{1, 500, backendPorts}, {1, 4000, backendPorts}, {1, 16_000, backendPorts}, {4, 4000, backendPorts},
		{1, 4000, 2048},
	} {
		for _, v6 := range []bool{false, true} {
			if v6 && (c.perSecond != 4000 || size.Race) || scale() > 1 && c.ports == backendPorts {
				continue
			}
			t.Run(fmt.Sprintf("%d networks, %d a second, %d ports, IPv6 %v", c.networks, c.perSecond, c.ports, v6),
				func(t *testing.T) { testUnansweredUDP(t, c.networks, c.perSecond, c.ports, v6) })
		}
	}
}

func testUnansweredUDP(t *testing.T, networks, perSecond, ports uint32, v6 bool) {
	const steps, honestPerSecond = 100, 100 // of a second
	tb, h := testTable(t, 200_000*b2u(!v6), 200_000*b2u(v6))
	client := func(network, n uint32) (f NewFlow) {
		f = toOneBackend(header.ProtoUDP, v6, n)
		f.Client.Src, f.Client.SrcPort = addrN(v6, 13, network<<8), uint16(n)
		if v6 {
			f.Client.Src[5], f.Client.Src[6] = byte(network>>8), byte(network)
		}
		f.Ports.Count, f.Ports.Start = uint16(ports), uint16(n*40503%ports)
		return f
	}
	now, flood, queries, answered := bootTime, uint32(0), uint32(0), 0
	var asked []honest
	ask := func(f NewFlow) bool {
		r, s := h.Create(now, &f)
		if s == Created {
			h.Observe(r, ClientSide, Segment{}, now)
		}
		return s == Created
	}
	seconds := uint32(40)
	if scale() > 1 {
		seconds = 2
	}
	for step := range seconds * steps {
		now += second / steps
		h.Enter(now)
		for ; flood < step*perSecond/steps; flood++ {
			ask(client(flood%networks, flood))
		}
		for range honestPerSecond / steps {
			if f := client(1000+queries%1000, queries); ask(f) {
				asked = append(asked, honest{f, now + second/20})
			}
			queries++
		}
		for ; len(asked) > 0 && asked[0].due <= now; asked = asked[1:] {
			if r, _ := h.lookup(&asked[0].flow.Client, now); r != 0 {
				answered++
				h.Observe(r, ReplySide, Segment{}, now)
			}
		}
		h.Sweep(now, tb.SweepQuota(time.Second/steps))
	}
	if all := int(queries) - len(asked); answered < all*99/100 {
		t.Errorf("%d of %d questions of others answered", answered, all)
	}
	if c := tb.Counts(); c.Refused[PortsExhausted] == 0 {
		t.Error("the flood got a port for each question")
	}
	validate(t, tb)
}

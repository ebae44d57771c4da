package fastpath_test

import (
	"context"
	"testing"
	"time"

	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/fastpath/copies"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/nat/reason"
)

// groupLab is a gateway of a group. decide takes the place of the goroutine that copies flows.
func groupLab(t testing.TB, c labConfig) (l *lab, decide func(copies.Outcome)) {
	c.workers = max(1, c.workers)
	c.board = copies.NewBoard(c.workers, func() {})
	edit := c.edit
	c.edit = func(b *services.Builder) {
		if edit != nil {
			edit(b)
		}
		b.Settings().Group4 = addr(groupSource)
		b.SetAddr(addr(groupSource), services.AddrSNAT)
		b.Settings().ResetUnknown = true
	}
	l = newLab(t, c)
	h, err := l.table.Register()
	if err != nil {
		t.Fatal(err)
	}
	var outcome copies.Outcome
	see := func(r flowtable.Ref) {
		if h.Live(r) {
			h.Decide(r, uint8(outcome))
		}
	}
	return l, func(o copies.Outcome) {
		outcome = o
		h.Enter(flowtable.Time(l.now))
		l.table.Changed(see)
		c.board.Decided()
		h.Leave()
	}
}

// openBy sends a SYN from a port of the client, and its SYN-ACK.
func (l *lab) openBy(port uint16) {
	l.t.Helper()
	l.send(0, headertest.TCP(join(client4, port), join(vip4, 80), headertest.SYN))
	_, p := l.out(l.workers[0].nic)
	from, to := ends(&p.Tuple)
	l.send(0, headertest.TCP(to.String(), from.String(), headertest.SYN|headertest.ACK))
}

// TestWaitingAnswers: a SYN-ACK leaves with each decision, or after 2 ms.
func TestWaitingAnswers(t *testing.T) {
	for _, o := range []copies.Outcome{copies.Protected, copies.NoMember, copies.Refused, copies.Late} {
		l, decide := groupLab(t, labConfig{})
		l.openBy(1000)
		l.step(1900 * time.Microsecond)
		l.nothing(l.workers[0].nic)
		if o == copies.Late {
			l.step(100 * time.Microsecond)
		} else {
			decide(o)
			l.step(0)
		}
		_, p := l.out(l.workers[0].nic)
		l.wantTuple(&p, join(vip4, 80), join(client4, 1000))
		if n := l.workers[0].config.Copies.Flows(); n[o] != 1 {
			t.Errorf("%v: counted %v", o, n)
		}
	}
}

// TestDataOvertakes: a SYN-ACK that waits, and leaves after data of the backend, has left as any
// other one (RFC 7413: the backend may send data before the handshake is over).
func TestDataOvertakes(t *testing.T) {
	l, _ := groupLab(t, labConfig{})
	nic := l.workers[0].nic
	l.send(0, headertest.TCP(join(client4, 1000), join(vip4, 80), headertest.SYN))
	_, p := l.out(nic)
	from, to := ends(&p.Tuple)
	answer := headertest.TCP(to.String(), from.String(), headertest.SYN|headertest.ACK)
	l.send(0, answer)
	l.nothing(nic)
	data := headertest.TCP(to.String(), from.String(), headertest.ACK)
	data.Seq, data.Payload = answer.Seq+1, []byte("data")
	l.send(0, data)
	l.out(nic)
	l.step(2 * time.Millisecond)
	l.out(nic)
	if n := l.workers[0].config.Copies.Flows(); n[copies.Late] != 1 {
		t.Errorf("counted %v", n)
	}
	h, err := l.table.Register()
	if err != nil {
		t.Fatal(err)
	}
	h.Enter(flowtable.Time(l.now))
	client := header.Tuple{Src: addr(client4), SrcPort: 1000, Dst: addr(vip4), DstPort: 80, Proto: header.ProtoTCP}
	if r, _ := h.Lookup(h.Hash(&client), &client, flowtable.Time(l.now)); r == 0 || h.GiveUp(r) {
		t.Error("the flow is given up")
	}
}

// TestNoRoomToWait: a SYN-ACK for which there is no room leaves at once, and is counted.
func TestNoRoomToWait(t *testing.T) {
	l, _ := groupLab(t, labConfig{})
	for port := range uint16(200) {
		l.openBy(1000 + port)
		l.workers[0].nic.Loop()
		for _, ok := l.workers[0].nic.Take(nil); ok; _, ok = l.workers[0].nic.Take(nil) {
			continue
		}
	}
	n := l.workers[0].config.Copies.Flows()
	if n[copies.NoRoom] != 200-frames/8 {
		t.Errorf("counted %v, want %d of %v", n, 200-frames/8, copies.NoRoom)
	}
}

// TestWaitingAtShutdown: packets that wait are dropped with a reason, and handed over as others
// are.
func TestWaitingAtShutdown(t *testing.T) {
	l, _ := groupLab(t, labConfig{})
	l.openBy(1000)
	w := l.workers[0]
	done := make(chan fastpath.Remains, 1)
	w.Tell(func(w *fastpath.Worker) { done <- w.Pause() })
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx, fastpath.RunConfig{CPU: -1}) }()
	if r := <-done; len(r.Parked) != 1 {
		t.Errorf("%d packets are handed over, want 1", len(r.Parked))
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if n := w.stats.Drops[reason.Shutdown].Load(); n != 1 {
		t.Errorf("%d packets dropped for %v, want 1", n, reason.Shutdown)
	}
}

// TestWaitingAtHandOver: a SYN-ACK that waits at a hand-over leaves without a copy, and its flow is
// counted.
func TestWaitingAtHandOver(t *testing.T) {
	l, _ := groupLab(t, labConfig{})
	l.openBy(1000)
	g := l.workers[0]
	r := g.Pause()
	next := l.successor(g)
	if err := next.Assume(r, ownFrames(g, &r)); err != nil {
		t.Fatal(err)
	}
	if n := g.config.Copies.Flows(); n[copies.Late] != 1 {
		t.Errorf("counted %v, want 1 of %v", n, copies.Late)
	}
}

// TestOthersSegment: a segment that does not acknowledge the backend's SYN belongs to another
// gateway's connection, and gets no answer.
func TestOthersSegment(t *testing.T) {
	for name, edit := range map[string]func(*services.Builder){"plain": nil, "PROXY protocol": proxied} {
		t.Run(name, func(t *testing.T) { testOthersSegment(t, labConfig{edit: edit}) })
	}
}

func testOthersSegment(t *testing.T, c labConfig) {
	l, decide := groupLab(t, c)
	nic := l.workers[0].nic
	segment := func(ack uint32) {
		p := headertest.TCP(join(client4, 1000), join(vip4, 80), headertest.ACK)
		p.Ack = ack
		l.send(0, p)
	}
	l.send(0, headertest.TCP(join(client4, 1000), join(vip4, 80), headertest.SYN))
	_, asked := l.out(nic)
	from, to := ends(&asked.Tuple)
	segment(5001)
	l.nothing(nic) // the backend has not answered
	answer := headertest.TCP(to.String(), from.String(), headertest.SYN|headertest.ACK)
	answer.Seq = 5000
	l.send(0, answer)
	decide(copies.Protected)
	l.step(0)
	l.out(nic)
	for _, ack := range []uint32{4000, 5000, 1 << 31, 5001 + 2<<20} {
		segment(ack)
		l.nothing(nic)
	}
	segment(5001 + 1460) // another gateway has forwarded data of the backend
	if c.edit == nil {
		l.out(nic)
	} else {
		l.nothing(nic) // nor has the copy the header's state
	}
	segment(5001)
	l.out(nic)
	segment(4000) // the connection is proven: the backend decides
	l.out(nic)
}

// TestSilent: an unknown segment gets no RST before MayReset, nor before its connection has been
// unknown for copies.Delay.
func TestSilent(t *testing.T) {
	l, _ := groupLab(t, labConfig{})
	unknown := headertest.TCP(join(client4, 7), join(vip4, 80), headertest.ACK)
	l.send(0, unknown)
	l.nothing(l.workers[0].nic)
	l.workers[0].config.Copies.SetResetsUntil(l.now + uint64(time.Second))
	l.send(0, unknown)
	l.nothing(l.workers[0].nic)
	l.step(copies.Delay)
	l.send(0, unknown)
	l.out(l.workers[0].nic)
	l.send(0, headertest.TCP(join(client4, 8), join(vip4, 80), headertest.ACK))
	l.nothing(l.workers[0].nic)
	l.step(time.Second)
	l.send(0, unknown)
	l.nothing(l.workers[0].nic)
	// Much later the tuple may have had another connection.
	l.step(time.Hour)
	l.workers[0].config.Copies.SetResetsUntil(l.now + uint64(time.Second))
	l.send(0, unknown)
	l.nothing(l.workers[0].nic)
}

func TestWaitingAllocatesNothing(t *testing.T) {
	const flows = 100
	l, decide := groupLab(t, labConfig{})
	w := l.workers[0]
	var answers [][]byte
	for port := range uint16(flows + 1) {
		l.send(0, headertest.TCP(join(client4, 1000+port), join(vip4, 80), headertest.SYN))
		_, p := l.out(w.nic)
		from, to := ends(&p.Tuple)
		answers = append(answers, headertest.TCP(to.String(), from.String(), headertest.SYN|headertest.ACK).Bytes())
	}
	if n := testing.AllocsPerRun(flows, func() {
		w.nic.Inject(answers[0])
		answers = answers[1:]
		w.Step(l.now)
		decide(copies.Protected)
		w.Step(l.now)
		w.nic.Loop()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if n := w.config.Copies.Flows(); n[copies.Protected] != flows+1 {
		t.Errorf("counted %v", n)
	}
}

package bfd

import (
	"testing"
	"time"
)

const ms = time.Millisecond

var (
	start = time.Unix(1e9, 0)
	fast  = Parameters{Receive: 100 * ms, Transmit: 100 * ms, Multiplier: 3}
)

// counter returns different numbers.
func counter(from uint32) func() uint32 { return func() uint32 { from++; return from } }

// link has two sessions, and a clock that advances from event to event.
type link struct {
	t     *testing.T
	now   time.Time
	ends  [2]*session
	lost  [2]bool     // packets of this end are lost
	sent  [2][]packet // all packets of each end
	at    [2][]time.Time
	ended [2]string
}

func newLink(t *testing.T, a, b Parameters) *link {
	return &link{t: t, now: start, ends: [2]*session{newSession(a, start, counter(1000)),
		newSession(b, start, counter(2000))}}
}

func (l *link) deliver(from int, p packet) {
	l.sent[from], l.at[from] = append(l.sent[from], p), append(l.at[from], l.now)
	to := l.ends[1-from]
	b := p.marshal()
	got, bad := parse(b[:])
	if bad != "" {
		l.t.Fatalf("%+v: %s", p, bad)
	}
	if l.lost[from] || !to.accepts(&got) {
		return
	}
	final, failed := to.packet(&got, l.now)
	if failed != "" {
		l.ended[1-from] = failed
	}
	if final {
		l.deliver(1-from, to.say(false, true))
	}
}

// run advances the clock.
func (l *link) run(d time.Duration) {
	for end := l.now.Add(d); ; {
		next := end
		for _, s := range l.ends {
			if at := s.nextWake(); !at.IsZero() && at.Before(next) {
				next = at
			}
		}
		if l.now = next; !l.now.Before(end) {
			return
		}
		for i, s := range l.ends {
			if failed := s.expire(l.now); failed != "" {
				l.ended[i] = failed
			}
			if at := s.due(); !at.IsZero() && !l.now.Before(at) {
				l.deliver(i, s.send(l.now))
			}
		}
	}
}

func (l *link) want(a, b State) {
	l.t.Helper()
	if l.ends[0].state != a || l.ends[1].state != b {
		l.t.Fatalf("after %v: %v and %v, want %v and %v", l.now.Sub(start), l.ends[0].state, l.ends[1].state, a, b)
	}
}

// TestUpAndDown: two ends come up within 3 s, then send in intervals of 75 to 100 ms, and an end
// that receives nothing goes down after three intervals of 100 ms.
func TestUpAndDown(t *testing.T) {
	t.Parallel()
	l := newLink(t, fast, fast)
	l.run(3 * time.Second)
	l.want(Up, Up)
	l.sent, l.at = [2][]packet{}, [2][]time.Time{}
	l.run(10 * time.Second)
	for i, at := range l.at[0][1:] {
		if d := at.Sub(l.at[0][i]); d < 75*ms || d > 100*ms {
			t.Fatalf("two packets are %v apart", d)
		}
	}
	if n := len(l.at[0]); n < 100 || l.sent[0][n-1].poll || l.sent[0][n-1].transmit != 100*ms {
		t.Errorf("%d packets in 10 s, the last one %+v", n, l.sent[0][n-1])
	}
	l.lost[1] = true
	l.run(199 * ms)
	l.want(Up, Up)
	l.run(101 * ms)
	l.want(Down, Down)
	if l.ended[0] != "no packet of the router's BFD has come for the detection time" ||
		l.ended[1] != "the router's BFD went down" {
		t.Errorf("%q", l.ended)
	}
	l.sent[0] = nil
	l.run(30 * time.Second)
	if n := len(l.sent[0]); n < 30 || n > 40 {
		t.Errorf("%d packets in 30 s while the session is not up, want one each second, or each 0.75 s", n)
	}
	l.lost[1] = false
	l.run(3 * time.Second)
	l.want(Up, Up)
}

// TestTransitions: the state machine of RFC 5880, section 6.8.6. Only a session that was up fails,
// and not if the router sends AdminDown.
func TestTransitions(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		is, hears, becomes State
		failed             bool
	}{
		{Down, AdminDown, Down, false}, {Down, Down, Init, false}, {Down, Init, Up, false}, {Down, Up, Down, false},
		{Init, AdminDown, Down, false}, {Init, Down, Init, false}, {Init, Init, Up, false}, {Init, Up, Up, false},
		{Up, AdminDown, Down, false}, {Up, Down, Down, true}, {Up, Init, Up, false}, {Up, Up, Up, false},
		{AdminDown, Down, AdminDown, false}, {AdminDown, Up, AdminDown, false},
	} {
		s := newSession(fast, start, counter(0))
		s.state = c.is
		_, failed := s.packet(&packet{state: c.hears, my: 7, your: s.my, multiplier: 3, transmit: 100 * ms,
			receive: 100 * ms}, start)
		if s.state != c.becomes || (failed != "") != c.failed {
			t.Errorf("%v hears %v: %v, failed %q; want %v, %v", c.is, c.hears, s.state, failed, c.becomes, c.failed)
		}
	}
}

// TestForged: a host on the link forges the router's address but does not know the session's
// discriminator. Before the session is up its packets cause only short delays; then they do
// nothing.
func TestForged(t *testing.T) {
	t.Parallel()
	for _, long := range []time.Duration{0, 100 * ms, maxInterval} {
		forged := packet{state: Down, my: 666, multiplier: 255, transmit: long, receive: long}
		s := newSession(fast, start, counter(0))
		s.packet(&forged, start)
		if s.state != Init || s.expires.Sub(start) > maxDetection {
			t.Errorf("%v: %v until %v", long, s.state, s.expires.Sub(start))
		}
		if failed := s.expire(start.Add(maxDetection)); s.state != Down || failed != "" {
			t.Errorf("%v: %v after the detection time, and the session has failed: %q", long, s.state, failed)
		}
		if at := s.due(); at.IsZero() || at.Sub(start) > maxDetection {
			t.Errorf("%v: the next packet is due at %v", long, at)
		}
		for name, before := range map[string]time.Duration{"not up": 0, "up": 4 * time.Second} {
			l := newLink(t, fast, fast)
			l.run(before)
			if s := l.ends[0]; s.accepts(&forged) {
				s.packet(&forged, l.now)
			}
			l.run(4 * time.Second)
			if l.want(Up, Up); l.ended != [2]string{} {
				t.Errorf("%s, %v: %q", name, long, l.ended)
			}
		}
	}
	up := newSession(fast, start, counter(0))
	up.state, up.your = Up, 7
	for _, p := range []packet{{state: Down, my: 666}, {state: AdminDown, my: 666}, {state: Up, my: 7},
		{state: Down, my: 7, your: up.my + 1}} {
		if up.accepts(&p) {
			t.Errorf("%+v is accepted", p)
		}
	}
	if !up.accepts(&packet{state: Down, my: 7}) {
		t.Error("a router that has lost the session is not heard")
	}
}

// TestConfigure: parameters change while the session is up, in both directions, and it stays up.
// After that the intervals are the new ones.
func TestConfigure(t *testing.T) {
	t.Parallel()
	slow := Parameters{Receive: time.Second, Transmit: time.Second, Multiplier: 3}
	for _, c := range []struct{ from, to Parameters }{{fast, slow}, {slow, fast},
		{fast, Parameters{Receive: 300 * ms, Transmit: 50 * ms, Multiplier: 2}}} {
		l := newLink(t, c.from, fast)
		l.run(4 * time.Second)
		l.want(Up, Up)
		l.ends[0].configure(c.to, l.now)
		for range 100 {
			l.run(100 * ms)
			l.want(Up, Up)
		}
		if s := l.ends[0]; s.receive != c.to.Receive || s.transmit != c.to.Transmit || s.polling {
			t.Errorf("%+v: %+v", c.to, s)
		}
		l.lost[1] = true
		l.run(time.Duration(fast.Multiplier) * max(c.to.Receive, fast.Transmit))
		if l.ends[0].state != Down {
			t.Errorf("%+v: not expired", c.to)
		}
	}
}

// TestUnanswered: after a change to longer intervals, a router that does not answer polls gets
// packets at the old ones, so that its detection time does not end.
func TestUnanswered(t *testing.T) {
	t.Parallel()
	l := newLink(t, fast, fast)
	l.run(4 * time.Second)
	s := l.ends[0]
	s.configure(Parameters{Receive: 10 * ms, Transmit: time.Second, Multiplier: 3}, l.now)
	p := s.send(l.now)
	if !p.poll || p.transmit != time.Second || s.transmit != 100*ms || s.receive != 100*ms {
		t.Errorf("%+v, in force %v and %v", p, s.transmit, s.receive)
	}
}

// TestLateClock: a process that was suspended for longer than the detection time reads the packets
// that came meanwhile before the session expires.
func TestLateClock(t *testing.T) {
	t.Parallel()
	up := func() *session {
		s := newSession(fast, start, counter(0))
		s.state, s.your = Up, 7
		s.packet(&packet{state: Up, my: 7, your: s.my, multiplier: 3, transmit: 100 * ms, receive: 100 * ms}, start)
		return s
	}
	if s := up(); s.expire(start.Add(301*ms)) == "" {
		t.Error("not expired in time")
	}
	late := start.Add(time.Second)
	s := up()
	if s.expire(late) != "" || s.nextWake().After(late.Add(punctual)) {
		t.Errorf("expired at once, or not looked at before %v", s.nextWake())
	}
	if s.expire(late.Add(10*punctual)) == "" {
		t.Error("not expired though no packet had come")
	}
	s = up()
	s.expire(late)
	s.packet(&packet{state: Up, my: 7, your: s.my, multiplier: 3, transmit: 100 * ms, receive: 100 * ms}, late)
	if s.expire(late.Add(punctual)) != "" || s.state != Up {
		t.Error("expired though a packet had come")
	}
}

// TestClose: a session that is taken out of service does not fail at either end.
func TestClose(t *testing.T) {
	t.Parallel()
	l := newLink(t, fast, fast)
	l.run(4 * time.Second)
	if end := l.ends[0].close(l.now); end.Sub(l.now) < 300*ms {
		t.Errorf("told for %v", end.Sub(l.now))
	}
	l.run(time.Second)
	if l.want(AdminDown, Down); l.ended != [2]string{} {
		t.Errorf("%q", l.ended)
	}
}

// TestParse: invalid packets are discarded (RFC 5880, section 6.8.6), and a marshalled packet is
// parsed to the same values.
func TestParse(t *testing.T) {
	t.Parallel()
	p := packet{diag: 3, state: Up, poll: true, multiplier: 3, my: 1, your: 2, transmit: 100 * ms, receive: maxInterval}
	b := p.marshal()
	if got, bad := parse(b[:]); got != p || bad != "" {
		t.Errorf("%+v (%s), want %+v", got, bad, p)
	}
	for name, change := range map[string]func(b []byte) []byte{
		"short":          func(b []byte) []byte { return b[:23] },
		"empty":          func([]byte) []byte { return nil },
		"version":        func(b []byte) []byte { b[0] = 0x40; return b },
		"authentication": func(b []byte) []byte { b[1] |= 0x04; return b },
		"multipoint":     func(b []byte) []byte { b[1] |= 0x01; return b },
		"length, less":   func(b []byte) []byte { b[3] = 23; return b },
		"length, more":   func(b []byte) []byte { b[3] = 25; return b },
		"multiplier":     func(b []byte) []byte { b[2] = 0; return b },
		"discriminator":  func(b []byte) []byte { clear(b[4:8]); return b },
		"transmit":       func(b []byte) []byte { b[12] = 0xff; return b },
		"receive":        func(b []byte) []byte { b[16] = 0xff; return b },
	} {
		b := p.marshal()
		if _, bad := parse(change(b[:])); bad == "" {
			t.Errorf("%s: not discarded", name)
		}
	}
}

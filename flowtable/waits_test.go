package flowtable

import (
	"fmt"
	"testing"
	"time"

	"sluice.dev/sluice/flowtable/conn"
	"sluice.dev/sluice/nat/header"
)

// timedPacket is a packet of a flow, after the one before it.
type timedPacket struct {
	after time.Duration
	from  Side
	s     Segment
	want  Observed
}

// TestWaits: how long a backend was waited for, by the packets that the gateway sees.
func TestWaits(t *testing.T) {
	const C, B, ms = ClientSide, ReplySide, time.Millisecond
	const S, A, F, R = uint8(header.TCPSYN), uint8(header.TCPACK), uint8(header.TCPFIN), uint8(header.TCPRST)
	isn := func(s Segment) Segment { s.Seq, s.Ack = 1000, 1001; return s }
	flags := func(f uint8) Segment { return isn(Segment{Flags: f}) }
	data := func(f uint8) Segment { return isn(Segment{Flags: f, Data: true}) }
	none := Observed{}
	handshake := func(d time.Duration) Observed { return Observed{Wait: Handshake, Elapsed: d} }
	answer := func(d time.Duration) Observed { return Observed{Wait: Answer, Elapsed: d} }
	open := []timedPacket{{0, C, flags(S), none}, {3 * ms, B, flags(S | A), handshake(3 * ms)}, {ms, C, flags(A), none}}
	uploads := func(n int) (list []timedPacket) {
		for range n {
			list = append(list, timedPacket{ms, C, data(A), none})
		}
		return list
	}
	with := func(list []timedPacket, more ...timedPacket) []timedPacket {
		return append(list[:len(list):len(list)], more...)
	}
	for _, c := range []struct {
		name    string
		proto   uint8
		packets []timedPacket
	}{
		{"the client asks", header.ProtoTCP, with(open, timedPacket{time.Second, C, data(A), none},
			timedPacket{ms, B, flags(A), none}, timedPacket{149 * ms, B, data(A), answer(150 * ms)},
			timedPacket{ms, C, data(A), none}, timedPacket{ms, B, data(A), none})},
		{"the backend speaks first", header.ProtoTCP, with(open, timedPacket{7 * ms, B, data(A), answer(7 * ms)})},
		{"the client asks with its first ACK", header.ProtoTCP, []timedPacket{open[0], open[1], {ms, C, data(A), none},
			{9 * ms, C, data(A), none}, {ms, B, data(A), answer(10 * ms)}}},
		{"the answer is all, and ends", header.ProtoTCP, with(open, timedPacket{ms, C, data(A), none},
			timedPacket{5 * ms, B, data(F | A), answer(5 * ms)})},
		{"the backend ends without an answer", header.ProtoTCP, with(open, timedPacket{ms, C, data(A), none},
			timedPacket{5 * ms, B, flags(F | A), none}, timedPacket{5 * ms, B, data(A), none})},
		{"the backend resets", header.ProtoTCP, with(open, timedPacket{ms, C, data(A), none},
			timedPacket{5 * ms, B, flags(R), Observed{Reset: true}}, timedPacket{ms, B, flags(R), none},
			timedPacket{2000 * ms, B, data(A), none})},
		{"the client resets its handshake", header.ProtoTCP, with(open[:2], timedPacket{ms, C, flags(R),
			Observed{Reset: true}})},
		{"refused", header.ProtoTCP, []timedPacket{open[0], {ms, B, flags(R | A), none}}},
		{"the client repeats its SYN", header.ProtoTCP, []timedPacket{open[0], {time.Second, C, flags(S), none},
			{3 * ms, B, flags(S | A), handshake(1003 * ms)}, {ms, B, flags(S | A), none}}},
		{"an upload is answered at its end", header.ProtoTCP,
			with(append(open[:3:3], uploads(100)...), timedPacket{ms, B, data(A), answer(100 * ms)})},
		{"a long upload is not timed", header.ProtoTCP,
			with(append(open[:3:3], uploads(200)...), timedPacket{ms, B, data(A), none})},
		{"a long wait is not measured", header.ProtoTCP, with(open, timedPacket{ms, C, data(A), none},
			timedPacket{61 * time.Second, B, data(A), none})},
		{"a question", header.ProtoUDP, []timedPacket{{0, C, Segment{}, none}, {2 * ms, C, Segment{}, none},
			{40 * ms, B, Segment{}, answer(42 * ms)}, {ms, B, Segment{}, none}, {ms, C, Segment{}, none},
			{ms, B, Segment{}, none}}},
		{"an association", header.ProtoSCTP, []timedPacket{{0, C, flags(S), none},
			{4 * ms, B, flags(S | A), handshake(4 * ms)}, {ms, C, flags(A), none}, {ms, B, data(A), none}}},
	} {
		for _, v6 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, IPv6 %v", c.name, v6), func(t *testing.T) {
				tb, h := testTable(t, 10, 10)
				h.MeasureWaits()
				other, err := tb.Register()
				if err != nil {
					t.Fatal(err)
				}
				other.MeasureWaits()
				now := bootTime + 37*Time(time.Microsecond)
				n := newFlow(c.proto, v6, 1)
				ref, s := h.Create(now, &n)
				if s != Created {
					t.Fatal(s)
				}
				for i, p := range c.packets {
					now += Time(p.after)
					by := [2]*Handle{h, other}[i&1]
					by.Enter(now)
					by.Observe(ref, p.from, p.s, now)
					if got := *by.Observed(); got != p.want {
						t.Errorf("packet %d: %+v, want %+v", i, got, p.want)
					}
				}
				if m := h.Flow(ref).load(); m.Timed() {
					t.Errorf("the flow is timed at the end: %v", m)
				}
				validate(t, tb)
			})
		}
	}
}

// TestWaitsAreOff: a handle that measures no waits times no flow, and ends the timing of one.
func TestWaitsAreOff(t *testing.T) {
	tb, h := testTable(t, 10, 0)
	establish := func(n NewFlow) (Ref, conn.Meta) {
		ref, _ := h.Create(bootTime, &n)
		h.Observe(ref, ReplySide, Segment{Flags: header.TCPSYN | header.TCPACK, Seq: 7}, bootTime)
		h.Observe(ref, ClientSide, Segment{Flags: header.TCPACK, Ack: 8}, bootTime)
		return ref, h.Flow(ref).load()
	}
	if _, m := establish(newFlow(header.ProtoTCP, false, 1)); m.State() != Established || m.Timed() {
		t.Errorf("a flow is timed without MeasureWaits: %v", m.State())
	}
	h.MeasureWaits()
	ref, m := establish(newFlow(header.ProtoTCP, false, 2))
	if !m.Timed() {
		t.Fatal("a flow is not timed")
	}
	other, err := tb.Register()
	if err != nil {
		t.Fatal(err)
	}
	other.Enter(bootTime)
	other.Observe(ref, ClientSide, Segment{Flags: header.TCPACK}, bootTime)
	if h.Flow(ref).load().Timed() {
		t.Error("a flow stays timed at a handle that does not measure")
	}
}

// TestTimedConnections: a handle times a bounded number of connections in a time, so that only
// their packets do not pass the plain path.
func TestTimedConnections(t *testing.T) {
	_, h := testTable(t, 1000, 0)
	h.MeasureWaits()
	timed := func(first, last uint32, now Time) (count int) {
		for i := first; i < last; i++ {
			n := newFlow(header.ProtoTCP, false, i)
			ref, _ := h.Create(now, &n)
			h.Observe(ref, ReplySide, Segment{Flags: header.TCPSYN | header.TCPACK, Seq: 7}, now)
			h.Observe(ref, ClientSide, Segment{Flags: header.TCPACK, Ack: 8}, now)
			count += b2i(h.Flow(ref).load().Timed())
		}
		return count
	}
	if n := timed(0, 300, bootTime); n != answersAtOnce {
		t.Errorf("%d connections are timed at once, want %d", n, answersAtOnce)
	}
	if n := timed(300, 600, bootTime+10*Time(time.Millisecond)); n != 10 {
		t.Errorf("%d connections are timed 10 ms later, want 10", n)
	}
}

// TestWaitsOfManyFlows: the clocks of as many flows as records of a small table are all kept; of
// more flows than clocks the youngest are.
func TestWaitsOfManyFlows(t *testing.T) {
	w := new(waits)
	const all = uint32(len(w) * len(w[0]))
	for n := range all + all/2 {
		w.start(Ref(1+n), makeClock(Ref(1+n), bootTime+Time(n)*Time(time.Microsecond), false))
	}
	now := bootTime + Time(2*all)*Time(time.Microsecond)
	for n := range all + all/2 {
		d, ok := w.stop(Ref(1+n), now)
		if want := time.Duration(2*all-n) * time.Microsecond; ok != (n >= all/2) || ok && d != want {
			t.Fatalf("flow %d: %v %v, want %v", n, d, ok, want)
		}
	}
	v6 := Ref(5) | refV6
	w.start(5, makeClock(5, 1000, false))
	w.start(v6, makeClock(v6, 2000, false))
	if d, ok := w.stop(5, 5000); d != 4*time.Microsecond || !ok {
		t.Errorf("waited %v %v, want 4 µs", d, ok)
	}
	if d, ok := w.stop(v6, 5000); d != 3*time.Microsecond || !ok {
		t.Errorf("waited %v %v, want 3 µs", d, ok)
	}
	if _, ok := w.stop(v6, 5000); ok {
		t.Error("a wait ends twice")
	}
}

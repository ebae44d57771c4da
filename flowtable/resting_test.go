package flowtable

import (
	"testing"
	"time"

	"sluice.dev/sluice/nat/header"
)

// closedByBackend brings an open connection to TIME_WAIT at its backend.
func (h *Handle) closedByBackend(r Ref, now Time) {
	h.Observe(r, ReplySide, seg(ReplySide, header.TCPFIN|header.TCPACK), now)
	h.Observe(r, ClientSide, seg(ClientSide, header.TCPFIN|header.TCPACK), now)
	h.Observe(r, ReplySide, seg(ReplySide, header.TCPACK), now)
}

// The port of a connection that its backend holds in TIME_WAIT is available at once for a flow that
// requests it, and for others only after the backend's TIME_WAIT or when no other port is free.
func TestPortRests(t *testing.T) {
	const ports = 4
	rest := Time(DefaultTimeouts().TimeWaitBackend)
	for _, v6 := range []bool{false, true} {
		tb, h := testTable(t, 100, 100)
		flow := func(n uint32) NewFlow {
			f := newFlow(header.ProtoTCP, v6, n)
			f.Backend = addrN(v6, 11, 1)
			f.Ports = Ports{First: 7000, Count: ports, Start: 0, Stride: 1}
			return f
		}
		port := func(r Ref) uint16 { return h.reply(r).DstPort }

		r := h.mustCreate(t, bootTime, flow(1))
		h.establish(r, bootTime)
		h.closedByBackend(r, bootTime)
		if s := h.Flow(r).State(); s != TimeWaitBackend || port(r) != 7000 {
			t.Fatalf("%v at port %d", s, port(r))
		}
		h.Delete(r)

		same := flow(1)
		same.SourcePort = 7000
		r = h.mustCreate(t, bootTime+second, same)
		if port(r) != 7000 {
			t.Errorf("opened again at port %d, want its own", port(r))
		}
		h.Delete(r)

		now := bootTime + rest
		var others []Ref
		for n := range uint32(ports) {
			r := h.mustCreate(t, now, flow(10+n))
			if want := 7000 + uint16(n+1)%ports; port(r) != want {
				t.Errorf("flow %d has port %d, want %d: resting ports come last", n, port(r), want)
			}
			others = append(others, r)
		}
		full := flow(20)
		if _, s := h.Create(now, &full); s != PortsExhausted {
			t.Errorf("all ports taken: %v", s)
		}
		for _, r := range others {
			h.Delete(r)
		}
		if r := h.mustCreate(t, bootTime+rest+2*second, flow(30)); port(r) != 7000 {
			t.Errorf("after its rest: port %d, want 7000", port(r))
		}
		validate(t, tb)
	}
}

// A key rests until its time, even if other keys share its word.
func TestRestingFindsEachKey(t *testing.T) {
	var r resting
	r.makeRoom(1)
	const now = Ticks(5000)
	if r.has(7, now) {
		t.Error("a key rests in an empty table")
	}
	r.begin(7, now+10)
	r.begin(7+minResting, now-10)
	r.begin(8, now+20)
	for _, c := range []struct {
		key  uint64
		at   Ticks
		want bool
	}{{7, now, true}, {7, now + 9, true}, {7, now + 10, false}, {8, now + 19, true},
		{8, now + 20, false}, {9, now, false}} {
		if r.has(c.key, c.at) != c.want {
			t.Errorf("key %d at %d: rests %v, want %v", c.key, c.at-now, !c.want, c.want)
		}
	}
}

// TestPortRestsAfterLateCopies: a copy of data that arrives when the backend is in TIME_WAIT
// revokes a FIN. The client has closed and answers with an RST, after which the flow soon ends. The
// port must still rest, as after a lost last ACK.
func TestPortRestsAfterLateCopies(t *testing.T) {
	for name, late := range map[string][]step{
		"data of the backend": {{ReplySide, header.TCPACK | tcpPSH, 0}, {ClientSide, header.TCPRST, 0}},
		"data of the client":  {{ClientSide, header.TCPACK | tcpPSH, 0}, {ClientSide, header.TCPRST, 0}},
		"data of both": {{ReplySide, header.TCPACK | tcpPSH, 0}, {ClientSide, header.TCPACK | tcpPSH, 0},
			{ClientSide, header.TCPRST, 0}},
		"no last ACK": nil,
	} {
		tb, h := testTable(t, 100, 0)
		flow := func(n uint32) NewFlow {
			f := newFlow(header.ProtoTCP, false, n)
			f.Backend, f.Ports = addrN(false, 11, 1), Ports{First: 7000, Count: 2, Stride: 1}
			return f
		}
		r := h.mustCreate(t, bootTime, flow(1))
		h.establish(r, bootTime)
		h.Observe(r, ReplySide, seg(ReplySide, header.TCPFIN|header.TCPACK), bootTime)
		h.Observe(r, ClientSide, seg(ClientSide, header.TCPFIN|header.TCPACK), bootTime)
		if late != nil {
			h.Observe(r, ReplySide, seg(ReplySide, header.TCPACK), bootTime)
		}
		for _, s := range late {
			h.Observe(r, s.side, seg(s.side, s.flags), bootTime)
		}
		h.Delete(r)
		if r := h.mustCreate(t, bootTime+50*second, flow(2)); h.reply(r).DstPort != 7001 {
			t.Errorf("%s: another client got the port of a backend in TIME_WAIT", name)
		}
		validate(t, tb)
	}
}

// TestPortRestsAfterExpiry: a flow that expires before the rest of its port is over keeps the port
// from others, whether or not the sweep has ended it.
func TestPortRestsAfterExpiry(t *testing.T) {
	timeouts := DefaultTimeouts()
	timeouts.UDPReplied = 5 * time.Second
	for name, c := range map[string]struct {
		proto uint8
		steps []step
		after Time // it has expired, and its port rests
	}{
		"no last ACK": {header.ProtoTCP, []step{{ReplySide, header.TCPSYN | header.TCPACK, 0}, {ClientSide,
			header.TCPACK, 0},
			{ReplySide, header.TCPFIN | header.TCPACK, 0}, {ClientSide, header.TCPFIN | header.TCPACK, 0}},
			40 * second},
		"UDP that was asked again": {header.ProtoUDP, []step{{ClientSide, 0, 0}, {ReplySide, 0, 0},
			{ClientSide, 0, 0}}, 8 * second},
	} {
		for _, swept := range []bool{false, true} {
			tb, h := testTableOf(t, Config{IPv4Flows: 100, Timeouts: timeouts})
			flow := func(n uint32) NewFlow {
				f := newFlow(c.proto, false, n)
				f.Backend, f.Ports = addrN(false, 11, 1), Ports{First: 7000, Count: 2, Stride: 1}
				return f
			}
			r := h.mustCreate(t, bootTime, flow(1))
			for _, s := range c.steps {
				h.Observe(r, s.side, seg(s.side, s.flags), bootTime)
			}
			now := bootTime + c.after
			h.Enter(now)
			if swept {
				h.sweepAll(now)
			}
			if r := h.mustCreate(t, now, flow(2)); h.reply(r).DstPort != 7001 {
				t.Errorf("%s, swept %v: another client got a port that rests", name, swept)
			}
			if live := tb.Counts().Live[0]; live != 1 {
				t.Errorf("%s, swept %v: %d flows live, want 1", name, swept, live)
			}
			validate(t, tb)
		}
	}
}

// TestRestBeginsFirst: the rest of a port begins while the flow has the port still. The word of the
// key is missing, so that begin panics.
func TestRestBeginsFirst(t *testing.T) {
	for _, c := range []struct {
		name    string
		tracked bool
		end     func(h *Handle, r Ref)
		held    bool // the flow is held before the end
	}{
		{"a flow ends", false, (*Handle).Delete, false},
		{"a tracked flow ends", true, (*Handle).Delete, false},
		{"a held port is released", true, func(h *Handle, r Ref) { h.Release(r, h.now) }, true},
	} {
		tb, h := groupTable(t, 100, 0)
		f := newFlow(header.ProtoUDP, false, 1)
		f.Tracked = c.tracked
		r := h.mustCreate(t, bootTime, f)
		reply := h.reply(r)
		if c.held {
			h.Report(r)
			h.Delete(r)
		}
		before := h.Flow(r).load()
		words := tb.resting[restingUDP].words
		tb.resting[restingUDP].words = nil
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: its port does not rest", c.name)
				}
			}()
			c.end(h, r)
		}()
		if m := h.Flow(r).load(); m != before || m.Held() != c.held {
			t.Errorf("%s: before its port rests, it is %v, held %t", c.name, m.State(), m.Held())
			continue
		}
		tb.resting[restingUDP].words = words
		if c.end(h, r); h.Live(r) || h.Held(r) {
			t.Errorf("%s: it does not", c.name)
		}
		again := newFlow(header.ProtoUDP, false, 2)
		again.Backend, again.Ports = f.Backend, Ports{First: reply.DstPort, Count: 1}
		if _, s := h.Create(bootTime, &again); s != PortsExhausted {
			t.Errorf("%s: another client asks for the port: %v", c.name, s)
		}
		validate(t, tb)
	}
}

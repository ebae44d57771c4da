package flowtable

import (
	"testing"
	"time"

	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/nat/reason"
)

// Chunk types of RFC 9260 section 3.2 that do not change the state.
const (
	chunkData, chunkSack, chunkHeartbeat, chunkHeartbeatAck, chunkError = 0, 3, 4, 5, 9

	initiate, initAck, echo, echoAck = header.SCTPInit, header.SCTPInitAck, header.SCTPCookieEcho, header.SCTPCookieAck
	shutdown, shutdownAck, complete  = header.SCTPShutdown, header.SCTPShutdownAck, header.SCTPShutdownComplete
	abort                            = header.SCTPAbort
)

// flagsOfChunk returns the flags that the parser sets for a packet with a chunk.
func flagsOfChunk(t testing.TB, chunk uint8) uint8 {
	t.Helper()
	var p header.Packet
	if r := header.Parse(headertest.SCTP("192.0.2.1:40000", "198.51.100.7:9", chunk).Bytes(), &p); r != reason.None {
		t.Fatalf("chunk %d: %v", chunk, r)
	}
	return p.TCPFlags
}

// chunk is one packet of an association, and the state after it.
type chunk struct {
	side Side
	kind uint8
	want State
}

func openAssociation() []chunk {
	const C, B = ClientSide, ReplySide
	return []chunk{{C, initiate, SynSeen}, {B, initAck, SynRecv}, {C, echo, Unconfirmed}, {B, echoAck, Established}}
}

func TestAssociations(t *testing.T) {
	const C, B = ClientSide, ReplySide
	open := openAssociation()
	then := func(first []chunk, more ...chunk) []chunk { return append(first[:len(first):len(first)], more...) }
	talk := then(open, chunk{C, chunkData, Established}, chunk{B, chunkSack, Established},
		chunk{B, chunkData, Established},
		chunk{C, chunkSack, Established}, chunk{B, chunkHeartbeat, Established},
		chunk{C, chunkHeartbeatAck, Established})
	for _, c := range []struct {
		name    string
		chunks  []chunk
		closing bool
	}{
		{"client closes", then(talk, chunk{C, shutdown, FinClient}, chunk{B, shutdownAck, LastAckClient},
			chunk{C, complete, TimeWaitClient}), true},
		{"backend closes", then(talk, chunk{B, shutdown, FinBackend}, chunk{C, shutdownAck, LastAckBackend},
			chunk{B, complete, TimeWaitBackend}), true},
		{"data still to come before SHUTDOWN ACK", then(talk, chunk{C, shutdown, FinClient},
			chunk{B, chunkData, FinClient}, chunk{C, shutdown, FinClient},
			chunk{B, shutdownAck, LastAckClient}, chunk{C, complete, TimeWaitClient}), true},
		{"SHUTDOWN ACK is lost after the gateway", then(open, chunk{C, shutdown, FinClient},
			chunk{B, shutdownAck, LastAckClient}, chunk{C, shutdown, LastAckClient},
			chunk{B, shutdownAck, LastAckClient}, chunk{C, complete, TimeWaitClient}), true},
		{"SHUTDOWN COMPLETE is lost after the gateway", then(open, chunk{C, shutdown, FinClient},
			chunk{B, shutdownAck, LastAckClient}, chunk{C, complete, TimeWaitClient},
			chunk{B, shutdownAck, TimeWaitClient}, chunk{C, complete, TimeWaitClient}), true},
		{"both close at once", then(talk, chunk{C, shutdown, FinClient}, chunk{B, shutdown, LastAckClient},
			chunk{C, shutdownAck, LastAckClient},
			chunk{B, shutdownAck, LastAckClient}, chunk{C, complete, TimeWaitClient},
			chunk{B, complete, TimeWaitClient}), true},
		{"SHUTDOWN that came behind SACK", then(talk, chunk{C, chunkSack, Established},
			chunk{B, shutdownAck, FinBackend}, chunk{C, complete, FinBackend}), false},
		{"refused", []chunk{{C, initiate, SynSeen}, {B, abort, Closed}}, true},
		{"cookie refused", then(open[:3], chunk{B, abort, Closed}), true},
		{"stale cookie, begun again", then(open[:3], chunk{B, chunkError, Established}, chunk{C, initiate, Established},
			chunk{B, initAck, Established},
			chunk{C, echo, Established}, chunk{B, echoAck, Established}), false},
		{"repeated INIT", []chunk{{C, initiate, SynSeen}, {C, initiate, SynSeen}, {B, initAck, SynRecv},
			{C, initiate, SynRecv}, {B, initAck, SynRecv}, {C, echo, Unconfirmed}}, false},
		{"COOKIE ECHO again", then(open[:3], chunk{C, echo, Unconfirmed}, chunk{B, echoAck, Established},
			chunk{C, echo, Established}), false},
		{"aborted, and alive", then(talk, chunk{C, abort, Established}, chunk{B, chunkHeartbeat, Established}), false},
		{"restart", then(talk, chunk{C, initiate, Established}, chunk{B, initAck, Established},
			chunk{C, echo, Established}, chunk{B, echoAck, Established}), false},
		{"restart before the backend has sent", then(open[:3], chunk{C, initiate, Unconfirmed},
			chunk{B, initAck, Unconfirmed}, chunk{C, echo, Unconfirmed}, chunk{B, echoAck, Established}), false},
		{"restart while closing", then(talk, chunk{B, shutdown, FinBackend}, chunk{C, initiate, FinBackend},
			chunk{B, initAck, SynRecv},
			chunk{C, echo, Unconfirmed}, chunk{B, echoAck, Established}), false},
		{"the backend's INIT", then(talk, chunk{B, initiate, Established}), false},
		{"an old association's SHUTDOWN ACK", []chunk{{C, initiate, SynSeen}, {B, shutdownAck, SynRecv},
			{C, complete, Unconfirmed},
			{C, initiate, Unconfirmed}, {B, initAck, Unconfirmed}, {C, echo, Unconfirmed}, {B, echoAck, Established}},
			false},
	} {
		t.Run(c.name, func(t *testing.T) {
			tb, h := testTable(t, 10, 0)
			r := h.mustCreate(t, bootTime, newFlow(header.ProtoSCTP, false, 1))
			for i, s := range c.chunks {
				h.Observe(r, s.side, seg(s.side, flagsOfChunk(t, s.kind)), bootTime+Time(i)*second)
				if got := h.Flow(r).State(); got != s.want {
					t.Fatalf("packet %d: %v, want %v", i, got, s.want)
				}
			}
			if got := h.Closing(r); got != c.closing {
				t.Errorf("Closing: %v, want %v", got, c.closing)
			}
			validate(t, tb)
		})
	}
}

// association makes a flow and walks it through chunks, all at one time.
func (h *Handle) association(t *testing.T, now Time, chunks []chunk) (Ref, NewFlow) {
	t.Helper()
	n := newFlow(header.ProtoSCTP, false, 1)
	r := h.mustCreate(t, now, n)
	for _, c := range chunks {
		h.Observe(r, c.side, seg(c.side, flagsOfChunk(t, c.kind)), now)
	}
	return r, n
}

// An association has the lifetimes of its states.
func TestAssociationLifetimes(t *testing.T) {
	const C, B = ClientSide, ReplySide
	open, d := openAssociation(), DefaultTimeouts()
	closed := append(open[:4:4], chunk{C, shutdown, 0}, chunk{B, shutdownAck, 0}, chunk{C, complete, 0})
	for _, c := range []struct {
		name   string
		chunks []chunk
		want   time.Duration
	}{
		{"INIT", open[:1], d.SynSeen},
		{"INIT ACK", open[:2], d.SynAckSeen},
		{"COOKIE ECHO", open[:3], d.Established},
		{"COOKIE ACK", open, d.Established},
		{"ABORT", append(open[:4:4], chunk{B, abort, 0}), d.ResetEstablished},
		{"SHUTDOWN", closed[:5], d.Fin},
		{"SHUTDOWN ACK", closed[:6], d.LastAck},
		{"SHUTDOWN COMPLETE", closed, d.TimeWaitClient},
		{"refused", append(open[:1:1], chunk{B, abort, 0}), d.Reset},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, h := testTable(t, 10, 0)
			r, n := h.association(t, bootTime, c.chunks)
			if got, _ := h.lookup(&n.Client, bootTime+Time(c.want)-second); got != r {
				t.Errorf("gone before %v", c.want)
			}
			if got, _ := h.lookup(&n.Client, bootTime+Time(c.want)+2*second); got != 0 {
				t.Errorf("still there after %v", c.want)
			}
		})
	}
}

// Heartbeats alone, of either end, keep an association for a week, even if an attacker forges an
// INIT before each of them and the backend answers it.
func TestHeartbeatsHoldAnAssociation(t *testing.T) {
	for name, forged := range map[string]bool{"idle": false, "under forged INITs": true} {
		for side := range Side(2) {
			_, h := testTable(t, 10, 0)
			r, n := h.association(t, bootTime, openAssociation())
			now := bootTime
			for beat := range 7 * 24 * 60 * 2 {
				if forged {
					h.Observe(r, ClientSide, seg(ClientSide, flagsOfChunk(t, initiate)), now+second)
					h.Observe(r, ReplySide, seg(ReplySide, flagsOfChunk(t, initAck)), now+second)
				}
				now += 33 * second // RFC 9260 section 8.3: the interval, an RTO and half of it at most
				if got, _ := h.lookup(&n.Client, now); got != r {
					t.Fatalf("%s: lost before heartbeat %d of side %d", name, beat, side)
				}
				h.Observe(r, side, seg(side, flagsOfChunk(t, chunkHeartbeat)), now)
			}
			if s := h.Flow(r).State(); s != Established {
				t.Errorf("%s: %v", name, s)
			}
		}
	}
}

// Repeated INITs do not keep a flow alive, and their flows count under the cap of half-open flows.
func TestINITsAreHalfOpen(t *testing.T) {
	tb, h := testTableOf(t, Config{IPv4Flows: 100, HalfOpen: 10, Timeouts: DefaultTimeouts()})
	for n := range uint32(10) {
		h.mustCreate(t, bootTime, newFlow(header.ProtoSCTP, false, n))
	}
	f := newFlow(header.ProtoSCTP, false, 100)
	if _, status := h.Create(bootTime, &f); status != HalfOpenLimit {
		t.Errorf("INIT number 11: %v", status)
	}
	f = newFlow(header.ProtoSCTP, false, 1)
	r, _ := h.lookup(&f.Client, bootTime)
	for i := range Time(12) {
		h.Observe(r, ClientSide, seg(ClientSide, flagsOfChunk(t, initiate)), bootTime+i*second)
	}
	if got, _ := h.lookup(&f.Client, bootTime+12*second); got != 0 {
		t.Error("INITs keep a flow alive")
	}
	validate(t, tb)
}

// An aborted association that is opened again has the timeout of an open one.
func TestAssociationReopenedAfterAbort(t *testing.T) {
	_, h := testTable(t, 10, 0)
	r, n := h.association(t, bootTime, append(openAssociation(), chunk{ClientSide, abort, 0}))
	now := bootTime + Time(DefaultTimeouts().ResetEstablished)
	for i, c := range openAssociation() {
		if got, _ := h.lookup(&n.Client, now); got != r {
			t.Fatalf("packet %d finds no flow", i)
		}
		h.Observe(r, c.side, seg(c.side, flagsOfChunk(t, c.kind)), now)
		now += second
	}
	if got, _ := h.lookup(&n.Client, now+7000*second); got != r {
		t.Error("the new association is gone")
	}
}

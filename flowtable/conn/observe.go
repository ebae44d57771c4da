package conn

import (
	"time"

	"sluice.dev/sluice/nat/header"
)

// RefreshTicks is the age of last seen from which a packet renews it.
const RefreshTicks = int32(time.Second / Tick)

// Observe returns m as changed by a packet at time now, or m itself if nothing need be written. isn
// is the backend's initial sequence number if m is provable.
func (m Meta) Observe(from Side, s Segment, isn uint32, now Ticks) Meta {
	if m.Seen()-now < 1<<31 {
		now = m.Seen() // another worker's batch is later than ours: never step back
	}
	if !header.Stateful(m.Proto()) {
		return m.observeDatagram(from, s.Later, now)
	}
	c := s.class()
	mv := moves[m.State()][from&1][c]
	switch {
	case mv&prove != 0:
		mv = m.proof(mv, from, &s, isn, now)
	case m.Reset() && m.State() > SynRecv && (c == classACK || c == classFIN):
		if !m.outlives(from, &s, now) {
			return m
		}
	case mv&answer != 0 && m.Provable() && s.Seq == isn:
		return m // a repeated SYN-ACK: together with a repeated SYN it would keep the flow alive
	}
	if mv&restore != 0 && s.Data {
		return m.restored(from).At(now)
	}
	return m.take(mv, from, now)
}

// take returns m as changed by a move of a packet from one side.
func (m Meta) take(mv move, from Side, now Ticks) Meta {
	next := State(mv & 15)
	switch {
	case mv&confirm != 0:
		next = m.confirmed(next)
	case m.State() == Established && m&finOf(from^1) != 0:
		next = next.otherFin(from)
	}
	note := Meta(0)
	if mv&finish != 0 {
		note = MetaFin
	}
	switch {
	case mv&ask != 0:
		if m.State() == SynRecv && !m.Reset() {
			return m // a repeated SYN: together with its answer it would keep the flow alive
		}
		return m | MetaAgain
	case mv&answer != 0:
		switch {
		case m&MetaAgain == 0:
			return m
		case m.State() == SynRecv && m&MetaRenewed != 0:
			return m &^ MetaAgain
		case m.State() == SynRecv:
			return m.At(now)&^MetaNotes | MetaRenewed
		}
		return m.answered(next).At(now) &^ (MetaNotes | MetaHeaderAcked | MetaHasISN)
	case next != m.State():
		return m.WithState(next).At(now)&^MetaNotes | note
	case mv&reset != 0 && !m.Reset():
		// The timer starts with the first RST; later ones do not restart it. A handshake that has
		// been restarted has used its one timer.
		if m.State() == SynRecv && m&MetaRenewed != 0 {
			now = m.Seen()
		}
		return m.At(now)&^MetaResetBackend | MetaReset | Meta(from)<<MetaFlagsShift
	case note&^m != 0:
		return m.At(now)&^MetaNotes | note
	case mv&refresh != 0 && (m&MetaCleared != 0 || now.Since(m.Seen()) >= RefreshTicks):
		return m.refreshed(now)
	}
	return m
}

// Refreshed returns m with a new last-seen time, the same state and no notes. It is called at most
// once a second; for assured UDP it counts that second, and for a one-sided flow it notes it.
func (m Meta) Refreshed(now Ticks) Meta {
	if m.OneSided() {
		m |= MetaRefreshed
	}
	return m.refreshed(now)
}

func (m Meta) refreshed(now Ticks) Meta {
	if m.State() == UDPAssured {
		if m&MetaUsed != MetaUsed {
			m += 1 << MetaUsedShift
		}
		return m.At(now)
	}
	return m.At(now) &^ (MetaCleared | MetaResetBackend)
}

// proof returns the move of a segment that may prove a handshake: mv if it does, and a move that
// changes nothing if not. For an association it is the move of a COOKIE ECHO.
func (m Meta) proof(mv move, from Side, s *Segment, isn uint32, now Ticks) move {
	ok := s.Ack == isn+1
	if from == ReplySide {
		ok = s.Data && (!m.Reset() || m.outlives(from, s, now))
	}
	switch {
	case m.Proto() == header.ProtoSCTP && from == ReplySide:
		return move(SynRecv)
	case m.Proto() == header.ProtoSCTP && s.class() == classFIN:
		return move(Unconfirmed) | finish
	case m.Proto() == header.ProtoSCTP:
		return move(Unconfirmed)
	case ok:
		return mv
	}
	return move(SynRecv)
}

// ResetGrace is how long after an RST packets in flight may still arrive. A flow with a younger RST
// is not shed for it: the RST may be forged.
const ResetGrace = int32(time.Second / Tick)

// outlives reports whether a segment that is neither SYN nor RST shows that an RST did not end the
// connection. An end that sent a genuine RST has no data to send. An end that accepted the RST
// sends nothing more, but its packets in flight may still arrive. A client's ACK without data shows
// nothing: it may be forged, to keep a connection that the client never opened and so has reset.
func (m Meta) outlives(from Side, s *Segment, now Ticks) bool {
	late := now.Since(m.Seen()) >= ResetGrace
	return s.Data && (late || from == m.ResetBy()) || from == ReplySide && late
}

// finOf returns the note that a side sent a FIN and then data.
func finOf(from Side) Meta { return MetaFinClient << from }

// restored returns m after data of a side that has sent a FIN. If the other side has sent a FIN,
// that FIN remains valid until the other side sends data.
func (m Meta) restored(from Side) Meta {
	next, fins := Established, m&MetaFins|finOf(from)
	if m.State() >= LastAckClient {
		next = finStates[from^1]
	}
	return m.WithState(next)&^MetaNotes | fins
}

// finStates are the states of a connection that one side has closed.
var finStates = [2]State{ClientSide: FinClient, ReplySide: FinBackend}

// answered returns m after the backend's SYN-ACK, for a flow that remembers a SYN. An SCTP server
// sends INIT ACK to a forged INIT too, and keeps no state. So an open association stays in its
// state: otherwise one INIT would give it the timeout of a handshake, which is less than the time
// between two heartbeats. An association that is restarted continues in that state.
func (m Meta) answered(next State) Meta {
	if s := m.State(); m.Proto() == header.ProtoSCTP && (s == Unconfirmed || s == Established) {
		return m
	}
	return m.WithState(next)
}

// confirmed returns the state of an Unconfirmed flow after a packet of the backend: next if its
// client has sent only ACKs, and other states if the client has sent FIN or SYN.
func (m Meta) confirmed(next State) State {
	switch {
	case next == Established && m&MetaAgain != 0:
		return Unconfirmed
	case next == Established && m&MetaFin != 0:
		return FinClient
	case m&MetaFin != 0:
		return LastAckClient
	}
	return next
}

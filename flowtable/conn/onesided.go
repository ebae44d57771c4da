package conn

import "sluice.dev/sluice/nat/header"

// ObserveOneSided is Observe for a packet of the client of a flow whose replies do not pass this
// gateway (direct return). It uses states of Observe that a client's packets alone can lead to:
//
//	SYN          SynSeen; a SYN on an open flow changes nothing
//	ACK, data    Unconfirmed, with the timeout of Established
//	FIN          Unconfirmed with MetaReset and MetaFin: the timeout after an RST, which each later
//	             ACK renews, because the server may still send
//	RST          MetaReset, whose timeout only data renews
//	datagrams    UDPNew
//
// No state says that the backend has answered, so no flow is protected as an established one: the
// table sheds it under pressure, and the consistent hash finds the same node again. A flow may
// begin as Unconfirmed, by a segment in the middle of a connection that another gateway or an
// earlier process forwarded.
func (m Meta) ObserveOneSided(s Segment, now Ticks) Meta {
	if m.Seen()-now < 1<<31 {
		now = m.Seen() // another worker's batch is later than ours: never step back
	}
	if !header.Stateful(m.Proto()) {
		return m.observeDatagram(ClientSide, s.Later, now)
	}
	switch s.class() {
	case classSYN:
		switch {
		case !m.Reset():
			return m
		case m.State() == SynSeen:
			return m &^ MetaReset
		}
		return m.WithState(SynSeen).At(now) &^ (MetaCleared | MetaNotes)
	case classRST:
		switch {
		case m.State() == SynSeen:
			return m | MetaReset // does not renew the time that a SYN waits
		case m.Reset() && m&MetaFin == 0:
			return m
		}
		return m.At(now)&^MetaFin | MetaReset
	case classFIN:
		n := m.WithState(Unconfirmed) | MetaReset | MetaFin
		if n == m && now.Since(m.Seen()) < RefreshTicks {
			return m
		}
		return n.At(now)
	case classACK:
		return m.acknowledgedOneSided(s.Data, now)
	}
	return m
}

// FinOneSided reports whether the client of a flow with direct return has sent a FIN, and neither
// an RST nor data since. In other flows the two notes have another meaning.
func (m Meta) FinOneSided() bool {
	const fin = MetaReset | MetaFin
	return m.State() == Unconfirmed && m&fin == fin
}

// ResetOneSided is ObserveOneSided for the RST that the gateway sends to a client whose node is
// gone.
func (m Meta) ResetOneSided(now Ticks) Meta {
	n := m.ObserveOneSided(Segment{Flags: header.TCPRST}, now)
	if n != m {
		n |= MetaResetBackend
	}
	return n
}

// acknowledgedOneSided is ObserveOneSided for a segment with ACK and without SYN, FIN and RST.
func (m Meta) acknowledgedOneSided(data bool, now Ticks) Meta {
	switch {
	case m.State() == SynSeen, m.Reset() && data:
		return m.WithState(Unconfirmed).At(now) &^ (MetaCleared | MetaNotes)
	case m.Reset() && m&MetaFin == 0:
		return m
	case now.Since(m.Seen()) >= RefreshTicks:
		return (m | MetaRefreshed).At(now) &^ (MetaAgain | MetaRepeat)
	case m&(MetaAgain|MetaRepeat) != 0:
		return m.At(now) &^ (MetaAgain | MetaRepeat)
	}
	return m
}

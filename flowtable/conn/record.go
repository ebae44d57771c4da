package conn

import "sluice.dev/sluice/nat/header"

// Record describes a flow for another gateway: it suffices to translate both directions.
type Record struct {
	Client header.Tuple // packets from the client
	Reply  header.Tuple // packets from the backend; its destination is the source address
	State  State
	// ISN is the backend's initial sequence number while the flow keeps it (Meta.KeepsISN).
	ISN uint32
	// Proxied: a PROXY header is in front of the client's bytes. Over TCP, Opening is the sequence
	// number of the client's SYN, and HeaderAcked says that the backend has acknowledged the
	// header.
	Proxied, HeaderAcked bool
	Opening              uint32
	// Reset: one end, on the side ResetBy, sent an RST, and no later packet has shown that the
	// connection lives on. Without Reset, ResetBy is 0.
	Reset   bool
	ResetBy Side
}

// CopyState is the state of a copy of a flow, for the flow's owner: it has the changes by packets
// that have passed the gateway with the copy.
type CopyState struct {
	State State // of the copy
	// Proof: the client has proven the handshake at the gateway with the copy, which does not know
	// whether the owner has seen the proof.
	Proof bool
	// Reset and ResetBy are as in a Record.
	Reset   bool
	ResetBy Side
	// Outlived: the owner's Record has Reset, and packets at the gateway with the copy have shown
	// that the connection lives on. It excludes Reset.
	Outlived bool
	// HeaderAcked is as in a Record.
	HeaderAcked bool
	// Asked: since the last packet of the open connection the client has sent SYNs, towards a
	// backend that is gone.
	Asked bool
	// Lost: the backend has no connection with the numbers of the flow.
	Lost bool
}

// Meta returns the Meta of a flow with this record that was last seen now.
func (r *Record) Meta(now Ticks) Meta {
	m := MakeMeta(r.State, r.Client.Proto, now)
	if r.Proxied {
		m |= MetaProxied
		if r.Client.Proto == header.ProtoTCP {
			m |= MetaOpening
		}
	}
	if r.HeaderAcked {
		m |= MetaHeaderAcked
	}
	if r.HeaderAcked && r.ISN != 0 {
		m |= MetaHasISN
	}
	return m | r.resetNotes()
}

// resetNotes returns the notes of Meta about an RST.
func (r *Record) resetNotes() Meta {
	if !r.Reset {
		return 0
	}
	return MetaReset | Meta(r.ResetBy)<<MetaFlagsShift
}

// ResetCopy returns n, the next Meta of a copy that had m, with the notes about an RST that hold
// after the owner's record r. before: the owner's previous record had Reset. An RST that passed
// this gateway, or packets after an RST, stay in force until the owner's record shows them.
func (r *Record) ResetCopy(m, n Meta, before bool, now Ticks) Meta {
	switch {
	case r.Reset && (!before || n.State() != m.State()) && !n.Reset():
		return n.At(now)&^MetaResetNotes | r.resetNotes()
	case before && !r.Reset:
		return n &^ MetaResetNotes
	case m.Reset() && !before && n.State() > SynRecv && n.State().Connection():
		return n&^MetaResetNotes | m&MetaResetNotes
	}
	return n
}

// Possible reports whether a flow may have this protocol, state and numbers. It does not check the
// addresses.
func (r *Record) Possible() bool {
	s, proto := r.State, r.Client.Proto
	tcp := proto == header.ProtoTCP
	m := r.Meta(0)
	switch {
	case r.Proxied && !tcp && proto != header.ProtoUDP,
		r.Opening != 0 && !(r.Proxied && tcp),
		r.HeaderAcked && !(tcp && m.HeaderSent()),
		r.ISN != 0 && !m.KeepsISN(),
		r.Reset && !s.Connection(),
		r.ResetBy != 0 && !r.Reset:
		return false
	}
	switch proto {
	case header.ProtoTCP:
		return s >= SynSeen && s <= Closed && s != Unconfirmed
	case header.ProtoSCTP:
		return s >= SynSeen && s <= Closed
	case header.ProtoUDP:
		return s.UDP()
	case header.ProtoICMP:
		return s == ICMPEcho && !r.Client.V6
	case header.ProtoICMPv6:
		return s == ICMPEcho && r.Client.V6
	}
	return false
}

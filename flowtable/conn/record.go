package conn

import "sluice.dev/sluice/nat/header"

// Record is a flow as another gateway needs it, to translate both directions.
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
	return m
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
		r.ISN != 0 && !m.KeepsISN():
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

package conn

import "sluice.dev/sluice/nat/header"

// Meta is one word with all the fields of a flow that several workers change, so that a refresh and
// an expiry can never both succeed:
//
//	63    56 55    48 47    40 39 38 37 36 35  32 31               0
//	[repeat][ proto  ][ notes ][fn][ag][pd][rs][state][ last seen, ticks ]
//
// State zero is no flow: free, dead, or in limbo. pd is set while the flow is pending (its keys are
// being inserted). pd and rs together: see Held. rs alone: one end sent an RST, and no later packet
// has shown that the connection lives on; last seen is then the time of the RST. ag: the client
// sent a SYN on the open connection, and the SYN has no answer yet. fn: the client of an
// Unconfirmed flow sent FIN; in Established see Timed. TCP and SCTP have further notes, which do
// not affect a packet that Match forwards:
//
//	40  the sender of the RST of rs: the client (0) or the backend (1)
//	41  the client sent a FIN, and then data, which revokes the FIN
//	42  the same of the backend
//	43  the handshake was reset and restarted (SynRecv): later packets do not renew its age.
//	    One-sided (Unconfirmed of TCP): the client sent again a second or more after the first time
//	44  and 45: see MetaOpening
//	46  see MetaProxied
//
// In SynSeen ag means instead that the client repeated its SYN, and repeat is the age of the flow
// at the last repetition. In the states of an open connection repeat records SYNs towards a backend
// that is gone (RepeatOpen).
//
// In the states of UDP fn and ag together count the questions without an answer (datagram.go).
// Meanwhile the low half of notes counts datagrams, and the high half counts the seconds after the
// first in which an assured flow had datagrams. When questions are no longer counted, fn and ag are
// 0, and all of notes counts these seconds (UsedSeconds). repeat cannot count them, because Match
// finds only flows whose repeat is 0.
type Meta uint64

// The fields of Meta. A shift is the number of its lowest bit.
const (
	MetaStateShift              = 32
	MetaReset            Meta   = 1 << 36
	MetaPending          Meta   = 1 << 37
	MetaAgain            Meta   = 1 << 38
	MetaFin              Meta   = 1 << 39
	MetaResetBackend     Meta   = 1 << MetaFlagsShift
	MetaFinClient        Meta   = 1 << 41
	MetaFinBackend       Meta   = 1 << 42
	MetaRenewed          Meta   = 1 << 43
	MetaRefreshed               = MetaRenewed
	MetaFins                    = MetaFinClient | MetaFinBackend
	MetaFlagsShift              = 40
	MetaResetNotes              = MetaReset | MetaResetBackend // an RST was sent, and by which side
	MetaUsedShift               = MetaFlagsShift
	MetaUsed             Meta   = 255 << MetaUsedShift
	MetaQuestionsShift          = 38
	MetaQuestions        Meta   = 3 << MetaQuestionsShift
	MetaDatagrams        Meta   = 15 << MetaUsedShift
	MetaCountedUsedShift        = MetaUsedShift + 4
	MetaCountedUsed      Meta   = 15 << MetaCountedUsedShift
	MetaProtoShift              = 48
	MetaRepeatShift             = 56
	MetaRepeat           Meta   = 255 << MetaRepeatShift
	MetaSeen             Meta   = 1<<32 - 1
	MetaLife             uint64 = 63 // state, rs and pd: the index of Lifetimes

	// A change of other fields changes no counter or list of the table.
	MetaAccounted = Meta(15)<<MetaStateShift | MetaReset | MetaPending | MetaFins

	// A change of state clears MetaNotes.
	MetaNotes = MetaCleared | MetaFin | MetaResetBackend | MetaFins | MetaRenewed
	// A packet that refreshes the flow clears MetaCleared.
	MetaCleared = MetaReset | MetaAgain | MetaRepeat
)

// If clients keep their address, a backend's answer to a connection through a frontend and its
// answer to a connection to the backend's own address can have the same addresses and ports. So a
// flow keeps the sequence number of its SYN, to recognise an answer to another SYN:
//
//	44  MetaOpening    the record has the number, written only before the flow is live
//	45  MetaReopened   the client sent SYNs with several numbers: any answer may be valid
//
// Both notes stay for the life of the flow. A flow of an earlier version of the program has
// neither.
const (
	MetaOpening  Meta = 1 << 44
	MetaReopened Meta = 1 << 45
)

// A TCP flow of a Service with PROXY protocol has a header in front of the client's bytes, a UDP
// flow in front of each datagram of the client:
//
//	54  MetaProxied      one more bit beside the protocol number, which no protocol here has
//	46  MetaHeaderAcked  TCP: the backend has acknowledged the header
//	47  MetaHasISN       TCP: the header is acknowledged, and the record still has the backend's
//	                     initial sequence number; not of a flow of an earlier version
//
// flowtable.Handle.Match compares the whole byte of the protocol, so it matches no packet of such
// a flow, and costs other flows nothing. A version of this program that does not know MetaProxied
// finds no flow for the packets: it could not translate their sequence numbers.
const (
	MetaHeaderAcked Meta = 1 << 46
	MetaHasISN      Meta = 1 << 47
	MetaProxied     Meta = 1 << (MetaProtoShift + 6)

	// No protocol number of a flow has the bit of MetaProxied.
	_ = -uint((header.ProtoICMP | header.ProtoTCP | header.ProtoUDP | header.ProtoICMPv6 | header.ProtoSCTP) &
		uint8(MetaProxied>>MetaProtoShift))
)

// Proxied reports whether the flow has a PROXY header.
func (m Meta) Proxied() bool { return m&MetaProxied != 0 }

// HeaderSent reports whether the PROXY header is in front of the client's bytes: the handshake is
// complete.
func (m Meta) HeaderSent() bool {
	return m.Proxied() && m.State() >= Established && m.State() <= TimeWaitBackend
}

// HeaderPending reports whether the PROXY header is sent and not acknowledged.
func (m Meta) HeaderPending() bool {
	return m&(MetaProxied|MetaHeaderAcked) == MetaProxied && m.HeaderSent()
}

// HeaderAcked reports whether the TCP flow has a PROXY header, and the backend has acknowledged it.
func (m Meta) HeaderAcked() bool {
	return m&(MetaProxied|MetaHeaderAcked) == MetaProxied|MetaHeaderAcked && !m.State().UDP()
}

// KeepsISN reports whether the record has the backend's initial sequence number, if it is known. A
// flow with a PROXY header keeps it for life: of all numbers that a client knows, it is the one by
// which the backend may begin another connection (SYN cookies).
func (m Meta) KeepsISN() bool {
	return m.Provable() || m.HeaderPending() || m.HeaderSent() && m&MetaHasISN != 0
}

// MakeMeta returns the Meta of a flow without notes that was last seen now.
func MakeMeta(s State, proto uint8, now Ticks) Meta {
	return Meta(proto)<<MetaProtoShift | Meta(s)<<MetaStateShift | Meta(now)
}

// Born returns the first Meta of a new flow.
func Born(proto uint8, now Ticks) Meta {
	m := MakeMeta(Initial(proto), proto, now)
	if m.State().UDP() {
		m |= oneWaits << MetaQuestionsShift
	}
	return m
}

// State, Proto (the IANA protocol number) and Seen (the last-seen time) return fields of m.
func (m Meta) State() State { return State(m>>MetaStateShift) & 15 }
func (m Meta) Proto() uint8 { return uint8(m &^ MetaProxied >> MetaProtoShift) }
func (m Meta) Seen() Ticks  { return Ticks(m) }

// Pending reports whether the flow's keys are being inserted.
func (m Meta) Pending() bool { return m&MetaPending != 0 }

// OneSided reports whether a flow is an open TCP connection with direct return: no other is
// Unconfirmed.
func (m Meta) OneSided() bool { return m.State() == Unconfirmed && m.Proto() == header.ProtoTCP }

// Reset reports whether one end sent an RST, and no later packet has shown that the connection
// lives on.
func (m Meta) Reset() bool { return m&MetaReset != 0 }

// Live reports whether there is a flow, and packets may find it.
func (m Meta) Live() bool { return m.State() != 0 && !m.Pending() }

// Held reports whether the flow has ended, and still holds its source port: other gateways may have
// a copy of it. Such a flow is pending, so packets do not find it, and it never becomes live.
func (m Meta) Held() bool {
	return m.State() != 0 && m&(MetaPending|MetaReset) == MetaPending|MetaReset
}

// Hold returns m for a flow that has ended and holds its source port.
func (m Meta) Hold() Meta { return m | MetaPending | MetaReset }

// Life returns the index of Lifetimes.
func (m Meta) Life() uint64 { return uint64(m>>MetaStateShift) & MetaLife }

// Dead returns m without a state: no flow.
func (m Meta) Dead() Meta { return m &^ (Meta(MetaLife) << MetaStateShift) }

// At returns m with another last-seen time.
func (m Meta) At(t Ticks) Meta { return m&^MetaSeen | Meta(t) }

// WithState returns m with another state, and the same notes.
func (m Meta) WithState(s State) Meta {
	return m&^(15<<MetaStateShift) | Meta(s)<<MetaStateShift
}

// Counts reports whether a flow with this Meta counts as a connection of its backend. If both sides
// have sent a FIN and only one has revoked it by data, the flow does not count: the data may be
// forged, or a retransmission.
func (m Meta) Counts() bool {
	return m.Live() && !m.State().Over() && !m.Reset() && (m.State() == Established || !m.BothFins())
}

// ResetBy returns the side that sent the RST of a reset flow.
func (m Meta) ResetBy() Side { return Side(m >> MetaFlagsShift & 1) }

// BothFins reports whether both sides of an open connection have sent a FIN, and at least one of
// them has sent data after its FIN.
func (m Meta) BothFins() bool {
	switch m.State() {
	case Established:
		return m&MetaFins == MetaFins
	case FinClient:
		return m&MetaFinBackend != 0
	case FinBackend:
		return m&MetaFinClient != 0
	}
	return false
}

// Charges reports whether a flow with this Meta is charged if it is enrolled.
func (m Meta) Charges() bool { return m.Counts() && m.State().Assured() }

// BackendInTimeWait reports whether the backend may hold a connection in TIME_WAIT. It may also do
// so if its last ACK was not seen, and if a late copy of data revoked a FIN (restored): an end in
// TIME_WAIT ignores such data.
func (m Meta) BackendInTimeWait() bool {
	return m.State() == TimeWaitBackend || m.State() == LastAckBackend || m.BothFins()
}

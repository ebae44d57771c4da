package hello

import (
	"encoding/binary"
	"net/netip"
)

// EtherType is the first one for local experiments (IEEE 802; RFC 9542, section 3).
const EtherType = 0x88b5

// Group is the address that hellos are sent to: locally administered, a group.
var Group = [6]byte{0x03, 'S', 'l', 'u', 'i', 'c'}

// Hello is what a member says of itself.
type Hello struct {
	// Name is the member's: that of its node.
	Name string
	// Joining: it takes no VIP yet. Goodbye: it takes none any more, and ends. Returning: it ends,
	// and its gateway forwards on: its VIPs are to be kept for its next process.
	Joining, Goodbye, Returning bool
	// Incarnation is that of a link in its process: greater than those of all links before, also of
	// processes before unless the clock went back between them. Sequence grows with each message of
	// the link.
	Incarnation, Sequence uint64
	// Nonce is what those who hear it send back, among Heard: a message with a nonce in it was
	// written after that was made.
	Nonce uint64
	Heard []uint64
	// Table is the version of the list of VIPs that it knows. VIPs is one Part of it, of Parts.
	Table       uint64
	Part, Parts uint16
	VIPs        []Entry
}

// Entry is a VIP that a member knows, and would forward, unless it says that it would not.
type Entry struct {
	VIP     netip.Addr
	Leaving bool // others are better
	// LastResort: others are better, also those that leave. A member of a version before takes it
	// for Not, and so chooses among the others.
	LastResort bool
	Not        bool // it would not forward it: it can only answer for who does, and returns
}

// Bounds, so that a message fits into a frame of 1,280 bytes.
const (
	MaxName  = 253 // of a node (RFC 1123)
	MaxHeard = 32
	// MaxBytes is what the VIPs of one message take at most.
	MaxBytes = 600
)

const (
	magic         = "SLH1"
	headBytes     = 48
	nonceBytes    = 8
	sumBytes      = 32
	flagJoining   = 1
	flagGoodbye   = 2
	flagReturning = 4
	leaving       = 0x80
	not           = 0x40
)

// Bytes returns how many bytes of a message a VIP takes.
func (e Entry) Bytes() int { return 1 + e.VIP.BitLen()/8 }

// marshal returns the message without its HMAC.
func (h *Hello) marshal() []byte {
	b := make([]byte, headBytes, headBytes+len(h.Name)+nonceBytes*len(h.Heard)+MaxBytes+sumBytes)
	copy(b, magic)
	if h.Joining {
		b[4] |= flagJoining
	}
	if h.Goodbye {
		b[4] |= flagGoodbye
	}
	if h.Returning {
		b[4] |= flagReturning
	}
	b[5] = byte(len(h.Name))
	binary.BigEndian.PutUint16(b[6:], h.Part)
	binary.BigEndian.PutUint16(b[8:], h.Parts)
	binary.BigEndian.PutUint16(b[10:], uint16(len(h.Heard)))
	binary.BigEndian.PutUint16(b[12:], uint16(len(h.VIPs)))
	for i, n := range [...]uint64{h.Incarnation, h.Sequence, h.Table, h.Nonce} {
		binary.BigEndian.PutUint64(b[16+8*i:], n)
	}
	b = append(b, h.Name...)
	for _, n := range h.Heard {
		b = binary.BigEndian.AppendUint64(b, n)
	}
	for _, e := range h.VIPs {
		kind := byte(6)
		if e.VIP.Is4() {
			kind = 4
		}
		switch {
		case e.LastResort:
			kind |= leaving | not
		case e.Leaving:
			kind |= leaving
		case e.Not:
			kind |= not
		}
		b = append(append(b, kind), e.VIP.AsSlice()...)
	}
	return b
}

// unmarshal reads a message without its HMAC. False: it is none of this version.
func unmarshal(b []byte) (*Hello, bool) {
	if len(b) < headBytes || string(b[:4]) != magic || b[4]&^(flagJoining|flagGoodbye|flagReturning) != 0 ||
		binary.BigEndian.Uint16(b[14:]) != 0 {
		return nil, false
	}
	h := &Hello{Joining: b[4]&flagJoining != 0, Goodbye: b[4]&flagGoodbye != 0, Returning: b[4]&flagReturning != 0,
		Part: binary.BigEndian.Uint16(b[6:]), Parts: binary.BigEndian.Uint16(b[8:])}
	name, nonces, vips := int(b[5]), int(binary.BigEndian.Uint16(b[10:])), int(binary.BigEndian.Uint16(b[12:]))
	for i, to := range [...]*uint64{&h.Incarnation, &h.Sequence, &h.Table, &h.Nonce} {
		*to = binary.BigEndian.Uint64(b[16+8*i:])
	}
	if b = b[headBytes:]; h.Part >= h.Parts || name == 0 || name > MaxName || nonces > MaxHeard ||
		len(b) < name+nonceBytes*nonces {
		return nil, false
	}
	h.Name, b = string(b[:name]), b[name:]
	for range nonces {
		h.Heard, b = append(h.Heard, binary.BigEndian.Uint64(b)), b[nonceBytes:]
	}
	for range vips {
		if len(b) == 0 {
			return nil, false
		}
		e := Entry{}
		switch b[0] & (leaving | not) {
		case leaving | not:
			e.LastResort = true
		case leaving:
			e.Leaving = true
		case not:
			e.Not = true
		}
		size := map[byte]int{4: 4, 6: 16}[b[0]&^(leaving|not)]
		if size == 0 || len(b) < 1+size {
			return nil, false
		}
		e.VIP, _ = netip.AddrFromSlice(b[1 : 1+size])
		if e.VIP.Is4In6() {
			return nil, false // it would be another one than the IPv4 address
		}
		h.VIPs, b = append(h.VIPs, e), b[1+size:]
	}
	return h, len(b) == 0
}

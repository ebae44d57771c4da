package hello

import (
	"encoding/binary"
	"net/netip"
)

// EtherType is the first EtherType for local experiments (IEEE 802; RFC 9542, section 3).
const EtherType = 0x88b5

// Group is the destination of hellos: a locally administered group address.
var Group = [6]byte{0x03, 'S', 'l', 'u', 'i', 'c'}

// Hello is a member's report about itself.
type Hello struct {
	// Name is the member's name: the name of its node.
	Name string
	// Joining: it takes no VIP yet. Goodbye: it ends and gives up its VIPs. Returning: it ends but
	// its gateway continues to forward, so its VIPs must be kept for its next process.
	Joining, Goodbye, Returning bool
	// Incarnation identifies a link of a process. It is greater than the ones of all earlier links,
	// and of earlier processes unless the clock was set back between them. Sequence grows with each
	// message of the link.
	Incarnation, Sequence uint64
	// Nonce is a random number that receivers send back in Heard. A message whose Heard has a nonce
	// was written after that nonce was made.
	Nonce uint64
	Heard []uint64
	// Table is the version of its list of VIPs. VIPs is one Part of that list, out of Parts.
	Table       uint64
	Part, Parts uint16
	VIPs        []Entry
}

// Entry is a VIP that a member knows. It would forward the VIP unless Not is set.
type Entry struct {
	VIP     netip.Addr
	Leaving bool // other members are preferred
	// LastResort: other members are preferred, also leaving ones. Older versions treat it as Not,
	// and so choose among the others.
	LastResort bool
	Not        bool // it would not forward the VIP; it can only answer for the owner while that returns
}

// Bounds, so that a message fits into a frame of 1,280 bytes.
const (
	MaxName  = 253 // of a node (RFC 1123)
	MaxHeard = 32
	// MaxBytes is the most bytes that the VIPs of one message take.
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

// Bytes returns how many bytes of a message the VIP takes.
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

// unmarshal parses a message without its HMAC. False: it is not a valid message of this version.
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
			return nil, false // it would differ from the same IPv4 address
		}
		h.VIPs, b = append(h.VIPs, e), b[1+size:]
	}
	return h, len(b) == 0
}

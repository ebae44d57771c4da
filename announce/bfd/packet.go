package bfd

import (
	"encoding/binary"
	"time"
)

// State of a session (RFC 5880, section 4.1).
type State uint8

// The states, in the encoding of a packet.
const (
	AdminDown State = iota
	Down
	Init
	Up
)

func (s State) String() string {
	return [...]string{"admin down", "down", "init", "up"}[s&3]
}

// Diagnostic codes (RFC 5880, section 4.1).
const (
	diagNone         = 0
	diagExpired      = 1 // Control Detection Time Expired
	diagNeighborDown = 3 // Neighbor Signaled Session Down
	diagAdminDown    = 7 // Administratively Down
)

// The mandatory section of a control packet (RFC 5880, section 4.1).
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-----+---------+---+-+-+-+-+-+-+---------------+---------------+
//	|Vers |  Diag   |Sta|P|F|C|A|D|M|  Detect Mult  |    Length     |
//	+-----+---------+---+-+-+-+-+-+-+---------------+---------------+
//	|  My Discriminator, Your Discriminator, 32 bits each           |
//	|  Desired Min TX, Required Min RX, Required Min Echo RX, in µs |
//	+---------------------------------------------------------------+
const (
	version      = 1
	packetLength = 24

	flagPoll           = 0x20
	flagFinal          = 0x10
	flagAuthentication = 0x04
	flagDemand         = 0x02
	flagMultipoint     = 0x01
)

// packet is a control packet without authentication.
type packet struct {
	diag       uint8
	state      State
	poll       bool
	final      bool
	demand     bool
	multiplier uint8
	my, your   uint32 // discriminators
	transmit   time.Duration
	receive    time.Duration
}

// parse parses a packet. A reason that is not empty is why it must be discarded (RFC 5880, section
// 6.8.6).
func parse(b []byte) (p packet, reason string) {
	switch {
	case len(b) < packetLength:
		return p, "they are too short"
	case b[0]>>5 != version:
		return p, "they are not of version 1"
	case b[1]&flagAuthentication != 0:
		return p, "they are authenticated, which Sluice does not support: turn it off at the router"
	case b[3] < packetLength || int(b[3]) > len(b):
		return p, "their length is wrong"
	case b[1]&flagMultipoint != 0:
		return p, "they have the Multipoint bit"
	}
	p = packet{diag: b[0] & 0x1f, state: State(b[1] >> 6), poll: b[1]&flagPoll != 0, final: b[1]&flagFinal != 0,
		demand: b[1]&flagDemand != 0, multiplier: b[2], my: binary.BigEndian.Uint32(b[4:]),
		your:     binary.BigEndian.Uint32(b[8:]),
		transmit: time.Duration(binary.BigEndian.Uint32(b[12:])) * time.Microsecond,
		receive:  time.Duration(binary.BigEndian.Uint32(b[16:])) * time.Microsecond}
	switch {
	case p.multiplier == 0:
		reason = "their Detect Mult is 0"
	case p.my == 0:
		reason = "their My Discriminator is 0"
	case p.transmit > maxInterval || p.receive > maxInterval:
		reason = "their intervals are longer than " + maxInterval.String()
	}
	return p, reason
}

// marshal returns the bytes of a packet. Required Min Echo RX is 0: echo packets are not supported.
func (p *packet) marshal() (b [packetLength]byte) {
	b[0] = version<<5 | p.diag
	b[1] = byte(p.state) << 6
	if p.poll {
		b[1] |= flagPoll
	}
	if p.final {
		b[1] |= flagFinal
	}
	b[2], b[3] = p.multiplier, packetLength
	binary.BigEndian.PutUint32(b[4:], p.my)
	binary.BigEndian.PutUint32(b[8:], p.your)
	binary.BigEndian.PutUint32(b[12:], uint32(p.transmit/time.Microsecond))
	binary.BigEndian.PutUint32(b[16:], uint32(p.receive/time.Microsecond))
	return b
}

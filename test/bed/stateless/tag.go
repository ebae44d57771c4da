package stateless

import "encoding/binary"

// Every packet carries a tag right behind its transport header; a fragment that is
// not the first, right behind its IP header. tag.h is its twin in C.
//
//	0      2      4            8            12                18
//	│ 'SL' │ run  │ flow       │ sequence   │ time, 48 bits   │
//
// All in network byte order. The sequence numbers of a flow start at 0 and have no gaps. The time
// is CLOCK_MONOTONIC in nanoseconds, modulo 2^48 (78 hours).
const (
	tagMagic  = 0x534c
	tagBytes  = 18
	tagRun    = 2
	tagFlow   = 4
	tagSeq    = 8
	tagTime   = 12
	timeMask  = 1<<48 - 1
	timeShift = 32
)

// tag is the tag read from a packet.
type tag struct {
	run       uint16
	flow, seq uint32
	nanos     uint64
}

// readTag is false if b does not start with a tag.
func readTag(b []byte) (t tag, ok bool) {
	if len(b) < tagBytes || binary.BigEndian.Uint16(b) != tagMagic {
		return tag{}, false
	}
	return tag{
		run:   binary.BigEndian.Uint16(b[tagRun:]),
		flow:  binary.BigEndian.Uint32(b[tagFlow:]),
		seq:   binary.BigEndian.Uint32(b[tagSeq:]),
		nanos: uint64(binary.BigEndian.Uint16(b[tagTime:]))<<timeShift | uint64(binary.BigEndian.Uint32(b[tagTime+2:])),
	}, true
}

// age is how many nanoseconds ago a packet was stamped: negative if the two clocks
// disagree.
func age(now, stamp uint64) int64 {
	const signBit = 1 << 47
	d := (now - stamp) & timeMask
	return int64(d^signBit) - signBit
}

package group

import (
	"math"

	"sluice.dev/sluice/flowtable/conn"
)

// Record is a flow as its owner sends it: all that a member needs to translate both directions.
type Record = conn.Record

// Kind is the kind of a message from an owner to a member.
type Kind uint8

const (
	// All is the first message of a stream. The member marks all copies of the owner as stale.
	All Kind = iota + 1
	// Set has the record of a slot.
	Set
	// Clear says that a slot has no flow.
	Clear
	// AllDone ends the records that exist. The member removes copies that are stale still, and is
	// in step.
	AllDone
	// Complete says that the owner knows all flows of its source addresses that a member has. From
	// then on a member in step may answer segments of unknown connections with RST.
	Complete
)

// Message is one message of an owner's stream. The first one has Seq 1, and each next one has the
// next number.
type Message struct {
	Kind   Kind
	Slot   uint32 // of Set and Clear
	Seq    uint64
	Record Record // of Set
}

// Sighting is what packets that have passed the member have done to its copy of a slot.
type Sighting struct {
	Slot uint32
	conn.Sighting
}

// Remark is what a member says about a message beside that it has applied it.
type Remark struct {
	Seq    uint64
	Reason Refusal // of a Set
	// Forwarded: of a Clear, when the member may last have forwarded a datagram by its copy, by the
	// owner's clock; 0: it has forwarded none.
	Forwarded int64
}

// Unknown is a time in place of an unknown one: until the owner learns that a copy has ended, the
// member may forward datagrams.
const Unknown = math.MaxInt64

// Age is the age of the last datagram that a copy has forwarded, 1 for 0 ticks (conn.Tick), 2 for
// at least 1, and so on; 0 if it has forwarded none.
type Age uint16

// AgeOf returns the Age of a number of ticks.
func AgeOf(ticks int32) Age { return 1 + Age(min(ticks, math.MaxUint16-1)) }

// Before returns the time of the datagram, if the age is that at time now.
func (a Age) Before(now int64) int64 {
	if a == 0 {
		return 0
	}
	return max(1, now-int64(a-1)*int64(conn.Tick))
}

// Refusal is the reason why a member has no copy of a record that it was sent.
type Refusal uint8

const (
	// Accepted: the member has the copy.
	Accepted Refusal = iota
	// TableFull: its flow table has no room.
	TableFull
	// OtherFlow: it keeps its own flow of the client (Refuse of Resolve). The owner ends its flow
	// unless the SYN-ACK has left.
	OtherFlow
	// ThirdFlow: it has a copy of a third gateway's flow of the client (Ignore of Resolve).
	ThirdFlow
	// ForeignAddress: the record's source address is not one of the owner's.
	ForeignAddress

	// MaxRefusal is the greatest value.
	MaxRefusal = ForeignAddress
)

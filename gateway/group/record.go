package group

import (
	"math"

	"sluice.dev/sluice/flowtable/conn"
)

// Record is a flow in the form that its owner sends: it suffices to translate both directions.
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
	// AllDone follows the records of all flows. The member removes copies that are still stale, and
	// is in step.
	AllDone
	// Complete says that the owner knows all flows with its source addresses that a member has.
	// From then on a member in step may answer segments of unknown connections with RST.
	Complete
)

// Message is one message of an owner's stream. Seq counts the messages, from 1 on.
type Message struct {
	Kind   Kind
	Slot   uint32 // of Set and Clear
	Seq    uint64
	Record Record // of Set
}

// CopyState is the state of a member's copy of a slot, as changed by packets that have passed the
// member.
type CopyState struct {
	Slot uint32
	conn.CopyState
}

// Remark is additional information in a member's acknowledgement of a message.
type Remark struct {
	Seq    uint64
	Reason Refusal // of a Set
	// Forwarded is set for a Clear: the time, by the owner's clock, at which the member may last
	// have forwarded a datagram by its copy; 0: it has forwarded none.
	Forwarded int64
}

// Unknown stands for an unknown time: the member may forward datagrams until the owner learns that
// the copy has ended.
const Unknown = math.MaxInt64

// Age is the age of the last datagram that was forwarded by a copy: 1 for 0 ticks (conn.Tick), 2
// for at least 1, and so on; 0 if there was none.
type Age uint16

// AgeOf returns the Age of a number of ticks.
func AgeOf(ticks int32) Age { return 1 + Age(min(ticks, math.MaxUint16-1)) }

// Before returns the time of the datagram whose age at time now is a.
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

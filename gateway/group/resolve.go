package group

// Opening is the state of a gateway's own flow of a client until the client's first segment.
type Opening uint8

const (
	// NoFlow: the gateway has no flow of its own for the client.
	NoFlow Opening = iota
	// Asked: the client's SYN went to a backend.
	Asked
	// Answered: the backend has answered, its SYN-ACK waits for the members, and the record was
	// sent to them.
	Answered
	// Left: the SYN-ACK has left.
	Left
)

// Resolution is a gateway's action on a record of another gateway's flow.
type Resolution uint8

const (
	// Apply: make or change the copy.
	Apply Resolution = iota
	// YieldAndApply: end the own flow, reset its connection to the backend, and make the copy.
	YieldAndApply
	// Refuse: keep the own flow. The other gateway ends its flow unless its SYN-ACK has left.
	Refuse
	// Ignore: keep the copy of a third gateway's flow, and do not acknowledge.
	Ignore
)

// Resolve decides between a record that arrives and the flow that a gateway has for the same
// client. lower: this gateway comes before the sender in the order of the group. third: this
// gateway has a copy of a third gateway's flow.
//
// Two SYN-ACKs cannot both leave protected: each would need the other gateway's acknowledgement,
// and a gateway acknowledges only after it has ended its own flow. A flow whose backend has not
// answered was sent to no member, and ends for any record.
func Resolve(own Opening, lower, third bool) Resolution {
	switch {
	case own == Left, own == Answered && lower:
		return Refuse
	case own != NoFlow:
		return YieldAndApply
	case third:
		return Ignore
	}
	return Apply
}

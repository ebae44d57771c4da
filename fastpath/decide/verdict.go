package decide

import (
	"sluice.dev/sluice/nat"
	"sluice.dev/sluice/nat/reason"
)

// Verdict is the decision about a packet. Every packet gets exactly one.
type Verdict struct {
	Action Action
	Reason reason.Drop // for Drop
}

// Action is the kind of a Verdict.
type Action uint8

const (
	// Drop: the packet is counted under Verdict.Reason and its frame is freed. It is the zero
	// Action, so that a missing verdict shows as a drop without a reason, not as a leak.
	Drop Action = iota
	// Queued: the frame went to an egress queue or a hold queue, which own it now.
	Queued
	// ToKernel: the packet goes unchanged to the kernel by the host link.
	ToKernel
)

// String returns the verdict as text for an operator.
func (v Verdict) String() string {
	switch v.Action {
	case Queued:
		return "forward"
	case ToKernel:
		return "to kernel"
	}
	return "drop (" + v.Reason.String() + ")"
}

// Unreachable is the response to a packet if the kernel has no route to its destination.
var Unreachable = Response{Verdict: dropped(reason.NoRoute), Notify: true, Error: nat.HostUnreachable}

var (
	queued   = Verdict{Action: Queued}
	toKernel = Verdict{Action: ToKernel}
)

func dropped(r reason.Drop) Verdict { return Verdict{Drop, r} }

package loop

import (
	"sluice.dev/sluice/control/steer"
)

// Steering is the kernel program as the control loop uses it. All methods must be idempotent: the
// loop repeats calls that failed.
type Steering interface {
	// Held returns what the kernel program sends to user space now: before the first Replace, what
	// a predecessor left.
	Held() steer.Set
	// Replace sends to user space exactly what is in the set.
	Replace(*steer.Set) error
	// Open sends more packets to user space. Addresses gain the flags in the set.
	Open(*steer.Set) error
	// Close leaves packets to the kernel again. Addresses lose the flags in the set.
	Close(*steer.Set) error
}

// Flows is the flow table as the control loop uses it.
type Flows interface {
	// InUse returns the part of a set that live flows need: frontends and node
	// ports their clients send to, keep-sources that answer them. Of an address
	// it returns those of the flags in the set that are needed: AddrVIP and AddrNode
	// if clients send to it, AddrSNAT if replies come to it. Of Replies it returns the ports that
	// live flows have as source ports. Flows through frontends of the set
	// that are at an address of the node, and served no more, end: nothing needs those.
	InUse(*steer.Set) steer.Set
}

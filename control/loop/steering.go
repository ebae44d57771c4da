package loop

import (
	"sluice.dev/sluice/control/steer"
)

// Steering is the kernel program as the control loop uses it. All methods must be idempotent: the
// loop repeats calls that failed.
type Steering interface {
	// Held returns the entries that the kernel program has now: before the first Replace, entries
	// of a predecessor.
	Held() steer.Set
	// Replace makes the kernel program send to user space exactly the packets of the set.
	Replace(*steer.Set) error
	// Open sends more packets to user space. Addresses gain the flags in the set.
	Open(*steer.Set) error
	// Close leaves packets to the kernel again. Addresses lose the flags in the set.
	Close(*steer.Set) error
}

// Flows is the flow table as the control loop uses it.
type Flows interface {
	// InUse returns the part of a set that live flows need: frontends and node ports that their
	// clients send to, and keep-sources that answer them. Of an address it returns the flags that
	// are needed: AddrVIP and AddrNode if clients send to it, AddrSNAT if replies come to it. Of
	// Replies it returns the source ports of live flows. Flows through frontends of the set that
	// are at an address of the node and no longer served end, so nothing needs their entries.
	InUse(*steer.Set) steer.Set
}

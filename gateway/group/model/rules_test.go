package model

// rule is one of the rules that the models check. A machine takes one rule out at most: without it
// there must be a violation.
type rule uint8

const (
	_ rule = iota // no rule is taken out

	// Ports.
	holdPort      // a port of an ended flow stays taken while a member may have the flow's record
	holdForLost   // members that are out of step count as well: only an acknowledgement or AllDone frees
	lastMessage   // an acknowledgement frees a port only if it covers the last message about the slot
	allDoneFirst  // an acknowledgement frees a port only after AllDone of the same stream
	keepHeld      // held ports survive kill -9 of the owner
	takeBack      // an owner takes its flows back from a member before it sends it any
	useSpare      // an owner without memory takes ports of its spare address until it has reached all members
	cleanSpare    // an address is a spare again only when no member can have a record of it
	keepCopies    // a member keeps the copies of an owner that it does not hear
	sayComplete   // a member answers with RST only if the owner has told that it took back its flows from all
	waitForCopy   // the SYN-ACK waits until every member in step has acknowledged the record
	waitForLease  // the owner stops waiting for a member only after the member's lease has run out
	leaseOfStream // AllDone brings a member in step only while the lease of its stream holds
	waitForJoiner // the owner waits for a joining member from the moment that it sends AllDone

	// Handshakes.
	copyFirst     // the SYN-ACK waits until every gateway in step has acknowledged the record
	oneWins       // of two flows of a client one ends: not the lower gateway's
	leftStays     // ... but a flow whose SYN-ACK has left does not end
	firstStays    // a copy is not replaced by the record of a third gateway
	proveSegments // an unproven flow passes only segments that acknowledge its backend's SYN
)

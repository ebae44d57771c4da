package loop

import (
	"slices"

	"sluice.dev/sluice/control/steer"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
)

// A source address that the node does not have gets the replies to nearly all of its ports. When it
// becomes one of the node's, that ends: from then on new flows have source ports of the configured
// range, and replies to others are steered port by port, as long as flows have them.

// ofNode are the flags of an address of the node.
const ofNode = services.AddrNode | services.AddrLocal

// turnShared reports whether a source address that is held as ours alone is the node's in next.
func turnShared(held, next *steer.Set) bool {
	own := map[header.Addr]bool{}
	for _, a := range held.Addrs {
		if a.Flags&(services.AddrSNAT|ofNode) == services.AddrSNAT {
			own[a.Addr] = true
		}
	}
	return slices.ContainsFunc(next.Addrs, func(a steer.OwnAddr) bool { return a.Flags&ofNode != 0 && own[a.Addr] })
}

// shareSources opens the ports of live flows before a source address becomes the node's. Workers
// choose ports as before until they have the next snapshot, so leftovers does it once more then.
func (l *Loop) shareSources(open *steer.Set) {
	if l.Flows == nil || !l.replaced ||
		!slices.ContainsFunc(open.Addrs, func(a steer.OwnAddr) bool { return a.Flags&ofNode != 0 }) {
		return
	}
	if held := l.Steering.Held(); turnShared(&held, open) {
		l.sharing = true
		l.keepReplies()
	}
}

// keepReplies opens the source ports of all live flows. It walks the flows on the loop's goroutine:
// addresses of the node rarely change.
func (l *Loop) keepReplies() {
	used := l.Flows.InUse(&steer.Set{Replies: steer.AllPorts()})
	if l.walking != nil {
		l.walking.reopened.add(&used)
	}
	l.pending.note(&used, true)
}

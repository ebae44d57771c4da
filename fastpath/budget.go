package fastpath

// A packet of a known flow costs about 50 ns. A packet that opens a flow costs about 0.6 us, or 1.4
// us if a previous flow must be found and ended (BenchmarkStep, BenchmarkConnection). So a step may
// open a limited number of flows. Without the limit, a flood of SYNs would make steps so long that
// receive rings overflow and packets of known flows are lost.
//
// A packet that would open a flow is parked if the budget is spent or if other packets are parked.
// Each step handles the received packets first, and then parked packets, oldest first, until the
// budget is spent. So known flows never wait for new flows, and new flows are opened in the order
// of their packets. If there is no room, the oldest packet is dropped: its sender will be the first
// to repeat it.
const (
	// OpensPerStep is the maximum number of flows that a step opens: about 50 us of work.
	OpensPerStep = 32
	// opensPerFullStep is the maximum for a step that received a full batch: more packets wait, and
	// the worker must keep up with packets of known flows. 20,000 such steps a second still open
	// 320,000 flows.
	opensPerFullStep = groupSize
	// probesPerOpen is how many probed source ports, beyond the first freeProbes, count as one
	// opened flow. If all ports towards a backend are taken, 64 are probed without success, which
	// costs about 30 times as much as a flow.
	probesPerOpen = 2
	freeProbes    = 32
	// comparedPerOpen is how many backends compared by a scheduler (lc, wlc, sed, nq) count as one
	// opened flow; each costs 4 to 6 ns.
	comparedPerOpen = 128
	// opensForParked is the part of the budget that received packets of known flows must leave for
	// parked packets: repeated SYNs that move their flows to other backends (retry), and searches
	// for an endpoint that may have come back (classify).
	opensForParked = opensPerFullStep / 2
)

// budget bounds a step.
type budget struct {
	packets  int  // that the step takes from each link
	flows    int  // that the step may still open
	emptying bool // openParked handles the parked packets, so none is parked again
}

// spend takes n flows from the budget, or all that are left.
func (b *budget) spend(n int) { b.flows -= min(b.flows, n) }

// received lowers the budget of a step that received a full batch of n packets from a link.
func (b *budget) received(n int) {
	if n == b.packets {
		b.flows = min(b.flows, opensPerFullStep)
	}
}

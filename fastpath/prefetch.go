package fastpath

import (
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/header"
)

// prefetches keeps the order in which the stages of a batch (pipeline.go) prefetch lines for later
// stages. A processor with the maximum number of misses in flight may drop further prefetches: an
// EPYC of 2022 (Zen 4) does at about twenty (BenchmarkBurst in nat/prefetch). So the prefetches are
// spread over a round, and finish runs between inspect and find:
//
//	round r of the batch    prefetches                                        for
//	inspect group r         first header lines of group r+1                   inspect, round r+1
//	                        buckets of the index of group r                   find, round r+1
//	finish group r-2        IPv6: half of the flows of group r-1              finish, round r+1
//	                        IPv6: second header lines of r+1, one a packet    inspect, round r+1
//	fetchHeaders            IPv6: the remaining second header lines           inspect, round r+1
//	fetchFlows              the other flows of group r-1                      finish, round r+1
//
// An IPv6 flow has two lines, and so do its packets' headers: a batch prefetches both lines if the
// previous batch had IPv6 packets.
type prefetches struct {
	v6, seenV6 bool               // the previous batch had IPv6; this one has
	headers    []Desc             // packets of the next group to inspect whose second header line is not prefetched yet
	flows      []flowtable.Search // packets of the group in find whose flow is not prefetched yet
}

// begin starts a batch.
func (p *prefetches) begin() { p.v6, p.seenV6 = p.seenV6, false }

// next sets the group that is inspected next.
func (p *prefetches) next(group []Desc) {
	if p.v6 {
		p.headers = group
	}
}

// fetchHeaders prefetches the remaining second header lines.
func (p *prefetches) fetchHeaders(m *header.Memory) {
	if len(p.headers) != 0 {
		m.FetchEnds(p.headers)
		p.headers = nil
	}
}

// fetched removes up to n packets whose second header lines have been prefetched.
func (p *prefetches) fetched(n int) { p.headers = p.headers[min(len(p.headers), n):] }

// fetchFlows prefetches up to n of the remaining flows.
func (p *prefetches) fetchFlows(h *flowtable.Handle, n int) {
	n = min(n, len(p.flows))
	h.FetchFlows(p.flows[:n])
	p.flows = p.flows[n:]
}

package fastpath

import (
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/header"
)

// prefetches is the order in which the stages of a batch (pipeline.go) prefetch lines that a later
// stage reads. A processor that has as many misses in flight as it can have may drop further
// prefetches: an EPYC of 2022 (Zen 4) does, from about twenty on (BenchmarkBurst in nat/prefetch).
// So the lines are spread over a round, and finish runs between inspect and find:
//
//	round r of the batch    prefetches                                        for
//	inspect group r         first header lines of group r+1                   inspect, round r+1
//	                        buckets of the index of group r                   find, round r+1
//	finish group r-2        IPv6: half of the flows of group r-1              finish, round r+1
//	                        IPv6: second header lines of r+1, one a packet    inspect, round r+1
//	fetchHeaders            IPv6: the others, if any are left                 inspect, round r+1
//	fetchFlows              the other flows of group r-1                      finish, round r+1
//
// A flow over IPv6 is two lines long, and so are its packets' headers: a batch prefetches both
// lines if the batch before had IPv6 packets.
type prefetches struct {
	v6, seenV6 bool               // the batch before had IPv6; this one has
	headers    []Desc             // of the group that is inspected next, those whose second line is left
	flows      []flowtable.Search // of the group of find, those left
}

// begin starts a batch.
func (p *prefetches) begin() { p.v6, p.seenV6 = p.seenV6, false }

// next notes the group that is inspected next.
func (p *prefetches) next(group []Desc) {
	if p.v6 {
		p.headers = group
	}
}

// fetchHeaders prefetches the second header lines that are left.
func (p *prefetches) fetchHeaders(m *header.Memory) {
	if len(p.headers) != 0 {
		m.FetchEnds(p.headers)
		p.headers = nil
	}
}

// fetched notes that the second header lines of up to n packets have been prefetched.
func (p *prefetches) fetched(n int) { p.headers = p.headers[min(len(p.headers), n):] }

// fetchFlows prefetches the flows of up to n packets that are left.
func (p *prefetches) fetchFlows(h *flowtable.Handle, n int) {
	n = min(n, len(p.flows))
	h.FetchFlows(p.flows[:n])
	p.flows = p.flows[n:]
}

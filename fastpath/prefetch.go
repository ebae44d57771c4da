package fastpath

import (
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/header"
)

// prefetches keeps the order in which the stages of a batch (pipeline.go) prefetch lines for later
// stages. At the maximum number of misses in flight an EPYC of 2022 (Zen 4) drops further
// prefetches, at about twenty (BenchmarkBurst in nat/prefetch), and a Xeon of 2023 waits. So the
// prefetches are spread over a round, and finish runs between inspect and find:
//
//	round r of the batch    prefetches                                          for
//	inspect group r         headers of half of group r+1, one per two packets   inspect, round r+1
//	                        buckets of the index of group r                     find, round r+1
//	finish group r-2        IPv6: half of the flows of group r-1                finish, round r+1
//	                        headers of the other half, one per two packets      inspect, round r+1
//	fetchHeaders            the remaining headers, if finish was short          inspect, round r+1
//	fetchFlows              the other flows of group r-1                        finish, round r+1
//
// An IPv6 flow has two lines, and so do its packets' headers: a batch prefetches both lines if the
// previous batch had IPv6 packets.
type prefetches struct {
	v6, seenV6 bool               // the previous batch had IPv6; this one has
	headers    []Desc             // packets of the next group to inspect whose headers are not prefetched yet
	flows      []flowtable.Search // packets of the group in find whose flow is not prefetched yet
}

// begin starts a batch with its first group.
func (p *prefetches) begin(first []Desc) { p.v6, p.seenV6, p.headers = p.seenV6, false, first }

// fetchHeaders prefetches the remaining headers.
func (p *prefetches) fetchHeaders(m *header.Memory) {
	m.Fetch(p.headers, p.v6)
	p.headers = nil
}

// fetched removes the packets whose headers were prefetched while n packets were processed.
func (p *prefetches) fetched(n int) { p.headers = p.headers[header.Ahead(n, len(p.headers)):] }

// fetchFlows prefetches up to n of the remaining flows.
func (p *prefetches) fetchFlows(h *flowtable.Handle, n int) {
	n = min(n, len(p.flows))
	h.FetchFlows(p.flows[:n])
	p.flows = p.flows[n:]
}

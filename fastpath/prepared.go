package fastpath

import (
	"sluice.dev/sluice/fastpath/decide"
	"sluice.dev/sluice/flowtable"
)

// prepared has the results of the lookahead for one packet.
type prepared struct {
	packet       // only its hash is valid if known is false
	known   bool // the packet is parsed
	planned bool // the plan is certain; flow is its flow if its verdict is Queued
	draw    uint64
	plan    decide.Plan
	flow    flowtable.NewFlow
	reply   uint64 // hash of the reply key (FetchCreate), or 0
}

// lookahead has the results for packets first to end of the batch.
type lookahead struct {
	first, end int
	of         [groupSize]prepared
}

// repeats reports whether packet i of a lookahead belongs to the new flow of an earlier packet, and
// so draws no random number.
func (o *lookahead) repeats(i int) bool {
	for j := range o.of[:i] {
		if f := &o.of[j]; f.hash == o.of[i].hash && f.known {
			return !f.planned || f.plan.Verdict.Action == decide.Queued
		}
	}
	return false
}

package flowtable

import (
	"testing"
	"time"

	"sluice.dev/sluice/nat/header"
)

// TestReclaimKeepsUp: a worker with several links takes a batch from each between two Enters, and
// in a flood each packet ends one flow and makes another. For any number of such packets, records
// must be reclaimed as fast as they are retired; otherwise the reserve is exhausted and Create
// fails.
func TestReclaimKeepsUp(t *testing.T) {
	const flows, perEnter = 50_000, 3*maxReclaim + 17
	tb, h := testTable(t, flows, 0)
	n, now := uint32(0), bootTime
	for range (flows + 4*reserve(flows)) / perEnter {
		now += Time(25 * time.Microsecond)
		h.Enter(now)
		for range perEnter {
			f := newFlow(header.ProtoUDP, false, n)
			n++
			if _, s := h.Create(now, &f); s != Created {
				t.Fatalf("flow %d: %v, although all flows of the table are unanswered", n, s)
			}
		}
	}
	validate(t, tb)
}

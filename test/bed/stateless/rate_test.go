//go:build root

package stateless

import (
	"testing"
	"time"
)

// TestRate: what is due at a rate is sent, or counted as missed: on a machine that is busy with
// other things a sender does not make up for all that it missed. What is due when, TestPacer has to
// the packet.
func TestRate(t *testing.T) {
	const rate, long = 2000, 300 * time.Millisecond
	r, err := open(t, loopback(t, 1)).Trial(t.Context(), Load{Rate: rate, Duration: long})
	must(t, err)
	due := uint64(rate * long.Seconds())
	if all := r.Sent.Packets + r.Sent.Missed; all+1 < due || all > due+1 || r.Sent.Packets == 0 || r.Lost() > 0 ||
		r.Sent.Elapsed < long {
		t.Errorf("%d packets sent, %d missed and %d lost in %v; want %d in %v", r.Sent.Packets, r.Sent.Missed,
			r.Lost(), r.Sent.Elapsed, due, long)
	}
}

//go:build root

package stateless

import (
	"testing"
	"time"
)

// TestRate: both sources send what is due at a rate, or say that they missed it: on a machine that
// is busy with other things a sender does not make up for all that it missed. What is due when,
// TestPacer has to the packet.
func TestRate(t *testing.T) {
	const rate, long = 2000, 300 * time.Millisecond
	for _, source := range []Source{AFXDP, LiveFrames} {
		c := loopback(t, 1)
		c.Tx.Source = source
		r, err := open(t, c).Trial(t.Context(), Load{Rate: rate, Duration: long})
		must(t, err)
		due := uint64(rate * long.Seconds())
		if all := r.Sent.Packets + r.Sent.Missed; all+1 < due || all > due+1 || r.Sent.Packets == 0 || r.Lost() > 0 ||
			r.Sent.Elapsed < long {
			t.Errorf("%v: %d packets sent, %d missed and %d lost in %v; want %d in %v", source, r.Sent.Packets,
				r.Sent.Missed, r.Lost(), r.Sent.Elapsed, due, long)
		}
	}
}

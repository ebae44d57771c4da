//go:build root

package stateless

import (
	"testing"
	"time"
)

// TestRate: a rate that both sources can send is not exceeded by more than 5 percent, and in one of
// some trials most of it is sent: on a machine that is busy with other things a sender does not
// make up for all that it missed. What is due when, TestPacer has to the packet.
func TestRate(t *testing.T) {
	const rate, tries = 2000, 10
	for _, source := range []Source{AFXDP, LiveFrames} {
		c := loopback(t, 1)
		c.Tx.Source = source
		lab := open(t, c)
		var rates []float64
		for range tries {
			r, err := lab.Trial(t.Context(), Load{Rate: rate, Duration: 300 * time.Millisecond})
			must(t, err)
			rates = append(rates, r.Rate())
			if r.Rate() > 1.05*rate {
				break
			}
			if r.Rate() > 0.75*rate {
				rates = nil
				break
			}
		}
		if rates != nil {
			t.Errorf("%v: %.0f packets a second, want %d", source, rates, rate)
		}
	}
}

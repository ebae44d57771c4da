package stateless

import (
	"math"
	"testing"
	"time"
)

// TestRate: a rate that both sources can send is sent to within 5 percent. On a machine
// that is busy with other things one of some trials must do.
func TestRate(t *testing.T) {
	const rate, tries = 2000, 5
	for _, source := range []Source{AFXDP, LiveFrames} {
		c := loopback(t, 1)
		c.Tx.Source = source
		lab := open(t, c)
		var rates []float64
		for range tries {
			r, err := lab.Trial(t.Context(), Load{Rate: rate, Duration: 300 * time.Millisecond})
			must(t, err)
			rates = append(rates, r.Rate())
			if math.Abs(r.Rate()-rate) < 0.05*rate {
				rates = nil
				break
			}
		}
		if rates != nil {
			t.Errorf("%v: %.0f packets a second, want %d", source, rates, rate)
		}
	}
}

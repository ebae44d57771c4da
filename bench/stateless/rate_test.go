package stateless

import (
	"os"
	"testing"
	"time"
)

// TestCostOfSources says what a packet costs with each source and method; with a
// duration in SLUICE_COST.
func TestCostOfSources(t *testing.T) {
	d, err := time.ParseDuration(os.Getenv("SLUICE_COST"))
	if err != nil {
		d = 100 * time.Millisecond
	}
	for _, source := range []Source{AFXDP, LiveFrames} {
		for _, method := range []Method{Count, Full} {
			t.Run(source.String()+" "+method.String(), func(t *testing.T) {
				c := loopback(t, 1)
				c.Tx.Source, c.Rx.Method = source, method
				lab := open(t, c)
				r, err := lab.Trial(t.Context(), Load{Duration: d})
				must(t, err)
				t.Logf("%.0f ns of CPU per packet sent, %.3f Mpps sent, %.3f received, %.2f %% lost, drops %v", float64(r.Sent.CPU)/float64(r.Sent.Packets), r.Sent.Rate()/1e6, r.Rate()/1e6, 100*r.Loss(), r.Drops)
			})
		}
	}
}

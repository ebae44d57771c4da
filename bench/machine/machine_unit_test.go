package machine

import (
	"strings"
	"testing"
)

func TestFactor(t *testing.T) {
	for _, c := range []struct {
		text string
		want float64 // 0 is refused
	}{
		{"", 1}, {"1", 1}, {"2.5", 2.5}, {"100", 100},
		{"0", 0}, {"0.5", 0}, {"101", 0}, {"-3", 0}, {"NaN", 0}, {"ten", 0},
	} {
		got, err := parseFactor(c.text)
		if got != c.want || (err == nil) != (c.want > 0) {
			t.Errorf("%q: %v, %v, want %v", c.text, got, err, c.want)
		}
		if err != nil && !strings.Contains(err.Error(), slowerVariable) {
			t.Errorf("%q: the message does not name the variable: %v", c.text, err)
		}
	}
}

// TestFeatures: what is said of each feature is true of what a user would try, or names the reason.
func TestFeatures(t *testing.T) {
	for _, f := range []Feature{SCTP, Netem, VLAN, Pktgen, IPVS, IPSet} {
		err := f.Missing()
		t.Logf("%s: %v", f.Name, err)
		if err != nil && (!strings.Contains(err.Error(), f.Name) || !strings.Contains(err.Error(), f.Module)) {
			t.Errorf("%s: %v", f.Name, err)
		}
	}
}

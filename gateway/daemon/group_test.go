package daemon

import (
	"net/netip"
	"strings"
	"testing"

	"sluice.dev/sluice/serve/status"
)

// TestSourceConditions: the states of source addresses, of one family after the other, and what is
// said of them.
func TestSourceConditions(t *testing.T) {
	for _, c := range []struct {
		states string // of IPv4 and IPv6
		want   string // levels and beginnings
	}{
		{"open spare open spare", ""},
		{"spare open", ""},
		{"closed open", "warn source address 198.51.100.0 is closed, and 198.51.100.1 is in use"},
		{"open closed", "warn source address 198.51.100.1 is closed, and 198.51.100.0 is in use"},
		{"closed closed", "fail no source address is open (198.51.100.0 and 198.51.100.1 are closed)"},
		{"open spare closed closed", "fail no source address is open (2001:db8::2 and 2001:db8::3 are closed)"},
	} {
		v := &status.GroupView{}
		for i, state := range strings.Fields(c.states) {
			a := netip.AddrFrom4([4]byte{198, 51, 100, byte(i)})
			if i > 1 {
				a = netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 15: byte(i)})
			}
			v.Sources = append(v.Sources, status.GroupSourceView{Address: a, State: state})
		}
		got := ""
		for _, o := range sourceConditions(v) {
			got += o.Level + " " + o.Detail
		}
		if !strings.HasPrefix(got, c.want) || c.want == "" && got != "" {
			t.Errorf("%s: got %q, want %q", c.states, got, c.want)
		}
	}
}

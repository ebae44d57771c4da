package stateless

import (
	"net/netip"
	"slices"
	"testing"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]Addresses{
		"10.0.0.1":            {netip.MustParseAddr("10.0.0.1"), 1},
		"10.0.0.250-10.0.1.5": {netip.MustParseAddr("10.0.0.250"), 12},
		"10.0.0.7/24":         {netip.MustParseAddr("10.0.0.0"), 256},
		"fd00::1-fd00::10":    {netip.MustParseAddr("fd00::1"), 16},
	} {
		if got, err := ParseAddresses(text); err != nil || got != want {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "x", "10.0.0.2-10.0.0.1", "10.0.0.1-fd00::1", "0.0.0.0/0", "10.0.0.0-12.0.0.0"} {
		if got, err := ParseAddresses(text); err == nil {
			t.Errorf("%q is %v", text, got)
		}
	}
	if got, err := ParsePorts("1024-65535"); err != nil || got != (Ports{1024, 65535}) {
		t.Errorf("%v, %v", got, err)
	}
	for _, text := range []string{"", "65536", "9-8", "a", "1-2-3"} {
		if got, err := ParsePorts(text); err == nil {
			t.Errorf("ports %q are %v", text, got)
		}
	}
	for text, want := range map[string][]Size{"64": {{64, 1}}, "imix": IMIX(), "64:7,1518:2": {{64, 7}, {1518, 2}}} {
		if got, err := ParseSizes(text); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	for text, want := range map[string]float64{"max": 0, "250000": 250000, "250k": 250000, "1.5M": 1.5e6} {
		if got, err := ParseRate(text); err != nil || got != want {
			t.Errorf("rate %s: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "0", "-1", "1G", "NaN", "2000M"} {
		if got, err := ParseRate(text); err == nil {
			t.Errorf("rate %q is %v", text, got)
		}
	}
	if p, err := ParseProtocol("syn"); err != nil || p != TCPSYN {
		t.Errorf("%v, %v", p, err)
	}
	if _, err := ParseMethod("all"); err == nil {
		t.Error("a receiver of no name")
	}
	if p, err := ParsePort("eth0"); err != nil || p != (Port{Interface: "eth0"}) {
		t.Errorf("%v, %v", p, err)
	}
	for _, text := range []string{"", "@x", "eth0@", "eth0@../../proc", "eth0@there-is-none"} {
		if p, err := ParsePort(text); err == nil {
			t.Errorf("port %q is %v", text, p)
		}
	}
}

// TestPattern: the simple Internet mix comes in its shares, spread out.
func TestPattern(t *testing.T) {
	p := pattern(IMIX())
	var n [3]int
	for _, i := range p {
		n[i]++
	}
	if len(p) != 12 || n != [3]int{7, 4, 1} || p[0] == p[1] {
		t.Errorf("%v", p)
	}
}

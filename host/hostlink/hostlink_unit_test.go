package hostlink

import (
	"net/netip"
	"strings"
	"testing"
)

func testConfig() Config {
	return Config{
		Name: "sluice0", KernelName: "sluice1", Queues: 2, MTU: 1500,
		Addresses: []netip.Prefix{netip.MustParsePrefix("169.254.77.1/30"), netip.MustParsePrefix("fd53::1/126")},
	}
}

func TestBadConfigsNameEverything(t *testing.T) {
	_, err := Ensure(Config{
		Name: "a-name-that-is-too-long", KernelName: "", MTU: 1000,
		Addresses: []netip.Prefix{
			netip.MustParsePrefix("10.0.0.1/32"), netip.MustParsePrefix("10.0.0.1/24"),
			netip.MustParsePrefix("fd00::3/126"),
		},
	})
	if err == nil {
		t.Fatal("accepted")
	}
	for _, part := range []string{
		"a-name-that-is-too-long", `""`, "0 queues", "MTU 1000", "10.0.0.1/32", "10.0.0.1/24", "fd00::3/126",
	} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q is not in %q", part, err)
		}
	}
}

package objects

import (
	"net/netip"
	"testing"

	"sluice.dev/sluice/nat/header"
)

// TestUnicastAgreesWithParse: exactly the addresses that header.Parse calls martian are refused,
// and mapped IPv4 addresses, which parseAddr refuses.
func TestUnicastAgreesWithParse(t *testing.T) {
	edges := []string{
		"::", "::1", "::ffff", "::1.2.3.4", "::ffff:ffff", "::1:0:0", "::fffe:ffff:ffff", "::1:0:0:0", "0:0:0:1::",
		"100::", "2001:db8::1", "fc00::1",
		"fe7f:ffff::1", "fe80::", "fe80::1", "febf:ffff::1", "fec0::1", "feff::1", "ff00::", "ff02::1",
		"ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
		"255.255.255.255", "255.255.255.254",
	}
	for _, s := range edges {
		agreeUnicast(t, netip.MustParseAddr(s))
	}
	for i := range 1 << 16 { // every /16
		agreeUnicast(t, netip.AddrFrom4([4]byte{byte(i >> 8), byte(i), 3, 77}))
	}
}

func agreeUnicast(t *testing.T, a netip.Addr) {
	t.Helper()
	h := header.AddrFrom(a)
	if err := unicast(a); (err == nil) != header.Unicast(&h) {
		t.Errorf("%v: %v here, to workers unicast %v", a, err, header.Unicast(&h))
	}
}

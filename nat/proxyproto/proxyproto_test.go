package proxyproto

import (
	"encoding/hex"
	"net/netip"
	"testing"

	"sluice.dev/sluice/nat/header"
)

// TestPut compares headers with bytes that were written out by hand from the specification.
func TestPut(t *testing.T) {
	const signature = "0d0a0d0a000d0a515549540a"
	for _, tt := range []struct {
		name, src, dst string
		want           string
	}{
		{"IPv4", "198.51.100.7:40000", "203.0.113.10:80",
			signature + "2111000c" + "c6336407" + "cb00710a" + "9c40" + "0050"},
		{"IPv6", "[2001:db8::7]:40000", "[2001:db8::a]:443",
			signature + "21210024" + "20010db8000000000000000000000007" +
				"20010db800000000000000000000000a" + "9c40" + "01bb"},
	} {
		src, dst := netip.MustParseAddrPort(tt.src), netip.MustParseAddrPort(tt.dst)
		client := header.Tuple{Src: header.AddrFrom(src.Addr()), Dst: header.AddrFrom(dst.Addr()), SrcPort: src.Port(),
			DstPort: dst.Port(), Proto: header.ProtoTCP, V6: src.Addr().Is6()}
		b := make([]byte, Bytes(client.V6))
		if n := Put(b, &client); n != len(b) || hex.EncodeToString(b) != tt.want {
			t.Errorf("%s: %d bytes %x, want %s", tt.name, n, b, tt.want)
		}
	}
	if got := hex.EncodeToString([]byte(Local)); got != signature+"20000000" {
		t.Errorf("LOCAL: %s", got)
	}
}

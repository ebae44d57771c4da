package header_test

import (
	"testing"

	"sluice.dev/sluice/nat/header"
)

func TestClaimed(t *testing.T) {
	v4 := append(make([]byte, 12), 0x08, 0x00, 0x45, 0, 0x05, 0xdc)
	v6 := append(make([]byte, 12), 0x86, 0xdd, 0x60, 0, 0, 0, 0x05, 0xb4)
	tagged := append(append(make([]byte, 12), 0x81, 0x00, 0, 7), v4[12:]...)
	twice := append(append(make([]byte, 12), 0x88, 0xa8, 0, 9, 0x81, 0x00, 0, 7), v6[12:]...)
	for _, tc := range []struct {
		name  string
		frame []byte
		want  int
	}{
		{"IPv4", v4, 1514},
		{"IPv6", v6, 1514},
		{"one tag", tagged, 1518},
		{"two tags", twice, 1522},
		{"three tags", append(append(make([]byte, 12), 0x81, 0x00, 0, 1), twice[12:]...), 0},
		{"ARP", append(make([]byte, 12), 0x08, 0x06), 0},
	} {
		frame := append(tc.frame, make([]byte, 64)...)
		if got := header.Claimed(frame); got != tc.want {
			t.Errorf("%s: %d, want %d", tc.name, got, tc.want)
		}
		for cut := range header.EthernetBytes + header.IPv4Bytes {
			if got := header.Claimed(frame[:cut:cut]); got != 0 {
				t.Errorf("%s, %d bytes of it: %d, want 0", tc.name, cut, got)
			}
		}
	}
}

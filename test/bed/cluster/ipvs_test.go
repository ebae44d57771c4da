package cluster

import (
	"net/netip"
	"testing"
)

func TestDestinations(t *testing.T) {
	const table = `IP Virtual Server version 1.2.1 (size=4096)
Prot LocalAddress:Port Scheduler Flags
  -> RemoteAddress:Port Forward Weight ActiveConn InActConn
UDP  0A60000A:0001 rr
  -> 0A480064:1F90      Masq    1      0          0
TCP  0A60000A:0001 rr persistent 10800 FFFFFFFF
  -> 0A480065:1F90      Masq    1      0          0
  -> 0A480064:1F90      Masq    0      3          1
TCP  0A60000A:0002 rr
TCP  [fd00:0096:0000:0000:0000:0000:0000:000a]:0050 rr
  -> [fd72:0000:0000:0000:0000:0000:0000:0064]:1F90      Masq    1      0          0
`
	for _, c := range []struct {
		of    string
		want  int
		there bool
	}{
		{"10.96.0.10:1", 2, true}, {"10.96.0.10:2", 0, true}, {"10.96.0.10:3", 0, false},
		{"10.72.0.100:8080", 0, false},
		{"10.96.0.11:1", 0, false}, {"[fd00:96::a]:80", 1, true}, {"[fd00:96::a]:1", 0, false},
	} {
		got, there := destinations(table, netip.MustParseAddrPort(c.of))
		if got != c.want || there != c.there {
			t.Errorf("%s: %d, %t, want %d, %t", c.of, got, there, c.want, c.there)
		}
	}
}

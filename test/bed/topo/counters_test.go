package topo

import (
	"slices"
	"testing"
)

func TestDamaged(t *testing.T) {
	for _, tc := range []struct {
		name string
		c    Counters
		want []string
	}{
		{"nothing", Counters{"TcpInSegs": 5, "TcpInErrs": 0}, nil},
		{"bad checksums", Counters{"TcpInErrs": 2, "TcpInCsumErrors": 2}, []string{"TcpInCsumErrors=2", "TcpInErrs=2"}},
		{"a full receive buffer is no damage", Counters{"UdpInErrors": 5, "UdpRcvbufErrors": 5, "Udp6InErrors": 1,
			"Udp6RcvbufErrors": 1}, nil},
		{"what a full receive buffer does not explain is", Counters{"UdpInErrors": 6, "UdpRcvbufErrors": 5},
			[]string{"UdpInErrors=1"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := tc.c.Damaged(); !slices.Equal(got, tc.want) {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}

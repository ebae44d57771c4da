package nat_test

import (
	"strings"
	"testing"

	"sluice.dev/sluice/nat"
)

// The order of every choice meets every port of the range once.
func TestChoosePortsMeetsEveryPort(t *testing.T) {
	r := random(t)
	for _, count := range []uint16{1, 2, 3, 16, 257, 514, 1031, 5000, 16411, 20483, 32768, 32771, 64512, 65535} {
		for range 20 {
			start, stride := nat.ChoosePorts(r.Uint64(), 1024, count)
			seen := make([]bool, count)
			at := uint32(start)
			for range count {
				if at >= uint32(count) {
					t.Fatalf("count %d: %d from start %d, stride %d", count, at, start, stride)
				}
				if seen[at] {
					t.Fatalf("count %d: start %d, stride %d meets %d twice", count, start, stride, at)
				}
				seen[at] = true
				at = (at + uint32(stride)) % uint32(count)
			}
		}
	}
}

// Starts are spread evenly: a hundred buckets of a hundred thousand starts, 1,000 each, of which
// 31.5 is a standard deviation. One of the buckets is off by a quarter, which is 7.9 of them, in
// less than one of 10^12 runs.
func TestChoosePortsStartsAnywhere(t *testing.T) {
	r := random(t)
	const count, buckets, draws = 50_000, 100, 100_000
	var seen [buckets]int
	for range draws {
		start, _ := nat.ChoosePorts(r.Uint64(), 1024, count)
		seen[int(start)*buckets/count]++
	}
	for i, n := range seen {
		if n < draws/buckets*3/4 || n > draws/buckets*5/4 {
			t.Errorf("bucket %d has %d starts of %d", i, n, draws)
		}
	}
}

func TestValidPortRange(t *testing.T) {
	nodePorts, ephemeral := [2]uint16{30000, 32767}, [2]uint16{32768, 60999}
	for _, c := range []struct {
		name         string
		first, count uint16
		want         []string // in the message; none: valid
	}{
		{"above both", 61000, 4536, nil},
		{"below both", 1024, 28976, nil},
		{"empty", 61000, 0, []string{"empty"}},
		{"privileged", 1023, 10, []string{"privileged", "1024"}},
		{"past the end", 61000, 4537, []string{"65535", "65536"}},
		{"one node port", 29000, 1001, []string{"29000-30000", "NodePort", "30000-32767"}},
		{"one ephemeral port", 60999, 2, []string{"60999-61000", "ephemeral", "ip_local_port_range"}},
		{"both", 32767, 2, []string{"NodePort", "ephemeral"}},
		{"around", 1024, 64512, []string{"NodePort", "ephemeral"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := nat.ValidPortRange(c.first, c.count, nodePorts, ephemeral)
			if (err == nil) != (c.want == nil) {
				t.Fatalf("error %v", err)
			}
			for _, w := range c.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("message %q does not say %q", err, w)
				}
			}
		})
	}
	if err := nat.ValidPortRange(1024, 64512, [2]uint16{}, [2]uint16{}); err != nil {
		t.Errorf("nothing to overlap with: %v", err)
	}
}

package nat_test

import (
	"testing"

	"sluice.dev/sluice/nat"
)

// Every order that ChoosePorts returns contains every port of the range once.
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

// Starts are distributed evenly: a hundred thousand starts in a hundred buckets, 1,000 in each,
// with a standard deviation of 31.5. A bucket is off by a quarter, 7.9 standard deviations, in less
// than one of 10^12 runs.
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

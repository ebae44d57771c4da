//go:build root

package topo

import (
	"fmt"
	"runtime"

	"sluice.dev/sluice/host/nic/ethtool"
)

func goexit() { runtime.Goexit() }

// countByQueue has a veth count by receive queue, which it does only where it
// polls: with an XDP program, or with GRO.
func countByQueue(dev string) error {
	return ethtool.SetFeatures(dev, map[string]bool{"rx-gro": true})
}

// receivedByQueue reads the packets that each receive queue of a veth took, from
// the calling thread's namespace.
func receivedByQueue(dev string) ([]uint64, error) {
	stats, err := ethtool.Statistics(dev)
	if err != nil {
		return nil, err
	}
	var queues []uint64
	for {
		v, ok := stats[fmt.Sprintf("rx_queue_%d_xdp_packets", len(queues))]
		if !ok {
			return queues, nil
		}
		queues = append(queues, v)
	}
}

func featuresOn(dev string) (on []string, err error) {
	features, err := ethtool.Features(dev)
	for f, v := range features {
		if v {
			on = append(on, f)
		}
	}
	return on, err
}

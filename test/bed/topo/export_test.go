//go:build root

package topo

import (
	"runtime"

	"sluice.dev/sluice/host/nic/ethtool"
)

func goexit() { runtime.Goexit() }

func featuresOn(dev string) (on []string, err error) {
	features, err := ethtool.Features(dev)
	for f, v := range features {
		if v {
			on = append(on, f)
		}
	}
	return on, err
}

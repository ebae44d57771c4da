package ethtool

import "fmt"

// Offloads are the features by which a device hands on frames that are not as they would be on a
// wire: with checksums that are not computed yet, as segments of up to 64 KiB, without their VLAN
// tag. Names as in net/ethtool/common.c.
var Offloads = [...]string{
	"tx-checksum-ip-generic", "tx-checksum-sctp",
	"tx-scatter-gather", "tx-scatter-gather-fraglist",
	"tx-generic-segmentation", "tx-tcp-segmentation", "tx-tcp-ecn-segmentation",
	"tx-tcp-mangleid-segmentation", "tx-tcp6-segmentation", "tx-udp-segmentation",
	"rx-gro", "rx-gro-list",
	"tx-vlan-hw-insert", "rx-vlan-hw-parse",
	"tx-vlan-stag-hw-insert", "rx-vlan-stag-hw-parse",
}

// OffloadsOff turns off the offloads that are on.
func OffloadsOff(dev string) error {
	have, err := Features(dev)
	if err != nil {
		return err
	}
	change := make(map[string]bool)
	for _, f := range Offloads {
		if have[f] {
			change[f] = false
		}
	}
	if len(change) == 0 {
		return nil
	}
	if err := SetFeatures(dev, change); err != nil {
		return fmt.Errorf("turn offloads off: %w", err)
	}
	return nil
}

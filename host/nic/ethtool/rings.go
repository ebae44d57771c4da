package ethtool

import "golang.org/x/sys/unix"

// Rings has the sizes of a device's rings, in descriptors (struct ethtool_ringparam): the greatest
// possible and the present ones.
type Rings struct {
	MaxRx, MaxRxMini, MaxRxJumbo, MaxTx uint32
	Rx, RxMini, RxJumbo, Tx             uint32
}

// ReadRings reads the sizes; the error is unix.EOPNOTSUPP where the driver does not report them.
func ReadRings(dev string) (Rings, error) {
	return read[Rings](dev, unix.ETHTOOL_GRINGPARAM, "ring sizes")
}

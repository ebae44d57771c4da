package ethtool

import (
	"encoding/binary"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Rings has the sizes of a device's rings, in descriptors (struct ethtool_ringparam): the greatest
// possible and the present ones.
type Rings struct {
	MaxRx, MaxRxMini, MaxRxJumbo, MaxTx uint32
	Rx, RxMini, RxJumbo, Tx             uint32
}

// ReadRings reads the sizes; the error is unix.EOPNOTSUPP where the driver does not report them.
func ReadRings(dev string) (Rings, error) {
	b := request(unix.ETHTOOL_GRINGPARAM)
	b = append(b, make([]byte, unsafe.Sizeof(Rings{}))...)
	if _, err := call(dev, b); err != nil {
		return Rings{}, fmt.Errorf("%s: read ring sizes: %w", dev, err)
	}
	var r Rings
	_, err := binary.Decode(b[4:], binary.NativeEndian, &r)
	return r, err
}

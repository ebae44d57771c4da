package ports

import (
	"fmt"

	"sluice.dev/sluice/cmd/sluice/internal/devices"
	"sluice.dev/sluice/cmd/sluice/internal/netdev"
	"sluice.dev/sluice/xdpprog"
)

// losesProgram is another function in tests, which have no such driver.
var losesProgram = netdev.LosesProgram

// carrier tells whether a device was down since the program was attached.
type carrier struct {
	up     bool
	losses uint32
}

// carrierOf is only of devices whose driver loses programs, and the zero value for others.
func carrierOf(dev *devices.Device) (c carrier) {
	if losesProgram(dev.Driver) {
		c.up, c.losses, _ = netdev.Carrier(dev.Index) // of a device that has gone the index changes, which is another fault
	}
	return c
}

// lostProgram says that the driver runs the program no more, though it is attached, because the device was down: since
// the program was attached, or when it was. p.mu must be held.
func (p *port) lostProgram(dev *devices.Device) error {
	if p.attach.Mode() != xdpprog.Native {
		return nil
	}
	if now := carrierOf(dev); !now.up || now == p.atAttach {
		return nil
	}
	return fmt.Errorf("it was down, and driver %s then runs no XDP program until one is attached again", dev.Driver)
}

package ports

import (
	"fmt"

	"sluice.dev/sluice/host/nic/devices"
	"sluice.dev/sluice/host/nic/netdev"
	"sluice.dev/sluice/xdpprog"
)

// losesProgram is a variable because no test machine has such a driver.
var losesProgram = netdev.LosesProgram

// carrier has the state of a device's link when the program was attached.
type carrier struct {
	known, up bool
	losses    uint32
}

// carrierOf reads the carrier of a device whose driver loses programs, and returns the zero value
// for other drivers.
func carrierOf(dev *devices.Device) (c carrier) {
	if losesProgram(dev.Driver) {
		var err error
		c.up, c.losses, err = netdev.Carrier(dev.Index)
		c.known = err == nil
	}
	return c
}

// lostProgram returns an error if the driver no longer runs the program although it is attached,
// because the device was down during the attachment or since. p.mu must be held.
func (p *port) lostProgram(dev *devices.Device) error {
	if p.attach.Mode() != xdpprog.Native {
		return nil
	}
	now := carrierOf(dev)
	if !p.atAttach.known {
		p.atAttach = now
	}
	if !now.up || now == p.atAttach {
		return nil
	}
	return fmt.Errorf("it was down, and driver %s then runs no XDP program until one is attached again", dev.Driver)
}

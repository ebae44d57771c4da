// Package pid1 is the first process of a guest of test/vm: it mounts what the guest has for a
// root, loads drivers, names NICs, runs one command, ends every process and then the guest.
package pid1

import (
	"encoding/json"
	"fmt"
	"os"
)

// Names within the initramfs, and names of the host's ports.
const (
	OrderFile  = "/order.json"
	ModuleDir  = "/early" // modules that the root needs, named so that their order is that of their names
	RootTag    = "root"   // 9p: the host's root
	PortOut    = "out"    // virtio ports
	PortErr    = "err"
	PortStatus = "status"
	// ExitPort is where QEMU's isa-debug-exit listens: a byte written there ends the guest without
	// the drivers' shutdown.
	ExitPort = 0xf4
)

// Order is the host's order to a guest.
type Order struct {
	Args []string
	Env  []string
	Dir  string
	// Share is a directory of the host that is writable, under its own name; empty for none.
	Share string
	// Release and Modules are the kernel's, Modules a directory of the host.
	Release, Modules string
	// Load are modules to load before the command runs.
	Load []string
	NICs []NIC
	// Tools are programs of the guest by name, and the command line of each.
	Tools map[string][]string
}

// NIC is a network interface to name.
type NIC struct {
	Name, MAC string
}

// ShareTag is the 9p tag of Order.Share.
const ShareTag = "share"

func readOrder() (o Order, err error) {
	text, err := os.ReadFile(OrderFile)
	if err != nil {
		return o, err
	}
	if err := json.Unmarshal(text, &o); err != nil {
		return o, fmt.Errorf("%s: %w", OrderFile, err)
	}
	return o, nil
}

package ports

import (
	"sync"
	"sync/atomic"
	"time"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/fastpath/xsk"
	"sluice.dev/sluice/fastpath/xsk/napi"
	"sluice.dev/sluice/host/nic/devices"
	"sluice.dev/sluice/xdpprog"
)

// port is one interface: its program and a socket on each queue. The device may be deleted and
// created again; then the port is opened again.
type port struct {
	name   string
	host   bool // the user-space end of the host link
	config config.Interface
	slots  []*slot
	// suspected is a piece of a packet that is not confirmed. Only the watcher uses it.
	suspected suspicion
	// passed is the last reading of the device if packets could pass it, else zero. Links uses it.
	passed reading

	mu       sync.Mutex // guards the fields below, which the status reads
	device   devices.Device
	served   int // number of slots that have a socket: the first ones
	attach   *xdpprog.Port
	atAttach carrier // set if the driver loses programs
	open     bool
	why      string // why it is not open
	unread   error  // error of the watcher's last reading of the device; then device may be out of date
	// genericMTU is the smallest MTU at which native mode is known to fail; 0 in native mode.
	genericMTU int
	whyCopy    string // why copy mode was requested; empty if it was not
	without    bool   // the driver reports that it has no zero-copy
	pieces     string // why packets do not arrive whole in zero-copy; empty if they do
	// piecesSince is when pieces was confirmed.
	piecesSince time.Time
	// destinations are in force. known are MAC addresses that the device has or had, each with the
	// time at which it was lost, or zero.
	destinations destinations
	known        map[xdpprog.MAC]time.Time
	kept         kept         // why it is not opened again, although it should be
	napi         *napi.Device // settings of the open port's device, or nil
	// refused lists the settings that the device rejected.
	refused []string
}

// servable returns the number of slots for which the device has queues. The slots, and the memory
// for their packets, are fixed when the workers are made: a device that gets more queues later is
// served on as many as before.
func (p *port) servable(dev devices.Device) int { return min(len(p.slots), dev.Queues) }

// slot is the position of one socket in a worker's links.
type slot struct {
	worker, position, queue int
	socket                  atomic.Pointer[xsk.Socket] // nil while the port is not open
}

// closed sets and returns why the port is not open.
func (p *port) closed(err error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open, p.why = false, err.Error()
	return err
}

func (p *port) isOpen() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.open
}

func (p *port) index() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.device.Index
}

// reason returns why the port is not open.
func (p *port) reason() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.why
}

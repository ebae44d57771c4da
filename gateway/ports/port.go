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

// port is one interface: the program on it and a socket on each queue. It may be
// missing for a while (a device deleted and created again) and is opened again.
type port struct {
	name   string
	host   bool // the user-space end of the host link
	config config.Interface
	slots  []*slot
	// suspected is a piece of a packet that is not confirmed; the watcher's.
	suspected suspicion
	// passed is the last reading of the device if packets could pass it, else zero. Links uses it.
	passed reading

	mu       sync.Mutex // guards what follows, for the status
	device   devices.Device
	served   int // slots that have a socket: the first ones
	attach   *xdpprog.Port
	atAttach carrier // if the driver loses programs
	open     bool
	why      string // not open
	unread   error  // the watcher's last reading of the device failed, so that device may be out of date
	// genericMTU is the smallest MTU for which native mode is known not to be had; 0 in native
	// mode.
	genericMTU int
	whyCopy    string // why copy mode was requested; empty if it was not
	without    bool   // the driver reports that it has no zero-copy
	pieces     string // why packets do not arrive whole in zero-copy; empty as long as they do
	// piecesSince is when that was confirmed.
	piecesSince time.Time
	// destinations are in force; known are their MAC addresses, with the time when one was found to
	// be one no more, or zero.
	destinations destinations
	known        map[xdpprog.MAC]time.Time
	kept         kept         // as it is, though it should be otherwise
	napi         *napi.Device // its settings, while the port is open; or nil
	// refused lists the settings that the device did not take.
	refused []string
}

// servable is how many of its slots a device has queues for. Slots are fixed when the
// workers are made, and so is the memory for their packets: a device that is given
// more queues later is served on as many as before.
func (p *port) servable(dev devices.Device) int { return min(len(p.slots), dev.Queues) }

// slot is the place of one socket in a worker's links.
type slot struct {
	worker, position, queue int
	socket                  atomic.Pointer[xsk.Socket] // nil while the port is not open
}

// closed notes why the port is not open and returns that.
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

// reason is why the port is not open.
func (p *port) reason() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.why
}

package daemon

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"sluice.dev/sluice/cmd/sluice/internal/devices"
	"sluice.dev/sluice/cmd/sluice/internal/netdev"
	"sluice.dev/sluice/control/config"
	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/fastpath/xsk"
	"sluice.dev/sluice/fastpath/xsk/napi"
	"sluice.dev/sluice/xdpprog"
)

// program is the kernel program as ports need it.
type program interface {
	// Attach puts the program for interfaces on a device.
	Attach(ifindex int, name string, mode xdpprog.AttachMode) (*xdpprog.Port, error)
	// AttachHostLink puts the program for the host link on its user-space end.
	AttachHostLink(ifindex int, name string) (*xdpprog.Port, error)
	// AttachEgress catches replies of local endpoints on their way out of a device. It returns xdpprog.ErrAttached
	// if it did already.
	AttachEgress(ifindex int, name string) error
}

// port is one interface: the program on it and a socket on each queue. It may be
// missing for a while (a device deleted and created again) and is opened again.
type port struct {
	name   string
	host   bool // the user-space end of the host link
	config config.Interface
	slots  []*slot

	mu       sync.Mutex // guards what follows, for the status
	device   devices.Device
	served   int // slots that have a socket: the first ones
	attach   *xdpprog.Port
	atAttach carrier // if the driver loses programs
	open     bool
	why      string // not open
	// genericMTU is the smallest MTU for which native mode is known not to be had; 0 in native mode.
	genericMTU int
	whyCopy    string       // why copy mode was requested; empty if it was not
	without    bool         // the driver says that it has no zero-copy
	pieces     string       // why packets do not arrive whole in zero-copy; empty as long as they do
	kept       kept         // as it is, though it should be otherwise
	napi       *napi.Device // its settings, while the port is open; or nil
	// refused is what the device did not take of its settings.
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
	suspected               time.Time                  // since when there is a piece; the watcher's
}

// openPort binds the port's sockets and gives them packets. If anything fails, what
// was done is undone.
func (s *portSet) openPort(ctx context.Context, p *port) error {
	if err := s.bindPort(ctx, p); err != nil {
		return err
	}
	return s.attachPort(ctx, p)
}

// bindPort binds a socket on every queue and gives it to its worker. No packet
// comes to it yet.
func (s *portSet) bindPort(ctx context.Context, p *port) error {
	dev, err := devices.Read(p.name)
	if err == nil {
		_, err = devices.Check(dev, p.config, s.frames)
	}
	n := p.servable(dev)
	if err == nil && n < s.workers.Len() {
		err = fmt.Errorf("%s has %d queues now, and each of %d workers needs one of its own on every interface: `ethtool -L %s combined %d`, or restart the daemon",
			p.name, n, s.workers.Len(), p.name, s.workers.Len())
	}
	if err != nil {
		return p.closed(errors.Join(err, s.closePort(ctx, p)))
	}
	if dev.Index != p.index() {
		if err := p.detach(); err != nil {
			s.log.Warn("program of a device that was there before", "interface", p.name, "error", err)
		}
	}
	p.mu.Lock()
	if dev.Index != p.device.Index || dev.Driver != p.device.Driver {
		p.pieces = "" // another device
	}
	p.device, p.served = dev, n
	p.without = !netdev.MayZeroCopy(netdev.XDPFeatures(dev.Index))
	_, p.whyCopy = p.modeOf(dev, s.frames.Size)
	p.kept = kept{}
	p.mu.Unlock()
	for _, sl := range p.slots[:n] {
		if err := s.openSlot(ctx, p, sl); err != nil {
			return p.closed(errors.Join(err, s.closePort(ctx, p)))
		}
	}
	return nil
}

// attachPort puts the program on the device, if it is not there, and the sockets into its map.
func (s *portSet) attachPort(ctx context.Context, p *port) error {
	if err := p.attachTo(s.program); err != nil {
		return p.closed(errors.Join(err, s.closePort(ctx, p)))
	}
	p.mu.Lock()
	p.open, p.why = true, ""
	attach, served := p.attach, p.served
	p.mu.Unlock()
	if err := attach.SetQueues(served); err != nil {
		return p.closed(errors.Join(err, s.closePort(ctx, p)))
	}
	for _, sl := range p.slots[:served] {
		if err := attach.SetSocket(sl.queue, sl.socket.Load().FD()); err != nil {
			return p.closed(errors.Join(err, s.closePort(ctx, p)))
		}
	}
	s.tunePort(p)
	return nil
}

// attachTo puts the program on the device. One that stayed there while sockets were replaced remains: some drivers take
// the link down when a program goes, and until the next one is there the kernel would answer in the place of services.
func (p *port) attachTo(k program) error {
	p.mu.Lock()
	stayed := p.attach != nil
	p.mu.Unlock()
	if stayed {
		return nil
	}
	attach, err := p.put(k)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.attach = attach
	if p.genericMTU = 0; attach.Mode() == xdpprog.Generic {
		p.genericMTU = p.device.MTU
	}
	p.atAttach = carrierOf(&p.device)
	return nil
}

// put attaches the program that the port needs.
func (p *port) put(k program) (*xdpprog.Port, error) {
	ifindex := p.index()
	if p.host {
		return k.AttachHostLink(ifindex, p.name)
	}
	return k.Attach(ifindex, p.name, p.attachMode())
}

// attachEgress catches replies of local endpoints on the way out of every NIC.
func (s *portSet) attachEgress() error {
	var errs []error
	for _, p := range s.ports {
		if !p.host && p.isOpen() {
			if err := s.program.AttachEgress(p.index(), p.name); !errors.Is(err, xdpprog.ErrAttached) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// detach takes the program off the device, if it is there.
func (p *port) detach() error {
	p.mu.Lock()
	attach := p.attach
	p.attach = nil
	p.mu.Unlock()
	if attach == nil {
		return nil
	}
	return attach.Close()
}

// tunePort gives the device the settings of the configuration. It forwards without them, too.
func (s *portSet) tunePort(p *port) {
	n := p.config.NAPI
	threaded := map[config.Threaded]napi.Threaded{config.ThreadedOn: napi.On, config.ThreadedOff: napi.Off}[n.Threaded]
	dev, err := napi.Apply(p.name, p.index(), napi.Settings{
		DeferHardIRQs: n.DeferHardIRQs, FlushTimeout: n.GROFlushTimeout.D(), Threaded: threaded,
	}, s.original)
	refused := dev.Refused()
	if err != nil {
		refused = append(refused, err.Error())
	}
	for _, why := range refused {
		s.log.Warn("interface is not as configured", "interface", p.name, "why", why)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.napi, p.refused = dev, refused
}

// closed notes why the port is not open and returns that.
func (p *port) closed(err error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open, p.why = false, err.Error()
	return err
}

func (s *portSet) openSlot(ctx context.Context, p *port, sl *slot) error {
	c := s.config
	mode, why := p.socketMode(s.frames.Size)
	socket, err := xsk.Open(ctx, xsk.Config{
		Interface: p.name, Queue: sl.queue, UMEM: s.workers.UMEM(sl.worker), Mode: mode, CopyReason: why, Long: p.long(s.frames.Size),
		RxSize: uint32(c.Rings.Rx), TxSize: uint32(c.Rings.Tx),
		FillSize: uint32(c.Rings.Fill), CompletionSize: uint32(c.Rings.Completion),
		TxBudget: c.Sockets.TxBudget, BusyPoll: c.Sockets.BusyPoll.D(), BusyPollBudget: c.Sockets.BusyPollBudget,
		RebindFor: 3 * time.Second,
	})
	if err != nil {
		return err
	}
	sl.socket.Store(socket)
	return s.workers.Do(ctx, sl.worker, func(w *fastpath.Worker) {
		w.SetLink(sl.position, socket)
		socket.Refill(w.Pool())
	})
}

// closePort takes the sockets away from the workers and closes them, and takes the program off the device.
func (s *portSet) closePort(ctx context.Context, p *port) error {
	err := s.closeSockets(ctx, p)
	return errors.Join(err, p.detach())
}

// closeSockets is closePort with the program left where it is.
func (s *portSet) closeSockets(ctx context.Context, p *port) error {
	p.mu.Lock()
	device := p.napi
	p.open, p.napi = false, nil
	p.mu.Unlock()
	errs := []error{device.Restore()} // while the program is there: some drivers have no NAPI without
	for _, sl := range p.slots {
		socket := sl.socket.Swap(nil)
		if socket == nil {
			continue
		}
		var closed error
		err := s.workers.Do(ctx, sl.worker, func(w *fastpath.Worker) {
			w.SetLink(sl.position, fastpath.NoLink{})
			p.mu.Lock() // whoever asks the socket for its statistics holds it
			defer p.mu.Unlock()
			closed = socket.Close(w.Pool())
		})
		if err != nil {
			// The socket is still the worker's. Once that has ended, close takes it.
			sl.socket.Store(socket)
		}
		if kept := new(xsk.KeptError); !errors.As(closed, &kept) {
			err = errors.Join(err, closed)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// watchEvery is how often ports are looked at. A deleted device is also noticed
// by its sockets.
const watchEvery = 500 * time.Millisecond

// watch reopens ports whose device was deleted and created again, and puts back a
// program that somebody else took away, until ctx is done.
//
// first is called before the ports are looked at.
func (s *portSet) watch(ctx context.Context, first func(context.Context)) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		first(ctx)
		for _, p := range s.ports {
			if ctx.Err() != nil || !s.check(ctx, p) {
				continue
			}
			if err := s.attachEgress(); err != nil {
				s.log.Warn("egress program", "error", err)
			}
		}
	}
}

// check reports whether the port had to be opened again and was.
func (s *portSet) check(ctx context.Context, p *port) (reopened bool) {
	s.notePieces(p)
	fault, closing := p.fault(), s.closePort
	if fault == nil {
		var stays bool
		if fault, stays = s.outdated(p); stays {
			closing = s.closeSockets
		}
	}
	if fault == nil {
		return false
	}
	if p.isOpen() {
		s.log.Warn("interface lost", "interface", p.name, "why", fault)
		if err := closing(ctx, p); err != nil {
			s.log.Warn("interface closed with errors", "interface", p.name, "error", err)
		}
	}
	if _, err := devices.Read(p.name); err != nil {
		p.closed(errors.Join(err, p.detach()))
		return false
	}
	before := p.reason()
	if err := s.openPort(ctx, p); err != nil {
		if err.Error() != before {
			s.log.Warn("interface cannot be opened, trying again", "interface", p.name, "error", err)
		}
		return false
	}
	s.log.Info("interface is back", "interface", p.name)
	return true
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

// fault says what is wrong with a port, or nil. It looks at the device as it is now.
func (p *port) fault() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.open {
		return errors.New("not open")
	}
	dev, err := devices.Read(p.name)
	if err != nil {
		return err
	}
	if dev.Index != p.device.Index {
		return fmt.Errorf("device was created again: index %d is now %d", p.device.Index, dev.Index)
	}
	p.device = dev
	if n := p.servable(dev); n != p.served {
		return fmt.Errorf("%d queues are served, and it has %d now", p.served, dev.Queues)
	}
	for _, sl := range p.slots {
		if socket := sl.socket.Load(); socket != nil && socket.Gone() {
			return errors.New("device was deleted")
		}
	}
	if err := p.lostProgram(&dev); err != nil {
		return err
	}
	return p.attach.Check()
}

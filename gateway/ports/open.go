package ports

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/fastpath/xsk"
	"sluice.dev/sluice/fastpath/xsk/napi"
	"sluice.dev/sluice/host/nic/devices"
	"sluice.dev/sluice/host/nic/netdev"
	"sluice.dev/sluice/xdpprog"
)

// openPort binds the port's sockets and attaches the program. If a step fails, openPort undoes the
// others.
func (s *Set) openPort(ctx context.Context, p *port) error {
	if err := s.bindPort(ctx, p); err != nil {
		return err
	}
	return s.attachPort(ctx, p)
}

// bindPort binds a socket on every queue and gives it to its worker. No packet reaches the sockets
// yet.
func (s *Set) bindPort(ctx context.Context, p *port) error {
	dev, err := devices.Read(p.name)
	if err == nil {
		_, err = devices.Check(dev, p.config, s.frames)
	}
	n := p.servable(dev)
	if err == nil && n < s.workers.Len() {
		err = fmt.Errorf("%s now has %d queues, and each of the %d workers needs its own queue on every interface: "+
			"`ethtool -L %s combined %d`, or restart the daemon",
			p.name, n, s.workers.Len(), p.name, s.workers.Len())
	}
	if err != nil {
		return p.closed(errors.Join(err, s.closePort(ctx, p)))
	}
	if dev.Index != p.index() {
		if err := p.detach(); err != nil {
			s.log.Warn("the program of the former device cannot be removed", "interface", p.name, "error", err)
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

func (s *Set) openSlot(ctx context.Context, p *port, sl *slot) error {
	c := s.config
	mode, why := p.socketMode(s.frames.Size)
	ring := uint32(c.Tuning.RingSize)
	socket, err := xsk.Open(ctx, xsk.Config{
		Interface: p.name, Queue: sl.queue, UMEM: s.workers.UMEM(sl.worker), Mode: mode, CopyReason: why,
		Long:   p.long(s.frames.Size),
		RxSize: ring, TxSize: ring, FillSize: ring, CompletionSize: ring,
		BusyPoll: c.Sockets.BusyPoll.D(), BusyPollBudget: c.Sockets.BusyPollBudget,
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

// attachPort attaches the program to the device, unless it is attached, and adds the sockets to its
// map.
func (s *Set) attachPort(ctx context.Context, p *port) error {
	if err := p.attachTo(s.program, s.refusals); err != nil {
		return p.closed(errors.Join(err, s.closePort(ctx, p)))
	}
	if err := p.noteMode(s.refusals); err != nil {
		s.log.Warn("the MTU at which native mode failed is not stored for the next process", "interface", p.name,
			"error", err)
	}
	if p.sendsNothing() { // native mode was expected, but failed
		err := error(nil)
		if p.config.ZeroCopy == config.ZeroCopyRequire {
			err = fmt.Errorf("interface %s: zeroCopy is require, but %s, and %s: set zeroCopy to auto",
				p.name, noGenericZeroCopy, p.attachReason())
		} else {
			err = errors.Join(s.closeSockets(ctx, p), s.bindPort(ctx, p)) // the program stays
		}
		if err != nil {
			return p.closed(errors.Join(err, s.closePort(ctx, p)))
		}
	}
	p.mu.Lock()
	p.open, p.why = true, ""
	attach, served := p.attach, p.served
	p.mu.Unlock()
	if err := attach.SetQueues(served); err != nil {
		return p.closed(errors.Join(err, s.closePort(ctx, p)))
	}
	s.followDestinations(p, time.Now()) // before the first frame arrives
	for _, sl := range p.slots[:served] {
		if err := attach.SetSocket(sl.queue, sl.socket.Load().FD()); err != nil {
			return p.closed(errors.Join(err, s.closePort(ctx, p)))
		}
	}
	s.tunePort(p)
	return nil
}

// attachTo attaches the program to the device. A program that stayed while sockets were replaced
// remains: some drivers take the link down when a program is detached, and until the next one is
// attached the kernel would answer packets to Services.
func (p *port) attachTo(k Program, r *refusals) error {
	p.mu.Lock()
	stayed := p.attach != nil
	p.mu.Unlock()
	if stayed {
		return nil
	}
	attach, err := p.put(k, r)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.attach = attach
	p.destinations, p.known = destinations{}, nil // the initial state of a program
	if p.genericMTU = 0; attach.Mode() == xdpprog.Generic {
		p.genericMTU = p.device.MTU
		if known := p.refusedAt(r, p.device.Index); known != 0 {
			p.genericMTU = min(p.genericMTU, known)
		}
	}
	p.atAttach = carrierOf(&p.device)
	return nil
}

// noteMode stores the MTU at which mode auto chose generic mode, or that it has native mode.
func (p *port) noteMode(r *refusals) error {
	p.mu.Lock()
	index, mtu := p.device.Index, p.genericMTU
	p.mu.Unlock()
	switch {
	case p.host || p.config.Mode != config.ModeAuto:
		return nil
	case mtu == 0:
		return r.Forget(p.name)
	case mtu == p.refusedAt(r, index):
		return nil
	}
	return r.Set(p.name, index, refusal{mtu})
}

// put attaches the program in the mode that the port needs.
func (p *port) put(k Program, r *refusals) (*xdpprog.Port, error) {
	ifindex := p.index()
	if p.host {
		return k.AttachHostLink(ifindex, p.name)
	}
	return k.Attach(ifindex, p.name, p.attachMode(r))
}

// detach detaches the program from the device, if it is attached.
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

// tunePort applies the configured settings to the device. The port forwards even if they fail.
func (s *Set) tunePort(p *port) {
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
		s.log.Warn("interface does not have a configured setting", "interface", p.name, "why", why)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.napi, p.refused = dev, refused
}

// closePort takes the sockets from the workers, closes them, and detaches the program.
func (s *Set) closePort(ctx context.Context, p *port) error {
	err := s.closeSockets(ctx, p)
	return errors.Join(err, p.detach())
}

// closeSockets is closePort without detaching the program.
func (s *Set) closeSockets(ctx context.Context, p *port) error {
	p.mu.Lock()
	device := p.napi
	p.open, p.napi = false, nil
	p.mu.Unlock()
	errs := []error{device.Restore()} // before the program is detached: some drivers have NAPI only with it
	for _, sl := range p.slots {
		socket := sl.socket.Swap(nil)
		if socket == nil {
			continue
		}
		var closed error
		err := s.workers.Do(ctx, sl.worker, func(w *fastpath.Worker) {
			w.SetLink(sl.position, fastpath.NoLink{})
			p.mu.Lock() // queueStats reads the socket with it held
			defer p.mu.Unlock()
			closed = socket.Close(w.Pool())
		})
		if err != nil {
			// The worker still has the socket. After the worker has ended, close closes it.
			sl.socket.Store(socket)
		}
		if kept := new(xsk.KeptError); !errors.As(closed, &kept) {
			err = errors.Join(err, closed)
		}
		errs = append(errs, err)
	}
	p.suspected = suspicion{} // the workers forget it with their links
	return errors.Join(errs...)
}

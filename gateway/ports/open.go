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

// openPort binds the port's sockets and gives them packets. If anything fails, what
// was done is undone.
func (s *Set) openPort(ctx context.Context, p *port) error {
	if err := s.bindPort(ctx, p); err != nil {
		return err
	}
	return s.attachPort(ctx, p)
}

// bindPort binds a socket on every queue and gives it to its worker. No packet
// comes to it yet.
func (s *Set) bindPort(ctx context.Context, p *port) error {
	dev, err := devices.Read(p.name)
	if err == nil {
		_, err = devices.Check(dev, p.config, s.frames)
	}
	n := p.servable(dev)
	if err == nil && n < s.workers.Len() {
		err = fmt.Errorf("%s has %d queues now, and each of %d workers needs one of its own on every interface: "+
			"`ethtool -L %s combined %d`, or restart the daemon",
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

func (s *Set) openSlot(ctx context.Context, p *port, sl *slot) error {
	c := s.config
	mode, why := p.socketMode(s.frames.Size)
	ring := uint32(c.Tuning.RingSize)
	socket, err := xsk.Open(ctx, xsk.Config{
		Interface: p.name, Queue: sl.queue, UMEM: s.workers.UMEM(sl.worker), Mode: mode, CopyReason: why,
		Long:   p.long(s.frames.Size),
		RxSize: ring, TxSize: ring, FillSize: ring, CompletionSize: ring,
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

// attachPort puts the program on the device, if it is not there, and the sockets into its map.
func (s *Set) attachPort(ctx context.Context, p *port) error {
	if err := p.attachTo(s.program, s.refusals); err != nil {
		return p.closed(errors.Join(err, s.closePort(ctx, p)))
	}
	if err := p.noteMode(s.refusals); err != nil {
		s.log.Warn("the next process will not know at which MTU native mode was refused", "interface", p.name, "error",
			err)
	}
	if p.sendsNothing() { // native mode was expected, and refused
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
	s.followDestinations(p, time.Now()) // before the first frame is taken
	for _, sl := range p.slots[:served] {
		if err := attach.SetSocket(sl.queue, sl.socket.Load().FD()); err != nil {
			return p.closed(errors.Join(err, s.closePort(ctx, p)))
		}
	}
	s.tunePort(p)
	return nil
}

// attachTo puts the program on the device. One that stayed there while sockets were replaced
// remains: some drivers take the link down when a program goes, and until the next one is there the
// kernel would answer in the place of services.
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
	p.destinations, p.known = destinations{}, nil // as a program takes frames at first
	if p.genericMTU = 0; attach.Mode() == xdpprog.Generic {
		p.genericMTU = p.device.MTU
		if known := p.refusedAt(r, p.device.Index); known != 0 {
			p.genericMTU = min(p.genericMTU, known)
		}
	}
	p.atAttach = carrierOf(&p.device)
	return nil
}

// noteMode records at which MTU mode auto took generic mode, or that it took native mode.
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

// put attaches the program that the port needs.
func (p *port) put(k Program, r *refusals) (*xdpprog.Port, error) {
	ifindex := p.index()
	if p.host {
		return k.AttachHostLink(ifindex, p.name)
	}
	return k.Attach(ifindex, p.name, p.attachMode(r))
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
		s.log.Warn("interface is not as configured", "interface", p.name, "why", why)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.napi, p.refused = dev, refused
}

// closePort takes the sockets away from the workers and closes them, and takes the program off the
// device.
func (s *Set) closePort(ctx context.Context, p *port) error {
	err := s.closeSockets(ctx, p)
	return errors.Join(err, p.detach())
}

// closeSockets is closePort, but the program stays on the device.
func (s *Set) closeSockets(ctx context.Context, p *port) error {
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
			p.mu.Lock() // queueStats, which reads the socket, holds it
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
	p.suspected = suspicion{} // the workers forget it with their links
	return errors.Join(errs...)
}

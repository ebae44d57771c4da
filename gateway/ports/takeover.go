package ports

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/fastpath/xsk"
	"sluice.dev/sluice/host/nic/devices"
	"sluice.dev/sluice/host/nic/netdev"
	"sluice.dev/sluice/xdpprog"
)

// Pause keeps Watch from opening and closing ports until Resume. It waits for the end of a look. It
// returns an error if ctx is done before, or if the ports are in a state that a next process cannot
// take over.
func (s *Set) Pause(ctx context.Context) error {
	if !s.enter(ctx) {
		return errors.New("the ports are being opened or checked")
	}
	for _, p := range s.ports {
		if !p.isOpen() {
			s.Resume()
			return fmt.Errorf("interface %s is not open: %s", p.name, p.reason())
		}
	}
	return nil
}

// Resume ends Pause.
func (s *Set) Resume() { <-s.looking }

// enter waits for the end of a look or a pause. It returns false if ctx is done before.
func (s *Set) enter(ctx context.Context) bool {
	select {
	case s.looking <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// Adopt gives the ports the sockets of another process (xsk.Take), by worker, and makes them links
// of workers that do not run yet. Every slot must get a socket and every socket a slot; otherwise
// the devices differ from those of that process.
func (s *Set) Adopt(ctx context.Context, sockets [][]*xsk.Socket) error {
	type place struct{ worker, ifindex, queue int }
	given := map[place]*xsk.Socket{}
	for worker, list := range sockets {
		for _, socket := range list {
			_, ifindex := socket.Interface()
			given[place{worker, ifindex, socket.Queue()}] = socket
		}
	}
	for _, p := range s.ports {
		dev, err := devices.Read(p.name)
		if err == nil {
			_, err = devices.Check(dev, p.config, s.frames)
		}
		if err != nil {
			return err
		}
		p.mu.Lock()
		p.device, p.served = dev, p.servable(dev)
		p.without = !netdev.MayZeroCopy(netdev.XDPFeatures(dev.Index))
		_, p.whyCopy = p.modeOf(dev, s.frames.Size)
		p.mu.Unlock()
		for _, sl := range p.slots[:p.servable(dev)] {
			at := place{sl.worker, dev.Index, sl.queue}
			socket := given[at]
			if socket == nil {
				return fmt.Errorf("interface %s: the other process has no socket of worker %d on queue %d", p.name,
					sl.worker, sl.queue)
			}
			delete(given, at)
			sl.socket.Store(socket)
			err := s.workers.Do(ctx, sl.worker, func(w *fastpath.Worker) { w.SetLink(sl.position, socket) })
			if err != nil {
				return err
			}
		}
	}
	for at, socket := range given {
		name, _ := socket.Interface()
		return fmt.Errorf("interface %s: the other process has a socket of worker %d on queue %d, which has no place "+
			"here", name, at.worker, at.queue)
	}
	return nil
}

// AttachOver is Attach for sockets of Adopt, to which a predecessor's programs send packets. A port
// whose interface is gone is left to Watch, which opens it again.
func (s *Set) AttachOver(ctx context.Context) {
	for _, p := range s.ports {
		if err := s.attachOver(p); err != nil {
			s.log.Warn("the previous process's program stays until this one's can be attached", "interface", p.name,
				"error", err)
			if err := s.attachPort(ctx, p); err != nil {
				s.log.Error("interface is closed until it can be opened again", "interface", p.name, "error",
					err)
				continue
			}
		}
		s.logOpen(p)
	}
}

func (s *Set) attachOver(p *port) error {
	p.mu.Lock()
	served := p.served
	p.destinations, p.known = destinations{}, nil // the initial state of a program
	p.mu.Unlock()
	fill := func(attach *xdpprog.Port) error {
		p.mu.Lock()
		p.attach = attach // for followDestinations
		p.mu.Unlock()
		if err := attach.SetQueues(served); err != nil {
			return err
		}
		s.followDestinations(p, time.Now())
		for _, sl := range p.slots[:served] {
			if err := attach.SetSocket(sl.queue, sl.socket.Load().FD()); err != nil {
				return err
			}
		}
		return nil
	}
	attach, err := s.program.AttachOver(p.index(), p.name, p.host, fill)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.attach = attach; err != nil {
		p.attach = nil
		return err
	}
	if p.genericMTU = 0; attach.Mode() == xdpprog.Generic {
		p.genericMTU = p.device.MTU
	}
	p.atAttach = carrierOf(&p.device)
	p.open, p.why = true, ""
	return nil
}

// Tune applies the configured settings to the devices, like Attach does.
func (s *Set) Tune() {
	for _, p := range s.ports {
		s.tunePort(p)
	}
}

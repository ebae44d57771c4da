package ports

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"sluice.dev/sluice/host/nic/devices"
	"sluice.dev/sluice/internal/wake"
	"sluice.dev/sluice/xdpprog"
)

const (
	// watchEvery is the interval of the checks for reasons why packets may not arrive. The sockets
	// of a deleted device are one.
	watchEvery = 500 * time.Millisecond
	// readEvery is the interval of reading all other state that has no notifications, such as the
	// number of queues. A reading is several system calls and netlink dumps: at watchEvery, on a
	// worker's CPU, it would delay one packet in 500.
	readEvery = 2 * time.Second
	// stirFor is for how long everything is read at watchEvery after a change: more changes follow,
	// and old MAC addresses must be removed (keepMAC).
	stirFor = 5 * time.Second
)

// breath is the pause between two parts of a look. A thread that makes system calls on a worker's
// CPU keeps the CPU until it sleeps: without pauses, packets would wait a millisecond for a look.
const breath = 5 * time.Millisecond

// socketsAtOnce is the number of sockets that are checked, with a system call each, without a
// pause: a pause costs an idle gateway more.
const socketsAtOnce = 16

// Watch checks the ports periodically until ctx is done. It opens ports again whose device was
// changed, or deleted and created again, or whose program was detached. It calls looked after each
// look, and at once when the kernel notifies it of a link change; before it reads everything it
// calls the functions of first, one after another.
func (s *Set) Watch(ctx context.Context, looked func(), first ...func(context.Context)) {
	s.watch(ctx, s.watchLinks(ctx), looked, first...)
}

// watch is Watch with a channel of the kernel's notifications about links.
func (s *Set) watch(ctx context.Context, links <-chan struct{}, looked func(), first ...func(context.Context)) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	listen, rest := links, (<-chan time.Time)(nil)
	var pace readings
	defer s.beat.Rest()
	for {
		s.beat.Beat()
		select {
		case <-ctx.Done():
			return
		case <-listen:
			if !s.begin(ctx) {
				return
			}
			took := s.linksChanged()
			s.Resume()
			looked()
			pace.stir(time.Now())
			listen, rest = nil, time.After(restPerReading*took)
			continue
		case <-rest:
			listen, rest = links, nil
			continue
		case <-tick.C:
		}
		if !s.begin(ctx) {
			return
		}
		now := time.Now()
		if s.anyUnhealthy() {
			pace.stir(now)
		}
		s.look(ctx, pace.due(now), first)
		s.Resume()
		looked()
	}
}

// begin is enter for Watch. The heartbeat rests while a hand-over has paused the ports.
func (s *Set) begin(ctx context.Context) bool {
	s.beat.Rest()
	defer s.beat.Beat()
	return s.enter(ctx)
}

// readings schedules the readings of everything about the ports.
type readings struct{ last, stirred time.Time }

// stir makes the readings frequent for a while (stirFor).
func (r *readings) stir(now time.Time) { r.stirred = now }

// due reports whether a look must read everything, and counts that as done.
func (r *readings) due(now time.Time) bool {
	if now.Sub(r.stirred) >= stirFor && now.Sub(r.last) < readEvery-watchEvery/2 {
		return false
	}
	r.last = now
	return true
}

// anyUnhealthy reports whether the state of a port is wrong or unknown.
func (s *Set) anyUnhealthy() bool {
	return slices.ContainsFunc(s.ports, func(p *port) bool { return !p.isOpen() || !p.suspected.since.IsZero() })
}

// look checks all ports; with all set it reads everything about them again.
func (s *Set) look(ctx context.Context, all bool, first []func(context.Context)) {
	if all {
		for _, f := range first {
			f(ctx)
			wake.After(ctx, breath)
		}
		s.followAll(time.Now())
		s.linkNews.Add(1)
	}
	sockets := 0 // since the last pause
	for _, p := range s.ports {
		s.beat.Beat() // opening a port may take seconds: its NIC is reset
		if sockets += len(p.slots); all || sockets > socketsAtOnce {
			wake.After(ctx, breath)
			sockets = len(p.slots)
		}
		if ctx.Err() != nil || !all && s.receives(p) || !s.check(ctx, p) {
			continue
		}
		if err := s.AttachEgress(); err != nil {
			s.log.Warn("egress program cannot be attached", "error", err)
		}
	}
}

// receives reports whether a port's packets still reach its sockets. If another tool has removed
// sockets from the map, receives adds them again.
func (s *Set) receives(p *port) bool {
	p.mu.Lock()
	works := p.open && !p.gone() && p.attach.Linked()
	p.mu.Unlock()
	if works {
		s.keepSockets(p)
	}
	return works
}

// check opens the port again if necessary, and reports whether it did.
func (s *Set) check(ctx context.Context, p *port) (reopened bool) {
	s.notePieces(ctx, p, time.Now())
	reason, closing := p.reopenReason(), s.closePort
	if reason == nil {
		var stays bool
		if reason, stays = s.outdated(p); stays {
			closing = s.closeSockets
		}
	}
	if reason == nil {
		s.keepSockets(p)
		return false
	}
	if p.isOpen() {
		s.log.Warn("interface lost", "interface", p.name, "why", reason)
		if err := closing(ctx, p); err != nil {
			s.log.Warn("interface closed with errors", "interface", p.name, "error", err)
		}
	}
	if _, err := devices.Read(p.name); err != nil {
		if devices.Absent(err) {
			err = errors.Join(err, p.detach())
		}
		p.closed(err)
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

// keepSockets adds the sockets of served queues to the map again if another tool has removed them.
func (s *Set) keepSockets(p *port) {
	p.mu.Lock()
	attach, slots := p.attach, p.slots[:p.served]
	p.mu.Unlock()
	for _, sl := range slots {
		socket := sl.socket.Load()
		if socket == nil {
			continue
		}
		lost, err := attach.KeepSocket(sl.queue, socket.FD())
		switch {
		case err != nil:
			s.log.Warn("packets of a queue may not reach its socket", "interface", p.name, "error", err)
		case lost:
			s.log.Warn("another tool had removed a queue's socket from the map; it was added again",
				"interface", p.name, "queue", sl.queue)
		}
	}
}

// reopenReason reads the device and returns why the port must be opened again; nil if it need not,
// or if the reading failed: then p.unread is the error, and the port stays open.
func (p *port) reopenReason() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unread = nil
	if !p.open {
		return errors.New("not open")
	}
	if p.gone() {
		return errors.New("device was deleted")
	}
	dev, err := devices.Read(p.name)
	if devices.Absent(err) {
		return err
	}
	if p.unread = err; err != nil {
		return nil
	}
	if dev.Index != p.device.Index {
		return fmt.Errorf("device was created again: index %d is now %d", p.device.Index, dev.Index)
	}
	p.device = dev
	if n := p.servable(dev); n != p.served {
		return fmt.Errorf("%d queues are served, and it now has %d", p.served, dev.Queues)
	}
	if err := p.lostProgram(&dev); err != nil {
		return err
	}
	if err = p.attach.Check(); xdpprog.Lost(err) {
		return err
	}
	p.unread = err
	return nil
}

// gone reports whether the sockets' device was deleted.
func (p *port) gone() bool {
	return slices.ContainsFunc(p.slots, func(sl *slot) bool {
		socket := sl.socket.Load()
		return socket != nil && socket.Gone()
	})
}

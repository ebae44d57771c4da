package ports

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"sluice.dev/sluice/host/nic/devices"
	"sluice.dev/sluice/xdpprog"
)

const (
	// watchEvery is how often ports are looked at: what keeps packets from arriving. The sockets of
	// a deleted device report that, too.
	watchEvery = 500 * time.Millisecond
	// readEvery is how often all else is read again that the kernel does not tell of, as the number
	// of queues. Every reading is system calls and netlink dumps: where they run on a worker's CPU,
	// at watchEvery, it takes that from one packet in 500.
	readEvery = 2 * time.Second
	// stirFor is how long all is read at watchEvery after something has changed: more follows, and
	// old MAC addresses are to be forgotten (keepMAC).
	stirFor = 5 * time.Second
)

// breath is the pause between two parts of a look. A thread that does system calls on a worker's
// CPU keeps it until it sleeps: done at once, a look is a millisecond in which packets wait.
const breath = 5 * time.Millisecond

// socketsAtOnce is how many sockets are looked at, with a system call each, without a breath: a
// pause costs an idle gateway more than they do.
const socketsAtOnce = 16

// Watch looks at the ports again and again until ctx is done. It opens those again whose device was
// changed, or deleted and created again, and those whose program was detached. It calls looked
// after each look, and at once when the kernel tells of a change of a link, and first before it
// reads everything, all one after another.
func (s *Set) Watch(ctx context.Context, looked func(), first ...func(context.Context)) {
	s.watch(ctx, s.watchLinks(ctx), looked, first...)
}

// watch is Watch with the kernel's notifications about links.
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
		if s.restless() {
			pace.stir(now)
		}
		s.look(ctx, pace.due(now), first)
		s.Resume()
		looked()
	}
}

// begin is enter for Watch, whose heartbeat rests while a hand-over has paused the ports.
func (s *Set) begin(ctx context.Context) bool {
	s.beat.Rest()
	defer s.beat.Beat()
	return s.enter(ctx)
}

// readings is when everything about the ports is to be read again.
type readings struct{ last, stirred time.Time }

// stir makes the readings of some time frequent.
func (r *readings) stir(now time.Time) { r.stirred = now }

// due reports whether everything is to be read at a look, which then is.
func (r *readings) due(now time.Time) bool {
	if now.Sub(r.stirred) >= stirFor && now.Sub(r.last) < readEvery-watchEvery/2 {
		return false
	}
	r.last = now
	return true
}

// restless reports whether a port is not as it should be, or not known to be.
func (s *Set) restless() bool {
	return slices.ContainsFunc(s.ports, func(p *port) bool { return !p.isOpen() || !p.suspected.since.IsZero() })
}

// look looks at all ports; with all it reads everything about them again.
func (s *Set) look(ctx context.Context, all bool, first []func(context.Context)) {
	if all {
		for _, f := range first {
			f(ctx)
			breathe(ctx)
		}
		s.followAll(time.Now())
		s.linkNews.Add(1)
	}
	sockets := 0 // since the last breath
	for _, p := range s.ports {
		s.beat.Beat() // opening one again may take seconds: its NIC is reset
		if sockets += len(p.slots); all || sockets > socketsAtOnce {
			breathe(ctx)
			sockets = len(p.slots)
		}
		if ctx.Err() != nil || !all && s.receives(p) || !s.check(ctx, p) {
			continue
		}
		if err := s.AttachEgress(); err != nil {
			s.log.Warn("egress program", "error", err)
		}
	}
}

// receives reports whether a port's packets still come to its sockets; those of queues that another
// tool has taken away do again.
func (s *Set) receives(p *port) bool {
	p.mu.Lock()
	works := p.open && !p.gone() && p.attach.Linked()
	p.mu.Unlock()
	if works {
		s.keepSockets(p)
	}
	return works
}

// breathe sleeps for a breath.
func breathe(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(breath):
	}
}

// check reports whether the port had to be opened again and was.
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

// keepSockets gives the packets of served queues back to their sockets where another tool has taken
// them away.
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
			s.log.Warn("a queue's packets may not reach its socket", "interface", p.name, "error", err)
		case lost:
			s.log.Warn("a queue had lost its socket: another tool has changed the map; it is there again",
				"interface", p.name, "queue", sl.queue)
		}
	}
}

// reopenReason reads the device as it is now and returns why the port must be opened again; nil if
// it need not, or if that could not be read: then p.unread is the reason, and the port stays open.
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
		return fmt.Errorf("%d queues are served, and it has %d now", p.served, dev.Queues)
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

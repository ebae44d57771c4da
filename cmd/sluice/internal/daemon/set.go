package daemon

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"

	"sluice.dev/sluice/cmd/sluice/internal/devices"
	"sluice.dev/sluice/cmd/sluice/internal/frames"
	"sluice.dev/sluice/control/config"
	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/fastpath/xsk"
	"sluice.dev/sluice/fastpath/xsk/napi"
)

// portsConfig is what ports are made of.
type portsConfig struct {
	settings *config.Configuration // as at the start
	log      *slog.Logger
	found    devices.Found
	plan     devices.Plan
	workers  portWorkers
	program  program
	hostLink string // the user-space end of the host link; empty if there is none
}

// portWorkers are those that have a port's sockets as their links.
type portWorkers interface {
	Len() int
	// UMEM is the memory of a worker's packets.
	UMEM(id int) *xsk.UMEM
	// Do runs f where the worker's links may be changed.
	Do(ctx context.Context, id int, f func(*fastpath.Worker)) error
	// Piece returns the first piece of a packet that arrived at a worker's link, if there was one.
	Piece(id, position int) (fastpath.Piece, bool)
}

// portSet is the ports of a gateway.
type portSet struct {
	config   *config.Configuration
	frames   frames.Choice
	log      *slog.Logger
	workers  portWorkers
	program  program
	original *napi.Original // what devices had before `interfaces[].napi`
	ports    []*port        // in the order of the configuration, the host link's last
}

// newPorts makes the ports that the plan says, which are not open yet.
func newPorts(c portsConfig) (*portSet, error) {
	original, err := napi.OpenOriginal(filepath.Join(c.settings.StateDir, "napi.json"))
	if err != nil {
		return nil, err
	}
	s := &portSet{config: c.settings, frames: c.found.Frames, log: c.log, workers: c.workers, program: c.program, original: original}
	for i, dev := range c.found.Devices {
		s.ports = append(s.ports, &port{name: dev.Name, config: c.settings.Interfaces[i], device: dev, slots: slotsAt(c.plan.Places[i])})
	}
	if c.hostLink != "" {
		s.ports = append(s.ports, &port{
			name: c.hostLink, host: true, slots: slotsAt(c.plan.Places[len(s.ports)]),
			config: config.Interface{Name: c.hostLink, Mode: config.ModeNative, ZeroCopy: config.ZeroCopyNever},
		})
	}
	return s, nil
}

func slotsAt(places []devices.Place) (slots []*slot) {
	for _, at := range places {
		slots = append(slots, &slot{worker: at.Worker, position: at.Position, queue: at.Queue})
	}
	return slots
}

// bind binds all sockets before the first one gets packets, so that what is received on one
// interface can leave by the others.
func (s *portSet) bind(ctx context.Context) error {
	for _, p := range s.ports {
		if err := s.bindPort(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// attach gives the sockets packets.
func (s *portSet) attach(ctx context.Context) error {
	for _, p := range s.ports {
		if err := s.attachPort(ctx, p); err != nil {
			return err
		}
		s.logOpen(p)
	}
	return nil
}

func (s *portSet) logOpen(p *port) {
	p.mu.Lock()
	mode, reason := p.attach.Mode(), p.attachReason()
	p.mu.Unlock()
	socketMode, why := p.slots[0].socket.Load().Mode()
	s.log.Info("interface open", "interface", p.name, "queues", len(p.slots), "xdp", mode, "xdpReason", reason, "sockets", socketMode, "socketsReason", why)
}

// devices are the interfaces as they were last seen, with the MTU that they are served with, without the host link.
func (s *portSet) devices() (list []devices.Device) {
	for _, p := range s.ports {
		if !p.host {
			p.mu.Lock()
			dev := p.device
			dev.MTU = p.receives(s.frames.Size)
			list = append(list, dev)
			p.mu.Unlock()
		}
	}
	return list
}

// close closes every port. The workers must have ended.
func (s *portSet) close() error {
	var errs []error
	for _, p := range s.ports {
		errs = append(errs, s.closePort(context.Background(), p))
	}
	return errors.Join(errs...)
}

// Package ports manages sockets and programs on the interfaces. It opens them (Bind, Attach),
// chooses their modes, watches the devices, opens ports again whose device was changed, deleted or
// created again (Watch), and reports their state.
//
//	present state of the device ─► reopenReason, outdated ─► close, open again
//	                                        │ if that fails: a condition
//
// A port's sockets are links of the workers, set when the port opens and cleared when it closes.
// The package has only interfaces for the workers and the kernel program.
package ports

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync/atomic"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/fastpath/xsk"
	"sluice.dev/sluice/fastpath/xsk/napi"
	"sluice.dev/sluice/host/nic/devices"
	"sluice.dev/sluice/host/nic/frames"
	"sluice.dev/sluice/internal/heartbeat"
	"sluice.dev/sluice/internal/statefile"
	"sluice.dev/sluice/xdpprog"
)

// Config has the parts that ports are made of.
type Config struct {
	Settings *config.Configuration // at the start of the process
	Log      *slog.Logger
	Found    devices.Found
	Plan     devices.Plan
	Workers  Workers
	Program  Program
	HostLink string // its user-space end; empty if it is disabled
	// Beats has the heartbeat of Watch; it may be nil.
	Beats *heartbeat.Set
}

// Workers are the workers whose links are a port's sockets.
type Workers interface {
	Len() int
	// UMEM returns the packet memory of a worker.
	UMEM(id int) *xsk.UMEM
	// Do runs f where the worker's links may be changed.
	Do(ctx context.Context, id int, f func(*fastpath.Worker)) error
	// Piece returns the piece of a packet that arrived at a worker's link, if there was one.
	Piece(id, position int) (fastpath.Piece, bool)
	// RefutedPieces counts the pieces of a worker's link that a longer packet has refuted.
	RefutedPieces(id, position int) uint64
	// SetPiece makes a worker look for a packet on a link that is longer than the piece; an empty
	// Piece ends that.
	SetPiece(ctx context.Context, id, position int, p fastpath.Piece) error
}

// Program is the part of the kernel program that ports need.
type Program interface {
	// Attach attaches the program for interfaces to a device.
	Attach(ifindex int, name string, mode xdpprog.AttachMode) (*xdpprog.Port, error)
	// AttachHostLink attaches the program for the host link to its user-space end.
	AttachHostLink(ifindex int, name string) (*xdpprog.Port, error)
	// AttachOver replaces a predecessor's program, which has the same sockets; it calls fill with
	// the new one before that gets a packet.
	AttachOver(ifindex int, name string, hostLink bool, fill func(*xdpprog.Port) error) (*xdpprog.Port, error)
	// AttachEgress attaches the program that redirects replies of local endpoints as they leave by
	// a device. It returns xdpprog.ErrAttached if the program was attached already.
	AttachEgress(ifindex int, name string) error
}

// Set is the ports of a gateway.
type Set struct {
	config   *config.Configuration
	frames   frames.Choice
	log      *slog.Logger
	workers  Workers
	program  Program
	original *napi.Original // settings of devices before `interfaces[].napi`
	refusals *refusals      // of native mode
	ports    []*port        // in the order of the configuration, the host link's last
	links    linkList
	// linkNews counts the kernel's notifications about links, and periodic listings. notified
	// reports that there are notifications.
	linkNews atomic.Uint64
	notified atomic.Bool
	looking  chan struct{} // has an element during a look of Watch, and while Watch is paused
	beat     *heartbeat.Beat
	linkBeat *heartbeat.Beat // of the goroutine that reads notifications
}

// New makes the ports of the plan. They are not open yet.
func New(c Config) (*Set, error) {
	original, err := napi.OpenOriginal(filepath.Join(c.Settings.StateDir, "napi.json"))
	if err != nil {
		return nil, err
	}
	refused, err := statefile.OpenDevices[refusal](filepath.Join(c.Settings.StateDir, "modes.json"))
	if refused == nil {
		return nil, fmt.Errorf("read the devices' modes: %w", err)
	} else if err != nil {
		c.Log.Warn("devices keep their present mode", "error", err)
	}
	s := &Set{
		config: c.Settings, frames: c.Found.Frames, log: c.Log,
		workers: c.Workers, program: c.Program, original: original, refusals: refused,
		looking: make(chan struct{}, 1), beat: c.Beats.Add("watch of interfaces", heartbeat.DefaultBounds),
		linkBeat: c.Beats.Add("reader of changes of interfaces", heartbeat.DefaultBounds),
	}
	for i, dev := range c.Found.Devices {
		s.ports = append(s.ports, &port{
			name: dev.Name, device: dev, slots: slotsAt(c.Plan.Places[i]), config: c.Settings.Interfaces[i],
		})
	}
	if c.HostLink != "" {
		s.ports = append(s.ports, &port{
			name: c.HostLink, host: true, slots: slotsAt(c.Plan.Places[len(s.ports)]),
			config: config.Interface{Name: c.HostLink, Mode: config.ModeNative, ZeroCopy: config.ZeroCopyNever},
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

// Bind binds all sockets before the first one gets packets: packets that arrive on one interface
// may leave by any other.
func (s *Set) Bind(ctx context.Context) error {
	for _, p := range s.ports {
		if err := s.bindPort(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// Attach attaches the programs to the devices and adds the sockets to their maps. Packets arrive
// from then on.
func (s *Set) Attach(ctx context.Context) error {
	for _, p := range s.ports {
		if err := s.attachPort(ctx, p); err != nil {
			return err
		}
		s.logOpen(p)
	}
	return nil
}

// AttachEgress attaches the egress program to every NIC.
func (s *Set) AttachEgress() error {
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

func (s *Set) logOpen(p *port) {
	p.mu.Lock()
	mode, reason := p.attach.Mode(), p.attachReason()
	p.mu.Unlock()
	socketMode, why := p.slots[0].socket.Load().Mode()
	s.log.Info("interface open", "interface", p.name, "queues", len(p.slots),
		"xdp", mode, "xdpReason", reason, "sockets", socketMode, "socketsReason", why)
}

// Devices returns the interfaces, without the host link, as last read, with the MTU that is served.
func (s *Set) Devices() (list []devices.Device) {
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

// Indexes returns the indexes of the interfaces and of the host link, as last read.
func (s *Set) Indexes() (list []int) {
	for _, p := range s.ports {
		list = append(list, p.index())
	}
	return list
}

// Close closes every port. The workers must have ended.
func (s *Set) Close() error {
	var errs []error
	for _, p := range s.ports {
		errs = append(errs, s.closePort(context.Background(), p))
	}
	return errors.Join(errs...)
}

// Forget removes the stored modes of devices. The caller calls it when it leaves no program to the
// next process.
func (s *Set) Forget() error { return s.refusals.Clear() }

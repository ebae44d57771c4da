package flows

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/control/compiler"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/flowtable/affinity"
	"sluice.dev/sluice/internal/boottime"
	"sluice.dev/sluice/internal/heartbeat"
	"sluice.dev/sluice/internal/wake"
)

// Pins are the clients that must stay with a backend (sessionAffinity ClientIP), and the pins that
// must be removed. Removing walks the whole table, so Run does it, outside of the control loop's
// goroutine, and for many backends at once.
type Pins struct {
	file *affinity.File

	mu   sync.Mutex
	lost map[compiler.LostPin]bool
	wake wake.Flag
}

// OpenPins takes over the previous process's pins. The caller must hold the flow table's lock: the
// pins' file has none.
func OpenPins(c *config.Configuration, log *slog.Logger) (*Pins, error) {
	file, err := affinity.OpenFile(pinsPath(c),
		affinity.Config{Clients: c.Tuning.AffinityClients}, flowtable.Time(boottime.Nanos()))
	if err != nil {
		return nil, err
	}
	if r := file.Recovery; r.Fresh {
		log.Info("table of clients' pins is new", "why", r.Why)
	} else {
		log.Info("pins of clients taken over", "pins", r.Kept, "ended", r.Ended, "damaged", r.Damaged)
	}
	return newPins(file), nil
}

// TakePins takes over the pins of another process that has handed their file to this one.
func TakePins(c *config.Configuration, file *os.File) (*Pins, error) {
	f, err := affinity.TakeFile(file, pinsPath(c), affinity.Config{Clients: c.Tuning.AffinityClients})
	if err != nil {
		return nil, err
	}
	return newPins(f), nil
}

func newPins(f *affinity.File) *Pins {
	return &Pins{file: f, lost: map[compiler.LostPin]bool{}, wake: wake.NewFlag()}
}

func pinsPath(c *config.Configuration) string { return filepath.Join(c.StateDir, "pins") }

// PinsLayout describes the memory layout of the pins of a configuration (affinity.Layout).
func PinsLayout(c *config.Configuration) string {
	return affinity.Layout(affinity.Config{Clients: c.Tuning.AffinityClients})
}

// FD returns the descriptor of the pins' file, to hand to another process.
func (p *Pins) FD() int { return p.file.FD() }

// Lose adds pins that Run must remove. The compiler calls it; it does not block.
func (p *Pins) Lose(list []compiler.LostPin) {
	p.mu.Lock()
	for _, l := range list {
		p.lost[l] = true
	}
	p.mu.Unlock()
	p.wake.Raise()
}

// Run removes lost pins until ctx is done. beat is its heartbeat and may be nil.
func (p *Pins) Run(ctx context.Context, beat *heartbeat.Beat) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.wake:
			beat.Beat()
			p.forget()
			beat.Rest()
		}
	}
}

func (p *Pins) forget() {
	p.mu.Lock()
	lost := p.lost
	p.lost = map[compiler.LostPin]bool{}
	p.mu.Unlock()
	of := map[uint64]bool{} // most pins belong to other Services, and a number is found fast
	for l := range lost {
		of[l.Service] = true
	}
	p.file.Table.Forget(flowtable.Time(boottime.Nanos()), func(service uint64, pin affinity.Pin) bool {
		return of[service] && (lost[compiler.LostPin{Service: service, Addr: pin.Addr, Port: pin.Port}] ||
			lost[compiler.LostPin{Service: service}])
	})
}

// place is a backend to which a Service sends a client.
type place struct {
	service uint64
	pin     affinity.Pin
}

// Prune removes the pins that the previous process left to backends that get no new flows from the
// table: backends that were lost between the two processes are reported by no one else. snapshot
// returns the published table, which must be complete. Workers may run, and another table may be
// published at any time.
func (p *Pins) Prune(snapshot func() *services.Snapshot) (ended int) {
	s := snapshot()
	chosen := places(s)
	return p.file.Table.Forget(flowtable.Time(boottime.Nanos()), func(service uint64, pin affinity.Pin) bool {
		at := place{service, pin}
		if chosen[at] {
			return false
		}
		// The worker that made the pin had its table before, so s is not older.
		if last := snapshot(); last != s {
			s, chosen = last, places(last)
		}
		return !chosen[at]
	})
}

// places returns the backends to which a table sends clients that must stay with them.
func places(s *services.Snapshot) map[place]bool {
	chosen := map[place]bool{}
	s.Frontends(func(f *services.Frontend) bool {
		if f.Service.AffinitySeconds == 0 {
			return true
		}
		for _, set := range []*services.EndpointSet{f.Outside.Set, f.Pod.Set} {
			for _, ref := range set.Backends {
				b := s.Backend(ref)
				chosen[place{f.Service.Identity, affinity.Pin{Addr: b.Addr, Port: b.Port}}] = true
			}
		}
		return true
	})
	return chosen
}

// Close closes the file, and deletes it if remove is set.
func (p *Pins) Close(remove bool) error {
	switch {
	case p == nil:
		return nil
	case remove:
		return p.file.Remove()
	}
	return p.file.Close()
}

// Counts returns the table's counters.
func (p *Pins) Counts() affinity.Counts { return p.file.Table.Counts(flowtable.Time(boottime.Nanos())) }

// Table returns the table of pins, which the workers share.
func (p *Pins) Table() *affinity.Table { return p.file.Table }

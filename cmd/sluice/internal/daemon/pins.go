package daemon

import (
	"context"
	"path/filepath"
	"sync"

	"sluice.dev/sluice/control"
	"sluice.dev/sluice/control/config"
	"sluice.dev/sluice/control/metrics"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/flowtable/affinity"
)

// pins are whom clients were sent to (sessionAffinity ClientIP), and which of them are
// to be forgotten. Forgetting walks the whole table, so it is not done on the control loop's
// goroutine, and for many backends at once.
type pins struct {
	file *affinity.File

	mu   sync.Mutex
	lost map[control.LostPin]bool
	wake chan struct{}
}

// openPins takes over a predecessor's pins. The flow table's lock is held, so nobody
// else has the file.
func openPins(c *config.Configuration) (*pins, error) {
	file, err := affinity.OpenFile(filepath.Join(c.StateDir, "pins"),
		affinity.Config{Clients: c.Proxy.AffinityClients}, flowtable.Time(bootNanos()))
	if err != nil {
		return nil, err
	}
	return &pins{file: file, lost: map[control.LostPin]bool{}, wake: make(chan struct{}, 1)}, nil
}

// lose is told by the compiler; it does not block.
func (p *pins) lose(list []control.LostPin) {
	p.mu.Lock()
	for _, l := range list {
		p.lost[l] = true
	}
	p.mu.Unlock()
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// run forgets pins until ctx is done.
func (p *pins) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.wake:
			p.forget()
		}
	}
}

func (p *pins) forget() {
	p.mu.Lock()
	lost := p.lost
	p.lost = map[control.LostPin]bool{}
	p.mu.Unlock()
	p.file.Table.Forget(flowtable.Time(bootNanos()), func(e *affinity.Entry) bool {
		return lost[control.LostPin{Service: e.Service, Addr: e.Pin.Addr, Port: e.Pin.Port}]
	})
}

// close closes the file, and may delete it.
func (p *pins) close(remove bool) error {
	switch {
	case p == nil:
		return nil
	case remove:
		return p.file.Remove()
	}
	return p.file.Close()
}

// counts implements metrics.Extras.Affinity.
func (p *pins) counts() metrics.Affinity {
	c := p.file.Table.Counts(flowtable.Time(bootNanos()))
	return metrics.Affinity{Pins: c.Live, Capacity: c.Capacity, Evicted: c.Evicted, Lost: c.Lost}
}

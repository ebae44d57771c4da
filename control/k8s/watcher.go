package k8s

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"k8s.io/client-go/rest"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/control/tracker"
)

// Kind is the kind of Source that objects from an API server have.
const Kind = "kubernetes"

// Config is what a Watcher needs.
type Config struct {
	Log     *slog.Logger
	Client  *rest.Config
	Tracker *tracker.Tracker
	// NodeName is the own Node's name.
	NodeName string
	// Hold is how long endpoints are kept that vanish in a mass; 0 keeps none.
	Hold time.Duration
}

// Watcher reads an API server.
type Watcher struct {
	Config
	clients   clients
	hold      *hold
	resources []*resource
}

// New returns a Watcher that does nothing until Run. It does not speak to the API
// server, which may be away.
func New(cfg Config) (*Watcher, error) {
	c, err := newClients(cfg.Client, cfg.Log)
	if err != nil {
		return nil, err
	}
	w := &Watcher{Config: cfg, clients: c}
	w.hold = newHold(cfg.Tracker.Apply, cfg.Hold)
	w.resources = w.watched()
	return w, nil
}

// Feeds are the three kinds of objects. The control loop waits for each.
func (w *Watcher) Feeds() (list []tracker.Feed) {
	for _, r := range w.resources {
		list = append(list, r)
	}
	return list
}

// Run watches until ctx is done.
func (w *Watcher) Run(ctx context.Context) {
	var group sync.WaitGroup
	for _, r := range w.resources {
		group.Go(func() { r.run(ctx) })
	}
	group.Wait()
	w.hold.stop()
}

// SetHold changes Config.Hold while the Watcher runs.
func (w *Watcher) SetHold(d time.Duration) {
	if w.hold.setPeriod(d) {
		for _, r := range w.resources {
			r.relist()
		}
	}
}

// Status is how one kind of objects is doing.
type Status struct {
	Source objects.Source
	// Synced: it has been listed once.
	Synced bool
	// Objects are those that match; Heard is when something of them was last read, and
	// Version the newest resource version that was.
	Objects int
	Heard   time.Time
	Version uint64
	// Err is why it cannot be listed or watched, Since since when; nil while it can.
	Err   error
	Since time.Time
}

// Status may be called from any goroutine.
func (w *Watcher) Status() (list []Status) {
	for _, r := range w.resources {
		list = append(list, r.status())
	}
	return list
}

// ErrEnded is returned by Sync when Run has returned.
var ErrEnded = errors.New("the API server is not watched any more")

// health is what is known of one kind's list and watch.
type health struct {
	mu      sync.Mutex
	now     Status
	changed chan struct{} // closed by the next set or end
	ended   bool
}

// status returns a copy.
func (h *health) status() Status {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.now
}

// set replaces the status and wakes those who wait for it.
func (h *health) set(s Status) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.now = s
	h.wake()
}

// end notes that nothing is watched any more.
func (h *health) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ended = true
	h.wake()
}

// wake needs mu.
func (h *health) wake() {
	close(h.changed)
	h.changed = make(chan struct{})
}

// Source names the kind of objects.
func (h *health) Source() objects.Source { return h.now.Source }

// Sync returns when all objects have been listed once, or why they cannot be. What a
// watch said before the call is in the Tracker by then, or held.
func (h *health) Sync(ctx context.Context) error {
	for {
		h.mu.Lock()
		s, changed, ended := h.now, h.changed, h.ended
		h.mu.Unlock()
		switch {
		case s.Synced:
			return nil
		case ended:
			return ErrEnded
		case s.Err != nil:
			return fmt.Errorf("%s cannot be listed: %w", s.Source.Path, s.Err)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

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
	"sluice.dev/sluice/internal/heartbeat"
)

// Kind is the kind of Source that objects from an API server have.
const Kind = "kubernetes"

// Config configures a Watcher.
type Config struct {
	Log     *slog.Logger
	Client  *rest.Config
	Tracker *tracker.Tracker
	// NodeName is the own Node's name.
	NodeName string
	// AllNodes: all Nodes are read, for the addresses of nodes with endpoints (direct return);
	// otherwise only the own Node.
	AllNodes bool
	// GroupNodes is a label selector of the Nodes that Gateways has; "" is none, and Gateways is
	// nil.
	GroupNodes string
	// StaleEndpointTimeout is how long endpoints are served that vanish all at once without having
	// been seen terminating; 0 is not at all.
	StaleEndpointTimeout time.Duration
	// Belongs is what Leaving goes by.
	Belongs Belongs
	// Beats, unless nil, gets the heartbeats of what takes the objects of each kind.
	Beats *heartbeat.Set
}

// Watcher reads an API server.
type Watcher struct {
	Config
	clients   clients
	hold      *hold
	resources []*resource
	belongs   []*presence
	gateways  *Gateways // nil without GroupNodes
}

// New returns a Watcher, which Run starts. It does not connect to the API server.
func New(cfg Config) (*Watcher, error) {
	c, err := newClients(cfg.Client, cfg.Log)
	if err != nil {
		return nil, err
	}
	w := &Watcher{Config: cfg, clients: c}
	w.hold = newHold(cfg.Tracker.Apply, cfg.StaleEndpointTimeout)
	w.resources, w.belongs = w.watched(), w.presences()
	if cfg.GroupNodes != "" {
		w.gateways, err = newGateways(w)
	}
	return w, err
}

// Feeds returns a feed for each of the three kinds of objects. The control loop waits for each.
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
	for _, p := range w.belongs {
		group.Go(func() { p.run(ctx) })
	}
	if w.gateways != nil {
		group.Go(func() { w.gateways.run(ctx) })
	}
	group.Wait()
	w.hold.stop()
}

// SetStaleEndpointTimeout changes Config.StaleEndpointTimeout while the Watcher runs.
func (w *Watcher) SetStaleEndpointTimeout(d time.Duration) {
	if w.hold.setPeriod(d) {
		for _, r := range w.resources {
			r.relist()
		}
	}
}

// Status is the state of the list and watch of one kind of objects.
type Status struct {
	Source objects.Source
	// Synced: it has been listed once.
	Synced bool
	// Objects counts the objects that match; Heard is the time at which an object was last read;
	// Version is the newest resource version.
	Objects int
	Heard   time.Time
	Version uint64
	// Err is why it cannot be listed or watched, nil if it can; Since is when that began.
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

// health is the health of one kind's list and watch.
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

// set replaces the status and wakes waiting callers of Sync.
func (h *health) set(s Status) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.now = s
	h.wake()
}

// end records that the watch has ended.
func (h *health) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ended = true
	h.wake()
}

// wake wakes waiting callers of Sync. mu must be held.
func (h *health) wake() {
	close(h.changed)
	h.changed = make(chan struct{})
}

// Source names the kind of objects.
func (h *health) Source() objects.Source { return h.now.Source }

// Sync returns nil when all objects have been listed once, or an error if they cannot be. Events
// received before the call are in the Tracker by then, or held.
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

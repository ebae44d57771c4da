package neigh

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gaissmai/bart"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/internal/heartbeat"
	"sluice.dev/sluice/internal/wake"
)

// Config configures a Mirror. Zero durations mean the defaults.
type Config struct {
	Links    []LinkConfig   // in the order of the configuration: position is nexthop.Hop.Link
	HostLink *HostLink      // nil if there is none: destinations of Kind Kernel get no hop
	Table    *nexthop.Table // the mirror is its only writer and the only reader of its requests

	ProbeInterval  time.Duration // how often a neighbour is kept from being forgotten (30 s)
	VerifyInterval time.Duration // how often one is asked that packets are sent to (5 s)
	ResyncInterval time.Duration // how often everything is read and compared (1 min)
	ForgetAfter    time.Duration // how long a neighbour that fails and is not requested is kept (5 min)
	HopGrace       time.Duration // how long an unused hop ID is kept before it is reused (10 s)

	Logger *slog.Logger
	Now    func() time.Time
	Beats  *heartbeat.Set // gets the heartbeat of Run; nil: none
}

func (c *Config) setDefaults() {
	for _, d := range []struct {
		d *time.Duration
		v time.Duration
	}{
		{&c.ProbeInterval, 30 * time.Second}, {&c.VerifyInterval, 5 * time.Second}, {&c.ResyncInterval, time.Minute},
		{&c.ForgetAfter, 5 * time.Minute}, {&c.HopGrace, 10 * time.Second},
	} {
		if *d.d == 0 {
			*d.d = d.v
		}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
}

// Mirror keeps a nexthop.Table equal to the kernel's decisions. All fields but those marked shared
// belong to the goroutine of Run.
type Mirror struct {
	table         *nexthop.Table
	log           *slog.Logger
	now           func() time.Time
	probeInterval time.Duration
	verifyEvery   time.Duration
	resyncEvery   time.Duration
	forgetAfter   time.Duration
	beat          *heartbeat.Beat
	open          func(*slog.Logger) (kernel, error)

	kernel     kernel
	links      []LinkConfig
	host       *HostLink
	devices    map[int]device               // all interfaces, by index
	targets    *bart.Table[target]          // what the kernel's routes lead to
	routes     *bart.Table[nexthop.Route]   // what is published: targets with hops, and host routes
	generation uint32                       // of the published View
	ids        *hopIDs                      //
	known      map[neighKey]usableNeighbour // every one of the kernel on our devices
	tracked    map[neighKey]*neighbour      // those we send to
	waiting    waiting                      // those of tracked that have never answered
	budget     budget                       // of requests to the kernel
	forgotAt   time.Time                    // last forgetHosts
	rules      []string                     // warnings: policy rules that are not honoured
	multipath  []string                     // warnings: routes that are not spread
	pace       pace                         // when the topology is read next
	counts     struct{ readings, lost, drift uint64 }

	addresses        atomic.Pointer[[]Address]    // shared
	sources          atomic.Pointer[[]netip.Addr] // shared
	addressesChanged wake.Flag
	status           atomic.Pointer[Status] // shared
	ways             atomic.Pointer[Ways]   // shared
	ready            chan struct{}          // closed after the first View
	readyOnce        sync.Once

	mu   sync.Mutex // shared: guards want
	want *linkChange
	wake wake.Flag
}

type linkChange struct {
	links []LinkConfig
	host  *HostLink
}

// New returns a mirror that has not read anything yet.
func New(c Config) (*Mirror, error) {
	if c.Table == nil {
		return nil, errors.New("neigh: Config.Table is missing")
	}
	if err := checkLinks(c.Links); err != nil {
		return nil, err
	}
	c.setDefaults()
	return &Mirror{
		table: c.Table, log: c.Logger, now: c.Now,
		probeInterval: c.ProbeInterval, verifyEvery: c.VerifyInterval, resyncEvery: c.ResyncInterval,
		forgetAfter: c.ForgetAfter,
		open:        openKernel, beat: c.Beats.Add("mirror of routes and neighbours", heartbeat.DefaultBounds),
		links: slices.Clone(c.Links), host: c.HostLink,
		targets: new(bart.Table[target]), generation: firstGeneration(),
		ids:   newHopIDs(c.Table, c.HopGrace),
		known: make(map[neighKey]usableNeighbour), tracked: make(map[neighKey]*neighbour),
		addressesChanged: wake.NewFlag(), ready: make(chan struct{}), wake: wake.NewFlag(),
	}, nil
}

func checkLinks(links []LinkConfig) error {
	if len(links) > math.MaxUint8+1 {
		return fmt.Errorf("neigh: %d links: a hop can name %d", len(links), math.MaxUint8+1)
	}
	seen := make(map[string]bool, len(links))
	for _, l := range links {
		if l.Name == "" || seen[l.Name] {
			return fmt.Errorf("neigh: link name %q is empty or given twice", l.Name)
		}
		seen[l.Name] = true
	}
	return nil
}

// firstGeneration is the boot clock in milliseconds. Generations are stepped at
// most once per minReadingGap, so they never catch up with it: what a later process
// starts from, no earlier one has reached. That holds until the 32 bits wrap: 49.7
// days after an earlier start, to within as many milliseconds as it made
// generations, a start can meet one of them.
func firstGeneration() uint32 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic("neigh: CLOCK_BOOTTIME is missing: Linux 2.6.39 or later is needed")
	}
	return max(1, uint32(ts.Nano()/int64(time.Millisecond)))
}

// SetLinks replaces the links. A link that stays should keep its position. The mirror notices by
// itself when interfaces are created, deleted or changed. SetLinks may be called at any time, by
// any goroutine.
func (m *Mirror) SetLinks(links []LinkConfig, host *HostLink) error {
	if err := checkLinks(links); err != nil {
		return err
	}
	m.mu.Lock()
	m.want = &linkChange{slices.Clone(links), host}
	m.mu.Unlock()
	m.wake.Raise()
	return nil
}

// Ready is closed once the first View is published.
func (m *Mirror) Ready() <-chan struct{} { return m.ready }

// Run mirrors the kernel's state until ctx is done. It works in the network namespace of the thread
// it starts on, so in a namespace other than the process's own the caller must have locked the
// goroutine to its thread. It returns an error only if the first subscription fails; it retries
// later ones.
func (m *Mirror) Run(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	defer m.beat.Rest()
	m.pace.force()
	overrun, err := m.session(ctx, tick.C)
	if err != nil {
		return fmt.Errorf("mirror of routes and neighbours: %w", err)
	}
	for ctx.Err() == nil {
		m.beat.Beat()
		if !overrun {
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(retryInterval):
			}
		}
		if overrun, err = m.session(ctx, tick.C); err != nil {
			m.log.Warn("routes and neighbours cannot be read; the last ones stay in use", "error", err)
		}
	}
	return nil
}

// session serves one subscription until it breaks or ctx is done. It returns an error only if the
// subscription cannot be opened or the first reading fails. After an overrun the next session must
// start at once.
func (m *Mirror) session(ctx context.Context, tick <-chan time.Time) (overrun bool, err error) {
	m.beat.Beat()
	k, err := m.open(m.log)
	if err != nil {
		return false, err
	}
	defer k.close()
	m.kernel = k
	// Subscribe before reading, so that changes in between are announced. An interrupted dump is
	// repeated like any other; tables that change so fast that announcements are lost often
	// interrupt dumps.
	m.pace.everything()
	if err := m.read(); err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return false, err
	}
	return m.follow(ctx, tick), nil
}

// follow reports whether the subscription ended by an overrun. From the overrun until the next
// reading it serves workers, but takes no events.
func (m *Mirror) follow(ctx context.Context, tick <-chan time.Time) (overrun bool) {
	m.pace.armed = false
	reading := time.NewTimer(time.Hour)
	defer reading.Stop()
	events := m.kernel.events()
	resyncAt := m.now().Add(m.resyncEvery)
	for {
		m.beat.Beat()
		if wait, ok := m.pace.arm(m.now()); ok {
			reading.Reset(wait)
		}
		select {
		case <-ctx.Done():
			return false
		case batch, ok := <-events:
			if !ok {
				return false
			}
			if !m.apply(batch) {
				overrun, events = true, nil
			}
		case r := <-m.table.FirstRequests():
			m.resolve(r.Addr, true)
		case r := <-m.table.Requests():
			m.resolve(r.Addr, false)
		case <-m.wake:
			m.pace.force()
		case <-reading.C:
			if overrun {
				return true
			}
			m.pace.armed = false
			if err := m.read(); err != nil {
				m.log.Debug("reading repeated", "error", err)
			}
		case <-tick:
			m.keepFresh()
			m.ids.reap(m.generation, m.now())
			if now := m.now(); !now.Before(resyncAt) {
				resyncAt = now.Add(m.resyncEvery)
				m.pace.everything()
			}
			m.report()
		}
	}
}

// apply applies events of neighbours at once and records all others. It stops and returns false
// where the kernel dropped announcements. Later events are of no use: they are older than the next
// reading, and until the socket is empty the kernel drops events without another report
// (net/netlink/af_netlink.c, netlink_overrun and netlink_rcv_wake). Only a new socket ends that.
func (m *Mirror) apply(batch []event) bool {
	for i := range batch {
		switch e := &batch[i]; e.kind {
		case neighbourChanged, neighbourGone:
			m.neighbourChanged(&e.neigh, e.kind == neighbourGone)
		case eventsLost:
			m.counts.lost++
			m.pace.everything()
			return false
		case rulesChanged:
			m.pace.everything()
		default:
			m.pace.dirty = true
		}
	}
	return true
}

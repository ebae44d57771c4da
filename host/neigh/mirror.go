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
	"sluice.dev/sluice/internal/logs"
	"sluice.dev/sluice/internal/wake"
)

// Config configures a Mirror. Zero durations mean the defaults.
type Config struct {
	Links    []LinkConfig   // in the order of the configuration: position is nexthop.Hop.Link
	HostLink *HostLink      // nil if there is none: destinations of Kind Kernel get no hop
	Table    *nexthop.Table // the mirror is its only writer and the only reader of its requests

	ProbeInterval  time.Duration // interval of the messages that keep a neighbour fresh (30 s)
	VerifyInterval time.Duration // interval of requests to a neighbour that packets are sent to (5 s)
	ResyncInterval time.Duration // interval of readings of the whole state (1 min)
	ForgetAfter    time.Duration // when a failed neighbour without requests is forgotten (5 min)
	HopGrace       time.Duration // time before an unused hop ID is used again (10 s)

	Logger *slog.Logger
	Now    func() time.Time
	Beats  *heartbeat.Set // receives the heartbeat of Run; may be nil
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

// Mirror keeps a nexthop.Table equal to the kernel's decisions. The goroutine of Run owns all
// fields except those marked shared.
type Mirror struct {
	table         *nexthop.Table
	log           *slog.Logger
	lines         logs.Limit // of log, about neighbours
	now           func() time.Time
	probeInterval time.Duration
	verifyEvery   time.Duration
	resyncEvery   time.Duration
	forgetAfter   time.Duration
	beat          *heartbeat.Beat
	reads         *heartbeat.Beat // of what reads the subscription
	open          func(*slog.Logger, *heartbeat.Beat) (kernel, error)

	kernel     kernel
	links      []LinkConfig
	host       *HostLink
	devices    map[int]device             // all interfaces, by index
	targets    *bart.Table[target]        // the targets of the kernel's routes
	routes     *bart.Table[nexthop.Route] // the published routes: targets with hops, and host routes
	generation uint32                     // of the published View
	ids        *hopIDs
	known      usableNeighbours        // shared
	tracked    map[neighKey]*neighbour // gateways, and neighbours that workers requested
	waiting    waiting                 // tracked neighbours that have never answered
	first      *budget                 // bounds first requests
	unknown    *budget                 // bounds other requests for waiting hosts
	full       tableFull               // reported
	forgotAt   time.Time               // last call of forgetHosts
	rules      []string                // warnings: policy rules that the mirror ignores
	multipath  []string                // warnings: multipath routes with one nexthop in use
	pace       pace                    // when the topology is read next
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

// New returns a mirror that has not read the kernel's state yet.
func New(c Config) (*Mirror, error) {
	if c.Table == nil {
		return nil, errors.New("neigh: Config.Table is missing")
	}
	if err := checkLinks(c.Links); err != nil {
		return nil, err
	}
	c.setDefaults()
	return &Mirror{
		table: c.Table, log: c.Logger, lines: logs.Limit{PerSecond: neighbourLines}, now: c.Now,
		probeInterval: c.ProbeInterval, verifyEvery: c.VerifyInterval, resyncEvery: c.ResyncInterval,
		forgetAfter: c.ForgetAfter,
		open:        openKernel, beat: c.Beats.Add("mirror of routes and neighbours", heartbeat.DefaultBounds),
		reads: c.Beats.Add("reader of routes and neighbours", heartbeat.DefaultBounds),
		links: slices.Clone(c.Links), host: c.HostLink,
		targets: new(bart.Table[target]), generation: firstGeneration(),
		ids:   newHopIDs(c.Table, c.HopGrace),
		known: usableNeighbours{by: make(map[neighKey]usableNeighbour)}, tracked: make(map[neighKey]*neighbour),
		first: newBudget(mostFirst), unknown: newBudget(mostUnknown),
		addressesChanged: wake.NewFlag(), ready: make(chan struct{}), wake: wake.NewFlag(),
	}, nil
}

func checkLinks(links []LinkConfig) error {
	if len(links) > math.MaxUint8+1 {
		return fmt.Errorf("neigh: %d links: at most %d are possible", len(links), math.MaxUint8+1)
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

// firstGeneration returns the boot clock in milliseconds. The generation is incremented at most
// once per minReadingGap, so it never catches up with the clock: no earlier process has reached the
// first generation of a later one. That holds until the 32 bits wrap: 49.7 days after an earlier
// start, within as many milliseconds as it made generations, a start can repeat a generation.
func firstGeneration() uint32 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic("neigh: CLOCK_BOOTTIME is missing: Linux 2.6.39 or later is needed")
	}
	return max(1, uint32(ts.Nano()/int64(time.Millisecond)))
}

// SetLinks replaces the links. A link that stays should keep its position. The mirror notices by
// itself that interfaces are created, deleted or changed. Safe for any goroutine, at any time.
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

// Ready returns a channel that is closed when the first View is published.
func (m *Mirror) Ready() <-chan struct{} { return m.ready }

// Run mirrors the kernel's state until ctx is done. It works in the network namespace of its
// thread, so for a namespace other than the process's the caller must have locked the goroutine to
// its thread. It returns an error only if the first subscription fails; it retries later ones.
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
			if !wake.After(ctx, retryInterval) {
				return nil
			}
		}
		if overrun, err = m.session(ctx, tick.C); err != nil {
			m.log.Warn("routes and neighbours cannot be read; the previous ones stay in use", "error", err)
		}
	}
	return nil
}

// session opens a subscription and follows it until it breaks or ctx is done. It returns an error
// only if the subscription cannot be opened or the first reading fails. After an overrun the next
// session must start at once.
func (m *Mirror) session(ctx context.Context, tick <-chan time.Time) (overrun bool, err error) {
	m.beat.Beat()
	k, err := m.open(m.log, m.reads)
	if err != nil {
		return false, err
	}
	defer k.close()
	m.kernel = k
	// Subscribe before reading, so that changes in between are announced. An interrupted dump is
	// repeated like any other reading: tables that change fast enough to lose announcements often
	// interrupt dumps.
	m.pace.everything()
	if err := m.read(); err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return false, err
	}
	return m.follow(ctx, tick), nil
}

// follow applies events until the subscription ends, and reports whether it ended by an overrun.
// After an overrun it still serves requests of workers until the next reading is due, but applies
// no events.
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

// apply applies events of neighbours at once, and schedules a reading for other events. It stops
// and returns false if the kernel dropped announcements. Later events are useless: they are older
// than the next reading, and until the socket is empty the kernel drops events without another
// report (net/netlink/af_netlink.c, netlink_overrun and netlink_rcv_wake). Only a new socket ends
// that.
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

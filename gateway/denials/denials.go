// Package denials has the list of clients whose packets the kernel program drops: the
// configuration's, and clients that the operator denied, until a time or without an end.
//
//	configuration ──► List ──► kernel program: their packets are dropped
//	`sluice deny` ──►   │ └──► flow table: their flows end
//	                    ▼
//	               denied.json, for the next process
//
// The kernel program has the list while no process runs, and knows the ends of its entries. The
// operator's entries are in a file of stateDir, like drains: the operator can read it, and on a
// tmpfs it ends with the machine.
package denials

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/gaissmai/bart"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/internal/boottime"
	"sluice.dev/sluice/internal/heartbeat"
	"sluice.dev/sluice/internal/wake"
	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/xdpprog"
)

// Program is the part of the kernel program that a List uses.
type Program interface {
	SetDenied(list []xdpprog.Denial) error
	Denied() (map[netip.Prefix]uint64, error)
}

// Flows is the part of the flow table that a List uses.
type Flows interface {
	// DeleteClients ends the flows of the clients that match, and returns their number.
	DeleteClients(ctx context.Context, match func(netip.Addr) bool) (int, error)
}

// Config has the parts of the gateway that a List needs.
type Config struct {
	Log      *slog.Logger
	StateDir string
	Program  Program
	Flows    Flows
	// Saves runs a function that writes the file, or returns an error if the next process has read
	// the file already.
	Saves func(func() error) error
	// BootNanos is CLOCK_BOOTTIME; nil: the kernel's.
	BootNanos func() uint64
}

// Errors of Deny and Allow about the list.
var (
	// ErrFull means that there is no room for another entry.
	ErrFull = fmt.Errorf("the list has %d entries, and no room for more: deny a shorter prefix, or remove entries",
		config.MaxDenied)
	// ErrConfigured means that only the configuration can remove an entry.
	ErrConfigured = errors.New("it is in `deny` of the configuration: remove it there")
	// ErrNoEntry means that the list has no such entry.
	ErrNoEntry = errors.New("there is no such entry, see `sluice deny list`")
)

// errPending is in place of the kernel program's answer until there is one.
var errPending = errors.New("it gets the list of the new configuration now")

// List is the list of one gateway. Its methods may be called concurrently.
type List struct {
	c    Config
	wake wake.Flag // the list has changed

	changing sync.Mutex // one call of change at a time

	mu         sync.Mutex // guards the fields below; not held during calls of Config
	configured map[netip.Prefix]bool
	operator   map[netip.Prefix]time.Time // until then; zero: without an end
	refused    error                      // why the kernel program does not have the list
	lost       error                      // why the previous process's entries are lost; nil after a change

	applying sync.Mutex // one call of apply at a time
	inForce  map[netip.Prefix]xdpprog.Denial
	recent   []netip.Prefix // in force since changed, or longer: flows may have begun meanwhile
	changed  time.Time
}

// New returns the list of a configuration, with the entries that the previous process saved. If
// they cannot be read, they are lost, and Conditions has the error until the operator changes the
// list.
func New(c Config, configured []netip.Prefix) *List {
	if c.BootNanos == nil {
		c.BootNanos = boottime.Nanos
	}
	l := &List{c: c, wake: wake.NewFlag(), configured: setOf(configured)}
	var err error
	if l.operator, err = load(c.StateDir); err != nil {
		c.Log.Error("clients that the operator denied are lost: deny them again", "error", err)
		l.operator, l.lost = map[netip.Prefix]time.Time{}, err
	}
	return l
}

func setOf(list []netip.Prefix) map[netip.Prefix]bool {
	set := make(map[netip.Prefix]bool, len(list))
	for _, p := range list {
		set[p] = true
	}
	return set
}

// Configure replaces the entries of the configuration.
func (l *List) Configure(configured []netip.Prefix) {
	l.mu.Lock()
	before := l.configured
	l.configured = setOf(configured)
	same := maps.Equal(before, l.configured)
	if !same {
		l.refused = errPending
	}
	l.mu.Unlock()
	if !same {
		l.wake.Raise()
	}
}

// Deny adds an entry that ends after a time, or without an end if that is 0. It replaces the end of
// an entry of the operator. It returns how many flows of the clients it has ended.
func (l *List) Deny(ctx context.Context, p netip.Prefix, after time.Duration) (flows int, err error) {
	var until time.Time
	if after > 0 {
		until = time.Now().Add(after).Round(0) // without the monotonic clock, which the file does not have
	}
	err = l.change(func(list map[netip.Prefix]time.Time) error {
		if _, ok := list[p]; !ok && len(list)+len(l.configured) >= config.MaxDenied {
			return ErrFull
		}
		list[p] = until
		return nil
	})
	if err != nil {
		return 0, err
	}
	return l.apply(ctx)
}

// Allow removes an entry of the operator.
func (l *List) Allow(ctx context.Context, p netip.Prefix) error {
	err := l.change(func(list map[netip.Prefix]time.Time) error {
		if _, ok := list[p]; ok {
			delete(list, p)
			return nil
		}
		if l.configured[p] {
			return ErrConfigured
		}
		return ErrNoEntry
	})
	if err != nil {
		return err
	}
	_, err = l.apply(ctx)
	return err
}

// change changes the operator's entries and saves them, or neither. It calls f with l.mu.
func (l *List) change(f func(map[netip.Prefix]time.Time) error) error {
	l.changing.Lock()
	defer l.changing.Unlock()
	l.mu.Lock()
	next := maps.Clone(l.operator)
	err := f(next)
	l.mu.Unlock()
	if err != nil {
		return err
	}
	if err := l.c.Saves(func() error { return save(l.c.StateDir, next) }); err != nil {
		return err
	}
	l.mu.Lock()
	l.operator, l.lost = next, nil
	l.mu.Unlock()
	return nil
}

// Apply gives the list to the kernel program, before the first packet arrives. Run ends the flows.
func (l *List) Apply() error {
	l.applying.Lock()
	defer l.applying.Unlock()
	_, err := l.setProgram()
	return err
}

// apply gives the list to the kernel program, and ends the flows of clients that were not denied.
func (l *List) apply(ctx context.Context) (flows int, err error) {
	l.applying.Lock()
	defer l.applying.Unlock()
	added, err := l.setProgram()
	l.wake.Raise() // to end them again, or to try again
	if err != nil {
		return 0, fmt.Errorf("the list is changed, and the kernel program does not have it yet; the gateway tries "+
			"again: %w", err)
	}
	return l.endFlows(ctx, added)
}

// setProgram gives the list to the kernel program, and returns the prefixes that were not in force.
// l.applying must be held.
func (l *List) setProgram() (added []netip.Prefix, err error) {
	next := l.denials()
	err = l.c.Program.SetDenied(slices.Collect(maps.Values(next)))
	l.mu.Lock()
	l.refused = err
	l.mu.Unlock()
	if err != nil {
		return nil, err
	}
	for p := range next {
		if _, ok := l.inForce[p]; !ok {
			added = append(added, p)
		}
	}
	l.inForce = next
	if len(added) > 0 {
		l.recent, l.changed = append(l.recent, added...), time.Now()
	}
	return added, nil
}

// denials returns the entries that are not over, for the kernel program. l.applying must be held.
func (l *List) denials() map[netip.Prefix]xdpprog.Denial {
	l.mu.Lock()
	defer l.mu.Unlock()
	now, boot := time.Now(), l.c.BootNanos()
	list := make(map[netip.Prefix]xdpprog.Denial, len(l.configured)+len(l.operator))
	for p, until := range l.operator {
		left := until.Sub(now)
		switch {
		case until.IsZero():
			list[p] = xdpprog.Denial{Prefix: p}
		case left > 0:
			d := xdpprog.Denial{Prefix: p, UntilNanos: boot + uint64(left)}
			// The clocks differ by a little at each reading, which changes no entry.
			if before := l.inForce[p]; before.UntilNanos-d.UntilNanos+clockSlack < 2*clockSlack {
				d = before
			}
			list[p] = d
		}
	}
	for p := range l.configured {
		list[p] = xdpprog.Denial{Prefix: p}
	}
	return list
}

const clockSlack = uint64(time.Second / 2)

// endFlows ends the flows of clients in a list of prefixes.
func (l *List) endFlows(ctx context.Context, list []netip.Prefix) (int, error) {
	if len(list) == 0 {
		return 0, nil
	}
	var clients bart.Lite
	for _, p := range list {
		clients.Insert(p)
	}
	return l.c.Flows.DeleteClients(ctx, clients.Contains)
}

// Times of Run.
const (
	// settleTime is longer than a packet that passed the kernel program before a change may wait
	// until it opens a flow.
	settleTime = 2 * time.Second
	retryEvery = 5 * time.Second
	// lookEvery is how often the wall clock is read: somebody may set it.
	lookEvery = time.Minute
)

// Run keeps the list in force, and removes entries that are over, until ctx ends.
func (l *List) Run(ctx context.Context, beat *heartbeat.Beat) {
	defer beat.Rest()
	for wait := time.Duration(0); ; {
		beat.Rest()
		select {
		case <-ctx.Done():
			return
		case <-l.wake:
		case <-time.After(wait):
		}
		beat.Beat()
		l.removeOver()
		wait = l.step(ctx)
	}
}

// step applies the list once, and returns the time until the next step.
func (l *List) step(ctx context.Context) time.Duration {
	l.applying.Lock()
	defer l.applying.Unlock()
	added, err := l.setProgram()
	if err != nil {
		l.c.Log.Error("clients are not denied: trying again", "error", err)
		return retryEvery
	}
	l.tryEndFlows(ctx, added)
	if len(l.recent) == 0 {
		return l.untilNext()
	}
	if wait := settleTime - time.Since(l.changed); wait > 0 {
		return wait
	}
	l.tryEndFlows(ctx, l.recent)
	l.recent = nil
	return l.untilNext()
}

func (l *List) tryEndFlows(ctx context.Context, list []netip.Prefix) {
	if _, err := l.endFlows(ctx, list); err != nil && ctx.Err() == nil {
		l.c.Log.Error("flows of denied clients go on until they end", "error", err)
	}
}

// untilNext returns the time until the next entry is over.
func (l *List) untilNext() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	wait := lookEvery
	for _, until := range l.operator {
		if !until.IsZero() {
			wait = min(wait, time.Until(until))
		}
	}
	return max(wait, 10*time.Millisecond)
}

// removeOver removes entries that are over.
func (l *List) removeOver() {
	now := time.Now()
	var over []netip.Prefix
	l.mu.Lock()
	for p, until := range l.operator {
		if !until.IsZero() && !now.Before(until) {
			over = append(over, p)
		}
	}
	l.mu.Unlock()
	if len(over) == 0 {
		return
	}
	if err := l.change(func(list map[netip.Prefix]time.Time) error {
		for _, p := range over {
			if until := list[p]; !now.Before(until) {
				delete(list, p)
			}
		}
		return nil
	}); err != nil {
		l.c.Log.Debug("entries of denied clients that are over stay in the file", "error", err)
		return
	}
	for _, p := range over {
		l.c.Log.Info("client is no longer denied: its time is over", "client", p.String())
	}
}

// Views lists the entries by prefix, with the packets that the kernel program has dropped.
func (l *List) Views() ([]status.DenialView, error) {
	packets, err := l.c.Program.Denied()
	l.mu.Lock()
	defer l.mu.Unlock()
	list := []status.DenialView{}
	for p := range l.configured {
		list = append(list, status.DenialView{Client: p, From: status.DeniedByConfiguration, Packets: packets[p]})
	}
	for p, until := range l.operator {
		if !l.configured[p] {
			list = append(list, status.DenialView{Client: p, From: status.DeniedByOperator, Until: until,
				Packets: packets[p]})
		}
	}
	slices.SortFunc(list, func(a, b status.DenialView) int { return a.Client.Compare(b.Client) })
	return list, err
}

// Denies returns the entry that denies a client, the most specific one; nil if none does.
func (l *List) Denies(client netip.Addr) *status.DenialView {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	for bits := client.BitLen(); bits > 0; bits-- {
		p, _ := client.Prefix(bits)
		if l.configured[p] {
			return &status.DenialView{Client: p, From: status.DeniedByConfiguration}
		}
		if until, ok := l.operator[p]; ok && (until.IsZero() || now.Before(until)) {
			return &status.DenialView{Client: p, From: status.DeniedByOperator, Until: until}
		}
	}
	return nil
}

// Conditions reports the number of entries, if there are any, and whether they are in force.
func (l *List) Conditions() (list []status.ConditionView) {
	l.mu.Lock()
	configured, operator, refused, lost := len(l.configured), len(l.operator), l.refused, l.lost
	l.mu.Unlock()
	if lost != nil {
		list = append(list, status.Failed("denials", "clients that the operator denied before the start are not "+
			"denied any more: deny them again, or remove the file and restart: "+lost.Error()))
	}
	switch {
	case refused != nil:
		return append(list, status.Failed(status.DenyCondition, "the kernel program does not have the list of denied "+
			"clients: "+refused.Error()))
	case lost != nil || configured+operator == 0:
		return list
	}
	return append(list, status.OK(status.DenyCondition, fmt.Sprintf("packets of clients are dropped: %d entries of "+
		"the configuration, %d of the operator; see `sluice deny list`", configured, operator)))
}

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
//
// Entries end by CLOCK_BOOTTIME, so that a step of the wall clock moves no end. The file has the
// same ends by the wall clock, for a process after a boot, and is written again after a step.
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
	// Clock returns the same moment by CLOCK_BOOTTIME, in nanoseconds, and by the wall clock; nil:
	// the machine's.
	Clock func() (nanos uint64, wall time.Time)
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
	operator   map[netip.Prefix]uint64 // until then, CLOCK_BOOTTIME; 0: without an end
	offset     int64                   // nanoseconds from CLOCK_BOOTTIME to the wall clock, at its last step
	// saved are the ends of entries of the file, if the machine has just booted: the wall clock may
	// be wrong until it is set (clockSettles), so these ends follow its steps.
	saved   map[netip.Prefix]time.Time
	refused error // why the kernel program does not have the list
	lost    error // why the previous process's entries are lost; nil after a change
	unsaved error // why the file does not have the list

	applying sync.Mutex // one call of apply at a time
	inForce  map[netip.Prefix]xdpprog.Denial
	recent   []netip.Prefix // in force since changed, or longer: flows may have begun meanwhile
	changed  time.Time
}

// New returns the list of a configuration, with the entries that the previous process saved. If
// they cannot be read, they are lost, and Conditions has the error until the operator changes the
// list.
func New(c Config, configured []netip.Prefix) *List {
	if c.Clock == nil {
		c.Clock = boottime.Now
	}
	l := &List{c: c, wake: wake.NewFlag(), configured: setOf(configured), operator: map[netip.Prefix]uint64{}}
	nanos, wall := c.Clock()
	l.offset = wall.UnixNano() - int64(nanos)
	saved, err := load(c.StateDir)
	if err != nil {
		c.Log.Error("clients that the operator denied are lost: deny them again", "error", err)
		l.lost = err
	}
	for p, until := range saved {
		l.operator[p] = l.end(until)
	}
	if nanos < clockSettles {
		l.saved = saved
	}
	return l
}

// end returns an end by CLOCK_BOOTTIME; 0 if there is none. l.mu must be held.
func (l *List) end(until time.Time) uint64 {
	if until.IsZero() {
		return 0
	}
	return uint64(max(1, until.UnixNano()-l.offset)) // before the boot: it is over
}

// until returns an end by the wall clock; zero if there is none. l.mu must be held.
func (l *List) until(end uint64) time.Time {
	if end == 0 {
		return time.Time{}
	}
	return time.Unix(0, int64(end)+l.offset)
}

// over reports whether an entry has ended.
func over(end, now uint64) bool { return end != 0 && end <= now }

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
	var end uint64
	if after > 0 {
		nanos, _ := l.c.Clock()
		end = nanos + uint64(after)
	}
	err = l.change(func(list map[netip.Prefix]uint64) error {
		if _, ok := list[p]; !ok && len(list)+len(l.configured) >= config.MaxDenied {
			return ErrFull
		}
		list[p] = end
		return nil
	})
	if err != nil {
		return 0, err
	}
	return l.apply(ctx)
}

// Allow removes an entry of the operator.
func (l *List) Allow(ctx context.Context, p netip.Prefix) error {
	err := l.change(func(list map[netip.Prefix]uint64) error {
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
func (l *List) change(f func(map[netip.Prefix]uint64) error) error {
	l.changing.Lock()
	defer l.changing.Unlock()
	l.mu.Lock()
	next := maps.Clone(l.operator)
	err := f(next)
	l.mu.Unlock()
	if err != nil {
		return err
	}
	if err := l.save(next); err != nil {
		return err
	}
	l.mu.Lock()
	for p := range l.saved {
		if end, ok := next[p]; !ok || end != l.operator[p] {
			delete(l.saved, p) // denied anew, or not any more
		}
	}
	l.operator, l.lost, l.unsaved = next, nil, nil
	l.mu.Unlock()
	return nil
}

// save writes the file. l.changing must be held.
func (l *List) save(list map[netip.Prefix]uint64) error {
	l.mu.Lock()
	ends := make(map[netip.Prefix]time.Time, len(list))
	for p, end := range list {
		ends[p] = l.until(end)
	}
	l.mu.Unlock()
	return l.c.Saves(func() error { return save(l.c.StateDir, ends) })
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
	now, _ := l.c.Clock()
	list := make(map[netip.Prefix]xdpprog.Denial, len(l.configured)+len(l.operator))
	for p, end := range l.operator {
		if !over(end, now) {
			list[p] = xdpprog.Denial{Prefix: p, UntilNanos: end}
		}
	}
	for p := range l.configured {
		list[p] = xdpprog.Denial{Prefix: p}
	}
	return list
}

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
	// lookEvery is how often the wall clock is compared: somebody may set it, by more than
	// clockSlack.
	lookEvery  = time.Minute
	clockSlack = time.Second

	// clockSettles is how long after a boot the wall clock may be wrong, in nanoseconds.
	clockSettles = uint64(10 * time.Minute)
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
		l.removeExpired()
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
	if l.unsaved != nil {
		wait = retryEvery
	}
	now, _ := l.c.Clock()
	for _, end := range l.operator {
		if end != 0 {
			wait = min(wait, time.Duration(end-now))
		}
	}
	return max(wait, 10*time.Millisecond)
}

// removeExpired removes expired entries and rewrites the file. Until the file can be written, it
// may contain expired entries, and end times from before a step of the wall clock.
func (l *List) removeExpired() {
	l.changing.Lock()
	defer l.changing.Unlock()
	now, wall := l.c.Clock()
	offset := wall.UnixNano() - int64(now)
	var ended []netip.Prefix
	l.mu.Lock()
	next := maps.Clone(l.operator)
	for p, end := range next {
		_, unsure := l.saved[p]
		if over(end, now) && !(unsure && now < clockSettles) {
			ended = append(ended, p)
			delete(next, p)
		}
	}
	stepped := time.Duration(offset-l.offset).Abs() > clockSlack
	if stepped {
		l.offset = offset
		for p, until := range l.saved {
			if _, ok := next[p]; ok {
				next[p] = l.end(until)
			}
		}
	}
	stale := len(ended) > 0 || stepped && len(next) > 0 || l.unsaved != nil
	l.operator = next
	l.mu.Unlock()
	for _, p := range ended {
		l.c.Log.Info("client is no longer denied: its time is over", "client", p.String())
	}
	if !stale {
		return
	}
	err := l.save(next)
	l.mu.Lock()
	l.unsaved = err
	l.mu.Unlock()
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
	now, _ := l.c.Clock()
	for p, end := range l.operator {
		if !l.configured[p] && !over(end, now) {
			list = append(list, status.DenialView{Client: p, From: status.DeniedByOperator, Until: l.until(end),
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
	for bits := client.BitLen(); bits > 0; bits-- {
		p, _ := client.Prefix(bits)
		if v := l.entry(p); v != nil {
			return v
		}
	}
	return nil
}

// Entry returns the entry of a prefix, without its packets; nil if there is none.
func (l *List) Entry(p netip.Prefix) *status.DenialView {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.entry(p)
}

func (l *List) entry(p netip.Prefix) *status.DenialView {
	if l.configured[p] {
		return &status.DenialView{Client: p, From: status.DeniedByConfiguration}
	}
	now, _ := l.c.Clock()
	if end, ok := l.operator[p]; ok && !over(end, now) {
		return &status.DenialView{Client: p, From: status.DeniedByOperator, Until: l.until(end)}
	}
	return nil
}

// Conditions reports the number of entries, if there are any, and whether they are in force.
func (l *List) Conditions() (list []status.ConditionView) {
	l.mu.Lock()
	configured, operator, refused, lost := len(l.configured), len(l.operator), l.refused, l.lost
	unsaved := l.unsaved
	l.mu.Unlock()
	if unsaved != nil {
		list = append(list, status.Warning("denials", "the file of denied clients cannot be written: a next process "+
			"may find entries that are over: "+unsaved.Error()))
	}
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

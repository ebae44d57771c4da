package neigh

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Status is the state of the mirror, at most a second old.
type Status struct {
	Generation uint32
	Prefixes   int      // in the View, host routes included
	Neighbours int      // tracked
	Waiting    int      // tracked, requested, never answered
	Hops       int      // IDs in use or retired
	Readings   uint64   // of routes, interfaces and addresses
	LostEvents uint64   // times the kernel dropped announcements to the mirror
	Drift      uint64   // neighbours that a reading found changed without an announcement
	Warnings   []string // kernel settings that the mirror ignores
	Full       string   // why the kernel refuses new neighbours; empty: it refused none within a minute
}

// Status returns the current status; safe for any goroutine.
func (m *Mirror) Status() Status {
	if s := m.status.Load(); s != nil {
		return *s
	}
	return Status{}
}

func (m *Mirror) report() {
	s := &Status{
		Generation: m.generation, Neighbours: len(m.tracked), Waiting: m.waiting.len(), Hops: len(m.ids.byKey),
		Readings: m.counts.readings, LostEvents: m.counts.lost, Drift: m.counts.drift, Warnings: slices.Concat(m.rules,
			m.multipath),
	}
	if !m.full.at.IsZero() && m.now().Sub(m.full.at) < fullFor {
		s.Full = m.full.why
	}
	if m.routes != nil {
		s.Prefixes = m.routes.Size()
	}
	m.status.Store(s)
}

// tableFull is the last refusal of a new neighbour by the kernel.
type tableFull struct {
	at  time.Time
	why string
}

// fullFor is how long a refusal is reported.
const fullFor = time.Minute

// refused logs an error of a request to the kernel, and reports that the neighbour table is full.
func (m *Mirror) refused(n *neighbour, err error) {
	m.log.Debug("neighbour not requested", "error", err)
	if !errors.Is(err, unix.ENOBUFS) {
		return
	}
	family := "ipv6"
	if n.key.addr.Is4() {
		family = "ipv4"
	}
	m.full = tableFull{m.now(), fmt.Sprintf("the kernel's neighbour table is full, and new hosts of a link cannot be "+
		"reached by any program of the node: raise net.%s.neigh.default.gc_thresh3", family)}
	if m.Status().Full == "" {
		m.log.Warn(m.full.why)
		m.report()
	}
}

// readRules finds policy rules that the mirror ignores, and logs new ones.
func (m *Mirror) readRules() error {
	rules, err := m.kernel.rules()
	if err != nil {
		return err
	}
	var warnings []string
	for i := range rules {
		if r := &rules[i]; !defaultRule(r) {
			warnings = append(warnings, fmt.Sprintf("policy rule is not honoured: %s", r))
		}
	}
	logNew(m.log, warnings, m.rules)
	m.rules = warnings
	m.report()
	return nil
}

// defaultRule reports whether r is one of the kernel's default rules: tables local, main and
// default, for every packet.
func defaultRule(r *netlink.Rule) bool {
	for _, d := range [...]struct{ priority, table int }{
		{0, unix.RT_TABLE_LOCAL}, {32766, unix.RT_TABLE_MAIN}, {32767, unix.RT_TABLE_DEFAULT},
	} {
		if r.Priority == d.priority && r.Table == d.table {
			return r.Src == nil && r.Dst == nil && r.IifName == "" && r.OifName == "" && r.Mark == 0 && !r.Invert
		}
	}
	return false
}

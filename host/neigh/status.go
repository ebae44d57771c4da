package neigh

import (
	"fmt"
	"slices"

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
	if m.routes != nil {
		s.Prefixes = m.routes.Size()
	}
	m.status.Store(s)
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

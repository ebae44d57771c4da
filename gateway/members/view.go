package members

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"sluice.dev/sluice/announce/pulse"
	"sluice.dev/sluice/config"
	"sluice.dev/sluice/fastpath/copies"
	"sluice.dev/sluice/fastpath/stats"
	"sluice.dev/sluice/gateway/group"
	"sluice.dev/sluice/gateway/sources"
)

// View is the state of this gateway in its group. It must not be changed.
type View struct {
	Members []Member // by name
	// Announced are the source addresses to announce, in order.
	Announced []pulse.Source
	// Joined: this gateway has the flows of all others, and has taken back its own flows from them,
	// or has waited for that for joinWithin.
	Joined bool
	// Copied: another gateway has all flows of this one.
	Copied bool
	// Complete: this gateway knows all flows with its source addresses that others have.
	Complete bool
	// HeldPorts is the number of source ports of ended flows that other gateways may still have.
	HeldPorts       int
	SourceAddresses []sources.SourceAddress
	// Removed are removed gateways of whose flows this gateway still has copies.
	Removed []config.GroupMember
}

// Member is another gateway, as this one sees it.
type Member struct {
	Number  group.Member
	Name    string
	Address netip.AddrPort
	HasOurs bool // it has all flows of this gateway, but for Refused
	HasIts  bool // this gateway has all flows of that gateway, but for RefusedIts
	Copies  int  // number of copies of its flows here
	Lag     int  // number of changes of this gateway's flows that it has not acknowledged

	Refused, RefusedIts int // flows of this gateway that it has refused, and the reverse
}

func (v *View) closed() bool {
	return slices.ContainsFunc(v.SourceAddresses, func(s sources.SourceAddress) bool {
		return s.State == sources.Closed
	})
}

// View returns the present view. Any goroutine may call it.
func (m *Members) View() *View { return m.view.Load() }

// Errors returns, by the number of each other gateway, the error that ended the last stream with
// it; empty while it is in step. listener is the reason that other gateways cannot connect.
func (m *Members) Errors() (list [group.MaxMembers]string, listener string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, o := range m.others {
		if o != nil {
			list[i] = o.err
		}
	}
	return list, m.listen
}

// Name returns the name of another gateway, which may have been removed; owner is as in
// flowtable.Info.CopyOf. It is empty if there are no copies of that gateway's flows any more.
func (m *Members) Name(owner int) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if o := m.others[owner-1]; o != nil {
		return o.Name
	}
	return ""
}

// Slow returns the reason that the exchange has no precedence over other processes; empty: it has.
func (m *Members) Slow() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.slow
}

// Flows returns the number of begun flows by outcome: whether other gateways had a copy before the
// client got an answer.
func (m *Members) Flows() [copies.NumOutcomes]uint64 { return m.flows.Board().Flows() }

// Waits returns, by worker, how long answers of backends waited for copies of their flows.
func (m *Members) Waits() []*stats.Histogram { return m.flows.Board().Waits() }

const (
	// lookEvery is the interval of views.
	lookEvery = 20 * time.Millisecond
	// joinWithin is how long a gateway waits for its own flows and the flows of others before it
	// attracts packets.
	joinWithin = 5 * time.Second
	// staleRank is added to the rank of a gateway that is not in step with the owner: it comes
	// after all gateways that are.
	staleRank = 8
	// lostRank is the rank of an owner that lacks some of its own flows. It comes after all stale
	// ranks.
	lostRank = 2 * staleRank
)

// watch is the state of updateView. The exchange's goroutine owns it, after New.
type watch struct {
	next   int64 // when the next view is due
	began  int64 // when Run began; 0 before
	joined bool
	of     [group.MaxMembers]watched // by number
}

// watched is another gateway as an owner.
type watched struct {
	before     []int  // gateways that come before this one in its order, by number
	hasFlows   bool   // this process or the previous one was in step with it once: its flows are here
	lastInStep int64  // when this gateway was last in step with it, or the time of the first view
	away       bool   // it is out of step for so long that the copies of its flows may be outdated
	expires    bool   // away, and this gateway decides when the copies expire
	was        Member // in the previous view
}

// updateOrder computes, for each owner, the gateways that come before this one in the order of its
// source addresses.
func (m *Members) updateOrder() {
	names := []string{m.self.Name}
	for _, o := range m.others.present() {
		names = append(names, o.Name)
	}
	for i, o := range m.others {
		if o == nil {
			continue
		}
		w := &m.watch.of[i]
		w.before = nil
		for _, name := range sources.Order(o.Name, names)[1:] {
			if name == m.self.Name {
				break
			}
			at, _ := m.others.find(name)
			w.before = append(w.before, at)
		}
	}
}

// noteInherited marks the owners of copies in the previous process's table as owners whose flows
// are here. Such an owner may be gone: if this gateway did not announce its source addresses, its
// flows would end with the previous process.
func (m *Members) noteInherited() {
	for i := range m.watch.of {
		m.watch.of[i].hasFlows = m.c.Table.CopiesOf(i+1) > 0
	}
}

// updateView makes the next view if it is due.
func (m *Members) updateView() {
	w, at := &m.watch, now()
	if at < w.next {
		return
	}
	w.next = at + int64(lookEvery)
	ledger := m.flows.Ledger()
	v := &View{Complete: ledger.Complete(), HeldPorts: m.c.Table.HeldPorts(), SourceAddresses: m.sources.Addresses()}
	all := true
	for i, of := range m.others {
		switch {
		case of == nil:
			continue
		case of.removed:
			v.Removed = append(v.Removed, of.GroupMember)
			continue
		}
		o := Member{Number: group.Member(i), Name: of.Name, Address: of.Address, HasIts: m.exchange.InStep(i),
			HasOurs: ledger.View(group.Member(i)) == group.InStep, Copies: m.c.Table.CopiesOf(i + 1),
			Lag: ledger.Lag(group.Member(i)), Refused: ledger.Refused(group.Member(i)),
			RefusedIts: m.flows.Copies(i).Refused()}
		v.Copied = v.Copied || o.HasOurs
		all = all && o.HasIts
		v.Members = append(v.Members, o)
	}
	if v.Copied {
		m.joined.CompareAndSwap(0, at)
	}
	slices.SortFunc(v.Members, func(a, b Member) int { return cmp.Compare(a.Name, b.Name) })
	w.joined = w.joined || all && v.Complete || w.began != 0 && at-w.began > int64(joinWithin)
	v.Joined = w.joined
	m.updateKeepers(v, at)
	v.Announced = m.announced(v)
	m.noteChanges(v)
	m.view.Store(v)
	m.free()
}

// updateKeepers records which owners are in step, and decides for which lost owners this gateway
// expires the flows: those for which no gateway earlier in the order is in step.
func (m *Members) updateKeepers(v *View, at int64) {
	for i := range v.Members {
		o := &v.Members[i]
		w := &m.watch.of[o.Number]
		if o.HasIts || w.lastInStep == 0 {
			w.lastInStep = at
		}
		w.hasFlows = w.hasFlows || o.HasIts
		away := at-w.lastInStep > int64(m.c.KeepAfter)
		expires := away && !slices.ContainsFunc(w.before, m.exchange.InStep)
		if away != w.away || expires != w.expires {
			w.away, w.expires = away, expires
			m.flows.SetOwner(int(o.Number), away, expires)
		}
	}
}

// announced returns the source addresses to announce.
func (m *Members) announced(v *View) (list []pulse.Source) {
	for _, s := range v.SourceAddresses {
		rank := 0
		if s.State == sources.Closed && !v.Complete { // others may have flows with it that this gateway lacks
			rank = lostRank
		}
		list = append(list, pulse.Source{Address: s.Address, Rank: rank})
	}
	for i, o := range m.others {
		w := &m.watch.of[i]
		if o == nil || !w.hasFlows {
			continue
		}
		rank := 1 + len(w.before)
		if !m.exchange.InStep(i) {
			rank += staleRank
		}
		for _, a := range o.Sources {
			list = append(list, pulse.Source{Address: a, Rank: rank})
		}
	}
	slices.SortFunc(list, func(a, b pulse.Source) int { return a.Address.Compare(b.Address) })
	return list
}

// noteChanges logs changes of step with other gateways, and clears the errors of gateways in step.
func (m *Members) noteChanges(v *View) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, o := range v.Members {
		of, was := m.others[o.Number], &m.watch.of[o.Number].was
		if o.HasOurs && o.HasIts {
			of.err, of.cause = "", ""
		}
		if o.HasIts || o.HasOurs && !was.HasOurs { // HasOurs stays until the lease has run out
			of.left = 0
		}
		if was.HasOurs != o.HasOurs || was.HasIts != o.HasIts {
			m.c.Log.Info("another gateway of the group", "gateway", o.Name, "hasOurFlows", o.HasOurs, "weHaveItsFlows",
				o.HasIts, "copies", o.Copies)
		}
		*was = o
	}
}

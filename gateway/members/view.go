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
	// Joined: this gateway has the flows of all others, and has taken back its own from them, or
	// has waited for that long enough.
	Joined bool
	// Copied: another gateway has all flows of this one.
	Copied bool
	// Complete: this gateway knows all flows of its source addresses that others have.
	Complete bool
	// HeldPorts are source ports of ended flows that other gateways may still have.
	HeldPorts int
	Standings []sources.Standing
	// Removed are gateways that were removed while this one has copies of their flows.
	Removed []config.GroupMember
}

// Member is another gateway, as this one sees it.
type Member struct {
	Number  group.Member
	Name    string
	Address netip.AddrPort
	HasOurs bool // it has all flows of this gateway except Refused
	HasIts  bool // this gateway has all of its flows except RefusedIts
	Copies  int  // of its flows
	Lag     int  // changes of this gateway's flows that it has not acknowledged

	Refused, RefusedIts int // flows of this gateway that it has refused, and the reverse
}

func (v *View) closed() bool {
	return slices.ContainsFunc(v.Standings, func(s sources.Standing) bool { return s.State == sources.Closed })
}

// View returns the present view. Any goroutine may call it.
func (m *Members) View() *View { return m.view.Load() }

// Errors returns why the last stream with each other gateway has ended, by its number; empty while
// it is in step. listener is why other gateways cannot connect.
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
// flowtable.Info.CopyOf. It is empty if that one has no copies here any more.
func (m *Members) Name(owner int) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if o := m.others[owner-1]; o != nil {
		return o.Name
	}
	return ""
}

// Slow returns why the exchange has no precedence over other processes, or nothing if it has.
func (m *Members) Slow() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.slow
}

// Flows returns how many flows have begun, by whether other gateways had a copy before the client
// got an answer.
func (m *Members) Flows() [copies.NumOutcomes]uint64 { return m.flows.Board().Flows() }

// Waits returns, by worker, how long backends' answers waited for copies of their flows.
func (m *Members) Waits() []*stats.Histogram { return m.flows.Board().Waits() }

const (
	// lookEvery is the interval of views.
	lookEvery = 20 * time.Millisecond
	// joinWithin is how long a gateway waits for its own flows and those of others before it
	// attracts packets.
	joinWithin = 5 * time.Second
	// staleRank is added to the rank of a gateway that is not in step with the owner: it comes
	// after all that are.
	staleRank = 8
	// lostRank is the rank of an owner that lacks some of its flows. It is after all stale ranks.
	lostRank = 2 * staleRank
)

// watch is the state of look. The exchange's goroutine owns it, after New.
type watch struct {
	next   int64 // when to look again
	began  int64 // when Run began; 0 before
	joined bool
	of     [group.MaxMembers]watched // by number
}

// watched is another gateway as an owner.
type watched struct {
	before []int  // gateways that come before this one in its order, by number
	whole  bool   // this gateway or its previous process was in step with it once: it has its flows
	heard  int64  // when this gateway was in step with it last, or began to look
	away   bool   // it was heard last so long ago that its copies may be outdated
	keeps  bool   // away, and this gateway decides when its flows are over
	was    Member // in the view before
}

// order notes in which order gateways come for the source addresses of each.
func (m *Members) order() {
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

// noteKept notes the owners of copies in the table of the previous process. Such an owner may be
// gone: without a route to its source addresses here, its flows would end with the previous
// process.
func (m *Members) noteKept() {
	for i := range m.watch.of {
		m.watch.of[i].whole = m.c.Table.CopiesOf(i+1) > 0
	}
}

// look makes the next view if it is time.
func (m *Members) look() {
	w, at := &m.watch, now()
	if at < w.next {
		return
	}
	w.next = at + int64(lookEvery)
	ledger := m.flows.Ledger()
	v := &View{Complete: ledger.Complete(), HeldPorts: m.c.Table.HeldPorts(), Standings: m.sources.Standings()}
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
	m.keep(v, at)
	v.Announced = m.announced(v)
	m.note(v)
	m.view.Store(v)
	m.free()
}

// keep notes which owners are heard, and decides whose flows this gateway ends: an owner's
// that is gone, while no gateway before this one is there.
func (m *Members) keep(v *View, at int64) {
	for i := range v.Members {
		o := &v.Members[i]
		w := &m.watch.of[o.Number]
		if o.HasIts || w.heard == 0 {
			w.heard = at
		}
		w.whole = w.whole || o.HasIts
		away := at-w.heard > int64(m.c.KeepAfter)
		keeps := away && !slices.ContainsFunc(w.before, m.exchange.InStep)
		if away != w.away || keeps != w.keeps {
			w.away, w.keeps = away, keeps
			m.flows.Keep(int(o.Number), away, keeps)
		}
	}
}

// announced returns the source addresses to announce.
func (m *Members) announced(v *View) (list []pulse.Source) {
	for _, s := range v.Standings {
		rank := 0
		if s.State == sources.Closed && !v.Complete { // others know flows of it that this gateway does not
			rank = lostRank
		}
		list = append(list, pulse.Source{Address: s.Address, Rank: rank})
	}
	for i, o := range m.others {
		w := &m.watch.of[i]
		if o == nil || !w.whole {
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

// note logs which gateways are in step, and forgets the errors of those that are.
func (m *Members) note(v *View) {
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

package members

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"sluice.dev/sluice/announce/layer2/frame"
	"sluice.dev/sluice/announce/layer2/hello"
)

// Config configures Members.
type Config struct {
	// Name is this member's. Incarnation is greater than that of all Members of this process
	// before: so it tells others that sequence and list begin anew. Ours reports whether Members of
	// this process have an incarnation, or had it lately.
	Name        string
	Incarnation uint64
	Ours        func(incarnation uint64) bool
	// Every is the time between hellos. A member that is silent for Silent of them is dead.
	Every  time.Duration
	Silent int
	// Settle is how long a member that joins takes no VIP, and longer while the list of one that
	// is alive has not come wholly: maxJoin times that at most. All members must have the same.
	Settle time.Duration
	// Return is how long the VIPs of a member are kept whose process ended, and whose gateway
	// forwards on, until its next process is heard. 0: this member asks nobody to keep its own.
	Return time.Duration
	// Nonce returns a number that nobody can guess.
	Nonce func() uint64
}

// Refusals of Receive, beside those of package hello.
const (
	Own      hello.Refusal = "own"       // it is ours: another interface of this node is on the link, too
	SameName hello.Refusal = "same_name" // another node has this one's name
	Replayed hello.Refusal = "replayed"  // it is older than one that was used
	Unproven hello.Refusal = "unproven"  // nothing in it is of now; so is the first one of who joins
	Full     hello.Refusal = "full"      // there are too many members
)

// maxJoin bounds how long a member joins that waits for lists, in times of Settle.
const maxJoin = 5

// maxNonces is how many of the last nonces are known. One is made whenever a member is lost, and
// what members send back is some intervals old at most.
const maxNonces = 64

// Standing is a VIP and whether this gateway would forward it.
type Standing struct {
	VIP      netip.Addr
	Eligible bool
	Rank     Rank
}

// Rank orders those that would forward a VIP: of the best rank that there is one is chosen.
type Rank uint8

// The ranks, the best first.
const (
	Stays Rank = iota
	Leaves
	LastResort
	ranks
)

// Members is what one gateway knows of those of a link.
type Members struct {
	config Config
	nonces []uint64 // the newest last
	minted int      // how many were made
	floor  int      // the first nonce that proves something of a member that is not known, by number
	others map[string]*member

	ready   bool
	gone    bool // goodbye was said
	keep    bool // others were asked to keep the VIPs
	settles bool // no VIP is taken: it is not joins yet, or a list has not come
	joins   time.Time
	out     outgoing
	last    time.Time // of Tick

	watched  []netip.Addr        // VIPs whose owner is asked for, in order
	eligible map[netip.Addr]Rank // those that this gateway would forward
	owners   map[netip.Addr]Owner
	gained   []netip.Addr
	lost     []netip.Addr
	changes  uint64
	version  uint64
}

// member is another one.
type member struct {
	name  string
	mac   frame.MAC
	alive bool
	since time.Time // it is alive, or is not
	why   string    // it is not

	incarnation, sequence uint64
	proves                int       // the first nonce that proves a hello to be of now, by number
	nonce                 uint64    // its own
	told                  time.Time // when it was received last, used or not
	heard                 time.Time // when a hello was used last
	hearsUs, joining      bool

	// Since replays hellos have been refused as Replayed, without a pause of a silence, and none
	// was used. The last one came at replayed.
	replays, replayed time.Time

	table // what it lists

	// kept has the VIPs that it is to have again: its process ended, or its next one joins. That
	// ends with keptUntil, if it is not heard, or joins for longer than that takes.
	kept      map[netip.Addr]listed
	keptUntil time.Time
}

// New returns Members without others. A process joins when it starts.
func New(c Config, now time.Time) *Members {
	m := &Members{config: c, others: map[string]*member{}, owners: map[netip.Addr]Owner{}, last: now,
		eligible: map[netip.Addr]Rank{}, settles: true, joins: now.Add(c.Settle)}
	m.mint()
	m.out.list(nil)
	m.out.next = now
	return m
}

func (m *Members) mint() {
	m.minted++
	m.nonces = append(m.nonces, m.config.Nonce())
	if len(m.nonces) > maxNonces {
		m.nonces = m.nonces[1:]
	}
}

// OnlyReplays reports whether a member says what is refused as Replayed, and nothing else, for
// longer than a silence: of one that lives hellos are used meanwhile.
func (m *Members) OnlyReplays(name string, now time.Time) bool {
	o := m.others[name]
	return o != nil && now.Sub(o.replayed) <= m.silence() && now.Sub(o.replays) > m.silence()
}

// listsOurs reports whether a member has heard us since we made a nonce, by its number.
func (m *Members) listsOurs(h *hello.Hello, since int) bool {
	first := m.minted - len(m.nonces)
	for i, n := range m.nonces {
		if first+i >= since && slices.Contains(h.Heard, n) {
			return true
		}
	}
	return false
}

func (m *Members) joining() bool { return m.gone || !m.ready || m.settles }

// settle begins to join.
func (m *Members) settle(now time.Time) {
	m.settles, m.joins = true, now.Add(m.config.Settle)
	m.out.now = true
}

// unknown returns the members that are alive and whose lists have not come wholly.
func (m *Members) unknown() (names []string) {
	for _, o := range m.others {
		if o.alive && !o.whole {
			names = append(names, o.name)
		}
	}
	slices.Sort(names)
	return names
}

// joinsAtMost is when a member that joins does not wait for lists any more.
func (m *Members) joinsAtMost() time.Time { return m.joins.Add((maxJoin - 1) * m.config.Settle) }

// enter ends joining when it is time to.
func (m *Members) enter(now time.Time) {
	if !m.settles || now.Before(m.joins) || now.Before(m.joinsAtMost()) && len(m.unknown()) > 0 {
		return
	}
	m.settles, m.out.now = false, true
	m.version++
	m.decide()
}

// Rejoin is called when the link has come up, and by what shows that others take us for dead.
func (m *Members) Rejoin(now time.Time) {
	m.settle(now)
	m.decide()
}

// SetVIPs replaces the VIPs whose owner is asked for. ready says whether the gateway works at all.
func (m *Members) SetVIPs(list []Standing, ready bool, now time.Time) {
	var watched []netip.Addr
	eligible := map[netip.Addr]Rank{}
	var own []hello.Entry
	for _, s := range list {
		watched = append(watched, s.VIP)
		if s.Eligible {
			eligible[s.VIP] = s.Rank
		}
		own = append(own, hello.Entry{VIP: s.VIP, Leaving: s.Eligible && s.Rank == Leaves,
			LastResort: s.Eligible && s.Rank == LastResort, Not: !s.Eligible})
	}
	same := maps.Equal(eligible, m.eligible) && slices.Equal(watched, m.watched)
	if same && ready == m.ready {
		return
	}
	if ready && !m.ready {
		m.settle(now)
	}
	m.ready, m.watched, m.eligible = ready, watched, eligible
	if !same {
		slices.SortFunc(own, func(a, b hello.Entry) int { return a.VIP.Compare(b.VIP) })
		m.out.list(own)
	}
	m.decide()
}

// Receive takes a hello, of whom has a key. It returns why it is not used.
func (m *Members) Receive(h *hello.Hello, from frame.MAC, now time.Time) hello.Refusal {
	if h.Name == m.config.Name {
		if m.config.Ours(h.Incarnation) {
			return Own
		}
		return SameName
	}
	o := m.others[h.Name]
	if o == nil {
		if o = m.add(h.Name, now); o == nil {
			return Full
		}
	}
	same := h.Incarnation == o.incarnation
	if same && h.Sequence <= o.sequence || o.alive && h.Incarnation < o.incarnation {
		if now.Sub(o.replayed) > m.silence() {
			o.replays = now
		}
		o.replayed = now
		return Replayed
	}
	o.nonce, o.told = h.Nonce, now // so that it hears that we hear it
	if !(o.alive && same) && !m.listsOurs(h, o.proves) {
		return Unproven
	}
	m.use(o, h, from, now)
	return ""
}

// add makes a place for a member. Those that were lost longest ago give way.
func (m *Members) add(name string, now time.Time) *member {
	if len(m.others) >= hello.MaxHeard {
		var oldest *member
		for _, o := range m.others {
			if !o.alive && (oldest == nil || o.told.Before(oldest.told)) {
				oldest = o
			}
		}
		if oldest == nil {
			return nil
		}
		delete(m.others, oldest.name)
		m.floor = m.minted // what proves that one is of now is not known any more
		m.mint()
	}
	m.others[name] = &member{name: name, since: now, why: "it has not proven yet that it is there", proves: m.floor}
	return m.others[name]
}

// use takes what a hello says, which is of now.
func (m *Members) use(o *member, h *hello.Hello, from frame.MAC, now time.Time) {
	before := *o
	o.replays, o.replayed = time.Time{}, time.Time{}
	if h.Incarnation != o.incarnation {
		o.incarnation, o.hearsUs, o.table = h.Incarnation, false, table{}
	}
	o.sequence, o.heard, o.mac, o.joining = h.Sequence, now, from, h.Joining
	switch {
	case h.Goodbye:
		m.lose(o, "it said goodbye", now)
	case h.Returning:
		var vips map[netip.Addr]listed
		if o.whole {
			vips = o.vips
		}
		m.lose(o, "its process ended, and is to return", now)
		o.kept, o.keptUntil = vips, now.Add(m.config.Return)
	default:
		m.useList(o, h, &before, now)
		return
	}
	m.enter(now)
	m.decide()
}

// useList takes a hello of who stays, and what it lists. before is the member as it was.
func (m *Members) useList(o *member, h *hello.Hello, before *member, now time.Time) {
	if !o.alive {
		m.version++
		o.alive, o.since, o.why = true, now, ""
		if o.kept != nil {
			o.keptUntil = now.Add(m.config.Settle + m.silence())
		}
	}
	heard := o.hearsUs
	if o.hearsUs = m.listsOurs(h, 0); o.hearsUs && !heard {
		m.out.again() // it does not know our list, or not as it is now
		m.version++
	}
	changed := o.take(h)
	back := o.kept != nil && !o.joining
	if back {
		o.kept = nil
	}
	if heard && !o.hearsUs && !m.joining() {
		m.Rejoin(now)
		return
	}
	switch {
	case back || o.alive != before.alive || o.joining != before.joining || o.whole != before.whole:
		m.decide()
	case o.whole:
		m.decideOf(changed)
	}
	m.enter(now)
	if o.hearsUs && o.whole && !o.joining && (!before.hearsUs || !before.whole) {
		m.announceAgain()
	}
}

// announceAgain tells everybody of all VIPs that are here. A member may have had each of them, too,
// while it or we did not hear the other one: what it lists is not asked, since that is the list of
// before, which lacks VIPs that came meanwhile, or one of now, which lacks those that went.
func (m *Members) announceAgain() {
	pending := make(map[netip.Addr]bool, len(m.gained))
	for _, vip := range m.gained {
		pending[vip] = true
	}
	for _, vip := range m.watched {
		if m.Owns(vip) && !pending[vip] {
			m.gained = append(m.gained, vip)
		}
	}
}

// lose marks a member as not alive. Only hellos of from now on bring it back.
func (m *Members) lose(o *member, why string, now time.Time) {
	o.proves = m.minted
	m.mint()
	o.alive, o.since, o.why, o.hearsUs, o.kept = false, now, why, false, nil
	m.version++
}

// Tick looks who is dead. It must be called once each Every at least.
func (m *Members) Tick(now time.Time) {
	if stood := now.Sub(m.last) - m.config.Every; stood > m.config.Every/2 {
		for _, o := range m.others {
			o.heard = o.heard.Add(stood)
			o.told = o.told.Add(stood) // so that it hears that it is heard
		}
	}
	m.last = now
	ended := false
	for _, o := range m.others {
		if o.kept != nil && !now.Before(o.keptUntil) {
			o.kept, ended = nil, true
			if !o.alive {
				o.why = fmt.Sprintf("its process ended, and did not return within %v", m.config.Return)
			}
		}
		if o.alive && !now.Before(m.deadline(o)) {
			m.lose(o, fmt.Sprintf("it has been silent for %v", m.silence()), now)
			ended = true
		}
	}
	if ended {
		m.version++
		m.out.now = true
		m.decide()
	}
	m.enter(now)
}

func (m *Members) silence() time.Duration { return time.Duration(m.config.Silent) * m.config.Every }

// deadline is when a member is dead. A process that returns has more time: whoever starts may stand
// still for a moment, and another one answers for it meanwhile.
func (m *Members) deadline(o *member) time.Time {
	if o.kept != nil {
		return o.keptUntil
	}
	return o.heard.Add(m.silence())
}

// Next returns when Tick or Hellos must be called at the latest.
func (m *Members) Next() time.Time {
	next := m.out.next
	earlier := func(t time.Time) {
		if t.Before(next) {
			next = t
		}
	}
	for _, o := range m.others {
		if o.alive {
			earlier(m.deadline(o))
		}
		if o.kept != nil {
			earlier(o.keptUntil)
		}
	}
	switch {
	case m.settles && m.last.Before(m.joins):
		earlier(m.joins)
	case m.settles:
		earlier(m.joinsAtMost())
	}
	return next
}

// Member is another gateway of the link.
type Member struct {
	Name           string
	MAC            frame.MAC
	Alive, Joining bool
	Returning      bool // its process ended, and its VIPs are kept for the next one
	HearsUs        bool
	Since          time.Time // it is alive, or is not
	Why            string    // it is not
	VIPs           int       // that it has
}

// List returns the others, by name.
func (m *Members) List() []Member {
	has := map[string]int{}
	for _, o := range m.owners {
		has[o.Name]++
	}
	list := make([]Member, 0, len(m.others))
	for _, o := range m.others {
		returning, why := o.kept != nil && !o.alive, o.why
		if m.OnlyReplays(o.name, m.last) {
			why += "; what it says now is older than that"
		}
		list = append(list, Member{o.name, o.mac, o.alive, o.joining, returning, o.hearsUs, o.since, why,
			has[o.name]})
	}
	slices.SortFunc(list, func(a, b Member) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

// NameOf returns who has sent hellos from a hardware address; empty: nobody.
func (m *Members) NameOf(mac frame.MAC) string {
	for _, o := range m.others {
		if o.mac == mac {
			return o.name
		}
	}
	return ""
}

// MACOf returns where the hellos of a member come from.
func (m *Members) MACOf(name string) frame.MAC {
	if o := m.others[name]; o != nil {
		return o.mac
	}
	return frame.MAC{}
}

// Joining reports whether no VIP is taken.
func (m *Members) Joining() bool { return m.joining() }

// Joins returns until when no VIP is taken; zero: they are. With lists, of whom the list of VIPs
// has not come wholly, it is the latest time.
func (m *Members) Joins(now time.Time) (until time.Time, lists []string) {
	switch {
	case !m.settles:
		return time.Time{}, nil
	case now.Before(m.joins):
		return m.joins, nil
	}
	return m.joinsAtMost(), m.unknown()
}

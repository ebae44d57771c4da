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
	// Name is this member's name. Incarnation must be greater than the ones of all earlier Members
	// of this process: it tells the others that sequence and list start again. IsOwn reports
	// whether a Members of this process has an incarnation, or had it recently.
	Name        string
	Incarnation uint64
	IsOwn       func(incarnation uint64) bool
	// Every is the interval of hellos. A member is dead after Silent intervals without one.
	Every  time.Duration
	Silent int
	// JoinTime is how long a joining member takes no VIP. It takes longer, at most maxJoin times
	// that, while the list of a live member is incomplete. All members must have the same.
	JoinTime time.Duration
	// Return is how long the others keep the VIPs of a member whose process ended while its gateway
	// continues to forward. 0: this member does not ask the others to keep its VIPs.
	Return time.Duration
	// Nonce returns an unpredictable number.
	Nonce func() uint64
}

// Reasons of Receive, in addition to the reasons in package hello.
const (
	Own      hello.RejectReason = "own"       // from this node: it has another interface on the link
	SameName hello.RejectReason = "same_name" // from another node with this one's name
	Replayed hello.RejectReason = "replayed"  // older than an accepted one
	Unproven hello.RejectReason = "unproven"  // not proven fresh, as the first hello of a new member
	Full     hello.RejectReason = "full"      // there are too many members
)

// maxJoin bounds how long a member joins while lists are incomplete, in multiples of JoinTime.
const maxJoin = 5

// maxNonces is how many of the last nonces are valid. A new one is made whenever a member is lost,
// and nonces in received hellos are at most a few intervals old.
const maxNonces = 64

// LocalVIP is a VIP and whether this gateway would forward it.
type LocalVIP struct {
	VIP      netip.Addr
	Eligible bool
	Rank     Rank
}

// Rank orders the candidates of a VIP: only candidates of the best rank are considered.
type Rank uint8

// The ranks, the best first.
const (
	Stays Rank = iota
	Leaves
	LastResort
	ranks
)

// Members is one gateway's view of the gateways on a link.
type Members struct {
	config      Config
	nonces      []uint64 // the newest last
	nonceCount  int      // count of nonces made
	lowestNonce int      // number of the first nonce that proves a hello of an unknown member fresh
	others      map[string]*member

	ready         bool
	saidGoodbye   bool // a goodbye was sent
	keepRequested bool // the goodbye asked the others to keep the VIPs
	joinPending   bool // this member takes no VIP: joinEnds has not passed, or a list is incomplete
	joinEnds      time.Time
	out           outgoing
	last          time.Time // of the last Tick

	watched  []netip.Addr        // all VIPs, in order
	eligible map[netip.Addr]Rank // VIPs that this gateway would forward
	owners   map[netip.Addr]Owner
	gained   []netip.Addr
	lost     []netip.Addr
	changes  uint64
	version  uint64
}

// member is another gateway.
type member struct {
	name  string
	mac   frame.MAC
	alive bool
	since time.Time // when alive changed last
	why   string    // why it is not alive

	incarnation, sequence uint64
	lowestNonce           int       // number of the first nonce that proves a hello fresh
	nonce                 uint64    // its own, as last received
	lastReceived          time.Time // when a hello was received last, accepted or not
	lastAccepted          time.Time // when a hello was accepted last
	receivesUs, joining   bool

	// replaysSince is when the present series of Replayed hellos began: without an accepted hello,
	// and without a pause of a silence. Its last one arrived at lastReplay.
	replaysSince, lastReplay time.Time

	table // its list of VIPs

	// kept are the VIPs that are kept for its next process: its process ended, or the next one
	// joins. They are dropped at keptUntil if that process is not heard or has not joined by then.
	kept      map[netip.Addr]listed
	keptUntil time.Time
}

// New returns Members without other members. The new member joins.
func New(c Config, now time.Time) *Members {
	m := &Members{config: c, others: map[string]*member{}, owners: map[netip.Addr]Owner{}, last: now,
		eligible: map[netip.Addr]Rank{}, joinPending: true, joinEnds: now.Add(c.JoinTime)}
	m.newNonce()
	m.out.list(nil)
	m.out.next = now
	return m
}

func (m *Members) newNonce() {
	m.nonceCount++
	m.nonces = append(m.nonces, m.config.Nonce())
	if len(m.nonces) > maxNonces {
		m.nonces = m.nonces[1:]
	}
}

// OnlyReplays reports whether all hellos of a member have been Replayed for longer than a silence.
// A live member's hellos are accepted meanwhile.
func (m *Members) OnlyReplays(name string, now time.Time) bool {
	o := m.others[name]
	return o != nil && now.Sub(o.lastReplay) <= m.silence() && now.Sub(o.replaysSince) > m.silence()
}

// hasOwnNonce reports whether a hello contains one of this member's nonces, from the number since
// on.
func (m *Members) hasOwnNonce(h *hello.Hello, since int) bool {
	first := m.nonceCount - len(m.nonces)
	for i, n := range m.nonces {
		if first+i >= since && slices.Contains(h.Heard, n) {
			return true
		}
	}
	return false
}

func (m *Members) joining() bool { return m.saidGoodbye || !m.ready || m.joinPending }

// beginJoin makes this member join.
func (m *Members) beginJoin(now time.Time) {
	m.joinPending, m.joinEnds = true, now.Add(m.config.JoinTime)
	m.out.now = true
}

// incomplete returns the names of live members whose lists have not arrived completely.
func (m *Members) incomplete() (names []string) {
	for _, o := range m.others {
		if o.alive && !o.whole {
			names = append(names, o.name)
		}
	}
	slices.Sort(names)
	return names
}

// latestJoinEnd returns when a joining member stops waiting for lists.
func (m *Members) latestJoinEnd() time.Time { return m.joinEnds.Add((maxJoin - 1) * m.config.JoinTime) }

// finishJoin ends the join if it is time.
func (m *Members) finishJoin(now time.Time) {
	if !m.joinPending || now.Before(m.joinEnds) || now.Before(m.latestJoinEnd()) && len(m.incomplete()) > 0 {
		return
	}
	m.joinPending, m.out.now = false, true
	m.version++
	m.decide()
}

// Rejoin makes this member join again: the link has come up, or others have taken it for dead.
func (m *Members) Rejoin(now time.Time) {
	m.beginJoin(now)
	m.decide()
}

// SetVIPs replaces the VIPs of this gateway. ready: the gateway forwards or is held.
func (m *Members) SetVIPs(list []LocalVIP, ready bool, now time.Time) {
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
		m.beginJoin(now)
	}
	m.ready, m.watched, m.eligible = ready, watched, eligible
	if !same {
		slices.SortFunc(own, func(a, b hello.Entry) int { return a.VIP.Compare(b.VIP) })
		m.out.list(own)
	}
	m.decide()
}

// Receive takes an authenticated hello. It returns why it does not use it.
func (m *Members) Receive(h *hello.Hello, from frame.MAC, now time.Time) hello.RejectReason {
	if h.Name == m.config.Name {
		if m.config.IsOwn(h.Incarnation) {
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
		if now.Sub(o.lastReplay) > m.silence() {
			o.replaysSince = now
		}
		o.lastReplay = now
		return Replayed
	}
	o.nonce, o.lastReceived = h.Nonce, now // sent back in the next hello
	if !(o.alive && same) && !m.hasOwnNonce(h, o.lowestNonce) {
		return Unproven
	}
	m.accept(o, h, from, now)
	return ""
}

// add adds a member. If there are too many, it replaces the one that was lost longest ago.
func (m *Members) add(name string, now time.Time) *member {
	if len(m.others) >= hello.MaxHeard {
		var oldest *member
		for _, o := range m.others {
			if !o.alive && (oldest == nil || o.lastReceived.Before(oldest.lastReceived)) {
				oldest = o
			}
		}
		if oldest == nil {
			return nil
		}
		delete(m.others, oldest.name)
		m.lowestNonce = m.nonceCount // the replaced member's minimum is lost: accept only new nonces
		m.newNonce()
	}
	m.others[name] = &member{name: name, since: now, why: "none of its hellos was proven fresh yet",
		lowestNonce: m.lowestNonce}
	return m.others[name]
}

// accept takes the content of a fresh hello.
func (m *Members) accept(o *member, h *hello.Hello, from frame.MAC, now time.Time) {
	before := *o
	o.replaysSince, o.lastReplay = time.Time{}, time.Time{}
	if h.Incarnation != o.incarnation {
		o.incarnation, o.receivesUs, o.table = h.Incarnation, false, table{}
	}
	o.sequence, o.lastAccepted, o.mac, o.joining = h.Sequence, now, from, h.Joining
	switch {
	case h.Goodbye:
		m.lose(o, "it said goodbye", now)
	case h.Returning:
		var vips map[netip.Addr]listed
		if o.whole {
			vips = o.vips
		}
		m.lose(o, "its process ended, and will return", now)
		o.kept, o.keptUntil = vips, now.Add(m.config.Return)
	default:
		m.acceptList(o, h, &before, now)
		return
	}
	m.finishJoin(now)
	m.decide()
}

// acceptList takes a hello of a member that stays, and its list. before is its previous state.
func (m *Members) acceptList(o *member, h *hello.Hello, before *member, now time.Time) {
	if !o.alive {
		m.version++
		o.alive, o.since, o.why = true, now, ""
		if o.kept != nil {
			o.keptUntil = now.Add(m.config.JoinTime + m.silence())
		}
	}
	heard := o.receivesUs
	if o.receivesUs = m.hasOwnNonce(h, 0); o.receivesUs && !heard {
		m.out.again() // it has no list of ours, or an old one
		m.version++
	}
	changed := o.take(h)
	back := o.kept != nil && !o.joining
	if back {
		o.kept = nil
	}
	if heard && !o.receivesUs && !m.joining() {
		m.Rejoin(now)
		return
	}
	switch {
	case back || o.alive != before.alive || o.joining != before.joining || o.whole != before.whole:
		m.decide()
	case o.whole:
		m.decideOf(changed)
	}
	m.finishJoin(now)
	if o.receivesUs && o.whole && !o.joining && (!before.receivesUs || !before.whole) {
		m.announceAgain()
	}
}

// announceAgain announces all VIPs of this gateway. Another member may have owned any of them while
// hellos did not arrive. Its list does not show which ones: the old list lacks VIPs that it gained
// since, the new list lacks VIPs that it gave up.
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

// lose marks a member as not alive. Only hellos with a nonce made from now on bring it back.
func (m *Members) lose(o *member, why string, now time.Time) {
	o.lowestNonce = m.nonceCount
	m.newNonce()
	o.alive, o.since, o.why, o.receivesUs, o.kept = false, now, why, false, nil
	m.version++
}

// Tick finds dead members. It must be called at least once per Every.
func (m *Members) Tick(now time.Time) {
	if stood := now.Sub(m.last) - m.config.Every; stood > m.config.Every/2 {
		for _, o := range m.others {
			o.lastAccepted = o.lastAccepted.Add(stood)
			o.lastReceived = o.lastReceived.Add(stood) // so that its nonce is sent back
		}
	}
	m.last = now
	ended := false
	for _, o := range m.others {
		if o.kept != nil && !now.Before(o.keptUntil) {
			o.kept, ended = nil, true
			if !o.alive {
				o.why = fmt.Sprintf("its process ended and did not return within %v", m.config.Return)
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
	m.finishJoin(now)
}

func (m *Members) silence() time.Duration { return time.Duration(m.config.Silent) * m.config.Every }

// deadline returns when a member is dead. A returning process has more time: it may be slow for a
// moment when it starts, and another member answers for it meanwhile.
func (m *Members) deadline(o *member) time.Time {
	if o.kept != nil {
		return o.keptUntil
	}
	return o.lastAccepted.Add(m.silence())
}

// Next returns the latest time of the next call of Tick or Hellos.
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
	case m.joinPending && m.last.Before(m.joinEnds):
		earlier(m.joinEnds)
	case m.joinPending:
		earlier(m.latestJoinEnd())
	}
	return next
}

// Member is another gateway of the link.
type Member struct {
	Name           string
	MAC            frame.MAC
	Alive, Joining bool
	Returning      bool // its process ended, and its VIPs are kept for the next process
	HearsUs        bool
	Since          time.Time // when Alive changed last
	Why            string    // why it is not alive
	VIPs           int       // how many it owns
}

// List returns the other members, by name.
func (m *Members) List() []Member {
	has := map[string]int{}
	for _, o := range m.owners {
		has[o.Name]++
	}
	list := make([]Member, 0, len(m.others))
	for _, o := range m.others {
		returning, why := o.kept != nil && !o.alive, o.why
		if m.OnlyReplays(o.name, m.last) {
			why += "; its hellos since then are older ones"
		}
		list = append(list, Member{o.name, o.mac, o.alive, o.joining, returning, o.receivesUs, o.since, why,
			has[o.name]})
	}
	slices.SortFunc(list, func(a, b Member) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

// NameOf returns the member whose hellos come from a hardware address; empty: none.
func (m *Members) NameOf(mac frame.MAC) string {
	for _, o := range m.others {
		if o.mac == mac {
			return o.name
		}
	}
	return ""
}

// MACOf returns the hardware address of a member's hellos; zero if it is unknown.
func (m *Members) MACOf(name string) frame.MAC {
	if o := m.others[name]; o != nil {
		return o.mac
	}
	return frame.MAC{}
}

// Joining reports whether this member takes no VIP now.
func (m *Members) Joining() bool { return m.joining() }

// Joins returns until when this member takes no VIP; zero: it does. If incomplete is not empty,
// until is the latest time, and incomplete has the members with incomplete lists.
func (m *Members) Joins(now time.Time) (until time.Time, incomplete []string) {
	switch {
	case !m.joinPending:
		return time.Time{}, nil
	case now.Before(m.joinEnds):
		return m.joinEnds, nil
	}
	return m.latestJoinEnd(), m.incomplete()
}

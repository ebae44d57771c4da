package members

import (
	"bytes"
	"crypto/sha256"
	"net/netip"
	"slices"
	"strings"

	"sluice.dev/sluice/announce/layer2/frame"
)

// Owner is the owner of a VIP. The zero value is no owner.
type Owner struct {
	Name string
	// Among are the candidates, by name.
	Among []string
	// For is the member that answers for the owner while that one's process is away and its gateway
	// forwards. It knows the VIP but need not forward it. Empty: the owner answers.
	For string
}

// Owns reports whether this gateway owns a VIP.
func (m *Members) Owns(vip netip.Addr) bool {
	o, there := m.owners[vip]
	return there && o.Name == m.config.Name
}

// AnswersFor returns the hardware address of a VIP's owner, if the owner's process is away and this
// gateway must answer for it.
func (m *Members) AnswersFor(vip netip.Addr) (at frame.MAC, yes bool) {
	o := m.owners[vip]
	if o.For == "" || o.For != m.config.Name {
		return at, false
	}
	return m.MACOf(o.Name), true
}

// Owner returns the owner of a VIP of SetVIPs.
func (m *Members) Owner(vip netip.Addr) Owner { return m.owners[vip] }

// Take returns the VIPs that this gateway has got or must announce again, and the ones that it has
// lost, since the last call.
func (m *Members) Take() (gained, lost []netip.Addr) {
	gained, lost = m.gained, m.lost
	m.gained, m.lost = nil, nil
	return gained, lost
}

// Version changes whenever a result of Owner or List may have changed.
func (m *Members) Version() uint64 { return m.version }

// Changes counts moves of VIPs from one gateway to another.
func (m *Members) Changes() uint64 { return m.changes }

// decide chooses the owner of each VIP.
func (m *Members) decide() {
	before := m.owners
	m.owners = make(map[netip.Addr]Owner, len(m.watched))
	for _, vip := range m.watched {
		m.put(vip, before[vip])
	}
	for vip, was := range before {
		if _, there := m.owners[vip]; !there && was.Name == m.config.Name {
			m.drop(vip)
		}
	}
}

// decideOf chooses the owner of some VIPs.
func (m *Members) decideOf(vips []netip.Addr) {
	for _, vip := range vips {
		if was, there := m.owners[vip]; there {
			m.put(vip, was)
		}
	}
}

// put chooses the owner of a VIP, and records changes.
func (m *Members) put(vip netip.Addr, before Owner) {
	owner := m.choose(vip)
	m.owners[vip] = owner
	switch was, is := before.Name == m.config.Name, owner.Name == m.config.Name; {
	case is && !was:
		m.gained = append(m.gained, vip)
	case was && !is:
		m.drop(vip)
	}
	if before.Name != "" && owner.Name != "" && owner.Name != before.Name {
		m.changes++
	}
	if owner.Name != before.Name || owner.For != before.For || !slices.Equal(owner.Among, before.Among) {
		m.version++
	}
}

// drop records that this gateway no longer owns a VIP.
func (m *Members) drop(vip netip.Addr) {
	m.lost = append(m.lost, vip)
	m.gained = slices.DeleteFunc(m.gained, func(a netip.Addr) bool { return a == vip })
}

// choose returns the owner of a VIP. It depends only on the live members and their lists, so all
// members with the same input choose the same owner.
func (m *Members) choose(vip netip.Addr) Owner {
	var by [ranks][]string
	var here []string // members that can answer
	if !m.joining() {
		here = append(here, m.config.Name)
		if rank, eligible := m.eligible[vip]; eligible {
			by[rank] = append(by[rank], m.config.Name)
		}
	}
	for _, o := range m.others {
		if rank, has := o.has(vip); has {
			by[rank] = append(by[rank], o.name)
		}
		if o.answers(vip) {
			here = append(here, o.name)
		}
	}
	best := by[Stays]
	for _, names := range by[Leaves:] {
		if len(best) == 0 {
			best = names
		}
	}
	slices.Sort(best)
	owner := Owner{Name: highest(best, vip), Among: best}
	if owner.Name != "" && !slices.Contains(here, owner.Name) {
		owner.For = highest(here, vip)
	}
	return owner
}

// has reports whether a member is a candidate for a VIP, and its rank: a member that is alive and
// does not join, or one that returns.
func (o *member) has(vip netip.Addr) (rank Rank, has bool) {
	l, lists := o.vips[vip]
	k, kept := o.kept[vip]
	switch {
	case o.kept == nil && (!o.alive || o.joining || !o.whole):
		return Stays, false
	case o.kept == nil:
		return l.rank, lists && !l.not
	case !o.whole: // it is away, or the list of its next process is incomplete
		return k.rank, kept && !k.not
	}
	return l.rank, lists && !l.not && kept && !k.not
}

// answers reports whether a member can answer for a VIP whose owner's process is away: it knows the
// VIP, even if it would not forward it.
func (o *member) answers(vip netip.Addr) bool {
	_, lists := o.vips[vip]
	return o.alive && !o.joining && o.whole && o.kept == nil && lists
}

// highest returns the name with the greatest hash of name and VIP (Thaler and Ravishankar, Using
// name-based mappings to increase hit rates, 1998). All versions must use the same hash.
func highest(names []string, vip netip.Addr) (winner string) {
	var most [sha256.Size]byte
	address := vip.As16()
	for _, name := range names {
		sum := sha256.Sum256(append([]byte(name+"\x00"), address[:]...))
		if c := bytes.Compare(sum[:], most[:]); winner == "" || c > 0 {
			winner, most = name, sum
		}
	}
	return winner
}

// Why returns the reason for the choice, as text.
func (o Owner) Why() string {
	switch {
	case o.For != "":
		return o.Name + " has it, whose announcer starts again: " + o.For + " answers for it meanwhile"
	case len(o.Among) == 0:
		return "no gateway of the link would forward it"
	case len(o.Among) == 1:
		return o.Name + " has it: no other gateway of the link would forward it"
	}
	return o.Name + " has it, by hash among " + strings.Join(o.Among, ", ")
}

package members

import (
	"bytes"
	"crypto/sha256"
	"net/netip"
	"slices"
	"strings"
	"time"

	"sluice.dev/sluice/control/announce/layer2/frame"
)

// Owner is who has a VIP. The zero value is nobody.
type Owner struct {
	Name string
	// Among are those that it was chosen from, by name.
	Among []string
	// For is who answers for it while its process is away and its gateway forwards on. Empty: it
	// answers itself.
	For string
}

// Owns reports whether this gateway has a VIP.
func (m *Members) Owns(vip netip.Addr) bool {
	o, there := m.owners[vip]
	return there && o.Name == m.config.Name
}

// AnswersFor returns at which hardware address a VIP is whose owner's process is away, if this
// gateway is the one to say so.
func (m *Members) AnswersFor(vip netip.Addr) (at frame.MAC, yes bool) {
	o := m.owners[vip]
	if o.For == "" || o.For != m.config.Name {
		return at, false
	}
	return m.MACOf(o.Name), true
}

// Owner returns who has a VIP that SetVIPs named.
func (m *Members) Owner(vip netip.Addr) Owner { return m.owners[vip] }

// Take returns which VIPs this gateway has got or must announce again, and which it has lost, since
// the last call.
func (m *Members) Take() (gained, lost []netip.Addr) {
	gained, lost = m.gained, m.lost
	m.gained, m.lost = nil, nil
	return gained, lost
}

// Version grows with each change of what Owner and List say.
func (m *Members) Version() uint64 { return m.version }

// Changes counts VIPs that went from one gateway to another one.
func (m *Members) Changes() uint64 { return m.changes }

// decide chooses the owner of each VIP.
func (m *Members) decide(now time.Time) {
	before := m.owners
	m.owners = make(map[netip.Addr]Owner, len(m.watched))
	for _, vip := range m.watched {
		owner := m.choose(vip, now)
		m.owners[vip] = owner
		was, is := before[vip].Name == m.config.Name, owner.Name == m.config.Name
		if is && !was {
			m.gained = append(m.gained, vip)
		}
		if before[vip].Name != "" && owner.Name != "" && owner.Name != before[vip].Name {
			m.changes++
		}
		if owner.Name != before[vip].Name || owner.For != before[vip].For ||
			!slices.Equal(owner.Among, before[vip].Among) {
			m.version++
		}
	}
	for vip, o := range before {
		if o.Name == m.config.Name && !m.Owns(vip) {
			m.lost = append(m.lost, vip)
			m.gained = slices.DeleteFunc(m.gained, func(a netip.Addr) bool { return a == vip })
		}
	}
}

// choose returns the owner of a VIP. It is a function of who is alive and lists it, so all members
// that hear the same choose the same.
func (m *Members) choose(vip netip.Addr, now time.Time) Owner {
	var stay, leave, here []string
	add := func(name string, leaving bool) {
		if leaving {
			leave = append(leave, name)
		} else {
			stay = append(stay, name)
		}
	}
	if leaving, eligible := m.eligible[vip]; eligible && !m.joining(now) {
		add(m.config.Name, leaving)
		here = append(here, m.config.Name)
	}
	for _, o := range m.others {
		if leaving, has := o.has(vip); has {
			add(o.name, leaving)
			if o.kept == nil {
				here = append(here, o.name)
			}
		}
	}
	if len(stay) == 0 {
		stay = leave
	}
	slices.Sort(stay)
	owner := Owner{Name: highest(stay, vip), Among: stay}
	if owner.Name != "" && !slices.Contains(here, owner.Name) {
		owner.For = highest(here, vip)
	}
	return owner
}

// has reports whether a member may have a VIP, and whether others are better: one that is alive and
// does not join, or one that returns.
func (o *member) has(vip netip.Addr) (leaving, has bool) {
	switch {
	case o.kept == nil && (!o.alive || o.joining):
		return false, false
	case o.vips == nil: // it is away, or what its next process forwards is not known yet
		leaving, has = o.kept[vip]
		return leaving, has
	}
	leaving, has = o.vips[vip]
	if _, kept := o.kept[vip]; o.kept != nil && !kept {
		return false, false
	}
	return leaving, has
}

// highest returns the name with the greatest hash of name and VIP (Thaler and Ravishankar, Using
// name-based mappings to increase hit rates, 1998). All versions must hash alike.
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

// Why says for people why an owner is the owner.
func (o Owner) Why() string {
	switch len(o.Among) {
	case 0:
		return "no gateway of the link would forward it"
	case 1:
		return o.Name + " has it: no other gateway of the link would forward it"
	}
	if o.For != "" {
		return o.Name + " has it, whose announcer starts again: " + o.For + " answers for it meanwhile"
	}
	return o.Name + " has it, by hash among " + strings.Join(o.Among, ", ")
}

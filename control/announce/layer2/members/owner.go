package members

import (
	"bytes"
	"crypto/sha256"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Owner is who has a VIP. The zero value is nobody.
type Owner struct {
	Name string
	// Among are those that it was chosen from, by name.
	Among []string
}

// Owns reports whether this gateway has a VIP.
func (m *Members) Owns(vip netip.Addr) bool {
	o, there := m.owners[vip]
	return there && o.Name == m.config.Name
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
		if owner.Name != before[vip].Name || !slices.Equal(owner.Among, before[vip].Among) {
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
	var stay, leave []string
	add := func(name string, leaving bool) {
		if leaving {
			leave = append(leave, name)
		} else {
			stay = append(stay, name)
		}
	}
	if leaving, eligible := m.eligible[vip]; eligible && !m.joining(now) {
		add(m.config.Name, leaving)
	}
	for _, o := range m.others {
		if leaving, lists := o.vips[vip]; lists && o.alive && !o.joining {
			add(o.name, leaving)
		}
	}
	if len(stay) == 0 {
		stay = leave
	}
	slices.Sort(stay)
	return Owner{Name: highest(stay, vip), Among: stay}
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
	return o.Name + " has it, by hash among " + strings.Join(o.Among, ", ")
}

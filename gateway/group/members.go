package group

// MaxMembers is the maximum number of gateways that have copies of one gateway's flows.
const MaxMembers = 8

// Member is a gateway of the group, as a number below MaxMembers that is only valid in this
// process.
type Member uint8

// Members is a set of members, a bit each.
type Members uint8

// One returns the set that has one member.
func One(m Member) Members { return 1 << m }

// Has reports whether the set has a member.
func (s Members) Has(m Member) bool { return s&One(m) != 0 }

func (s *Members) add(m Member)    { *s |= One(m) }
func (s *Members) remove(m Member) { *s &^= One(m) }

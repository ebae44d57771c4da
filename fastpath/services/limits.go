package services

// Limits bound the connections to a service port through one gateway; 0 is no limit. A source is an
// IPv4 address, or the /64 of an IPv6 address. A connection counts while it stands
// (flowtable.State.Stands), which a client that sees no answers cannot bring about.
type Limits struct {
	SourceConnections    uint32 // open at once, of one source
	SourceNewConnections uint32 // a second, of one source
	Connections          uint32 // open at once
	NewConnections       uint32 // a second
}

// MaxLimit bounds each of them.
const MaxLimit = 1_000_000

// Any reports whether there is a limit.
func (l *Limits) Any() bool { return *l != Limits{} }

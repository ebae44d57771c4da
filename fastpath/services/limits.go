package services

// Limits bound the connections to a service port through one gateway; 0 is no limit. A source is an
// IPv4 address, or the /64 of an IPv6 address. Only established connections count
// (flowtable.State.Assured): a client with a forged source, which sees no answers, cannot establish
// one.
type Limits struct {
	SourceConnections    uint32 // open at once, from one source
	SourceNewConnections uint32 // per second, from one source
	Connections          uint32 // open at once
	NewConnections       uint32 // per second
}

// MaxLimit is the maximum of each field of Limits.
const MaxLimit = 1_000_000

// Any reports whether there is a limit.
func (l *Limits) Any() bool { return *l != Limits{} }

package flowtable

import "sluice.dev/sluice/flowtable/conn"

// The names of package conn that are part of the table's interface.
type (
	Side      = conn.Side
	State     = conn.State
	Segment   = conn.Segment
	CopyState = conn.CopyState
	Time      = conn.Time
	Ticks     = conn.Ticks
	Timeouts  = conn.Timeouts
)

// See conn.Side and conn.State.
const (
	ClientSide = conn.ClientSide
	ReplySide  = conn.ReplySide

	None            = conn.None
	SynSeen         = conn.SynSeen
	SynRecv         = conn.SynRecv
	Unconfirmed     = conn.Unconfirmed
	Established     = conn.Established
	FinClient       = conn.FinClient
	FinBackend      = conn.FinBackend
	LastAckClient   = conn.LastAckClient
	LastAckBackend  = conn.LastAckBackend
	TimeWaitClient  = conn.TimeWaitClient
	TimeWaitBackend = conn.TimeWaitBackend
	Closed          = conn.Closed
	UDPNew          = conn.UDPNew
	UDPReplied      = conn.UDPReplied
	UDPAssured      = conn.UDPAssured
	ICMPEcho        = conn.ICMPEcho
	NumStates       = conn.NumStates
)

// DefaultTimeouts returns conn.DefaultTimeouts.
func DefaultTimeouts() Timeouts { return conn.DefaultTimeouts() }

// RFCTimeouts returns conn.RFCTimeouts.
func RFCTimeouts() Timeouts { return conn.RFCTimeouts() }

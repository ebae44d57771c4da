package flowlog

import (
	"net/netip"
	"strconv"
	"time"

	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/flowtable/conn"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/serve/status"
)

// The events of a Record.
const (
	Begin = "begin" // a flow
	End   = "end"   // a flow
	Open  = "open"  // a process continues the log
	Lost  = "lost"  // Record.Lines could not be written
	Drop  = "drop"  // a dropped packet, which stands for Record.Packets
)

// Record is a line of the log. Fields that status.FlowView also has have the same names and values
// there.
type Record struct {
	Time     time.Time      `json:"time"`
	Event    string         `json:"event"`
	Protocol string         `json:"protocol,omitempty"`
	Client   netip.AddrPort `json:"client,omitzero"`
	VIP      netip.AddrPort `json:"vip,omitzero"`
	SNAT     netip.AddrPort `json:"snat,omitzero"`
	Backend  netip.AddrPort `json:"backend,omitzero"`
	Service  string         `json:"service,omitempty"`
	// Forwarding is direct for a flow with direct return: Backend is a node.
	Forwarding string `json:"forwarding,omitempty"`

	// The fields below are set only in an End. Start is zero if it is not known, because the flow
	// is older than the log.
	Start      time.Time `json:"start,omitzero"`
	LastPacket time.Time `json:"lastPacket,omitzero"` // to a second
	State      string    `json:"state,omitempty"`
	// Closed is the way in which the connection ended, if it did: fin_client or fin_backend (the
	// side that closed first), rst_client, rst_backend, refused (by the backend). With direct
	// return rst_backend is an RST of the gateway.
	Closed string `json:"closed,omitempty"`
	// Traffic is the traffic of the whole flow; nil if it was not counted from the start on.
	Traffic *status.FlowTraffic `json:"traffic,omitempty"`
	// Why is the reason for which the gateway removed the flow (flowtable.End).
	Why string `json:"why,omitempty"`

	Lines uint64 `json:"lines,omitempty"` // of Lost

	// The fields below are set only in a Drop. Source and Destination are the packet's, if it has
	// no client.
	Reason      string         `json:"reason,omitempty"`
	Packets     uint64         `json:"packets,omitempty"`
	Reply       bool           `json:"reply,omitempty"` // the packet was towards the client
	Source      netip.AddrPort `json:"source,omitzero"`
	Destination netip.AddrPort `json:"destination,omitzero"`
}

// closedOf returns Record.Closed of an End.
func closedOf(e *flowtable.Event) string {
	switch {
	case e.State == flowtable.Closed:
		return "refused"
	case e.Reset && e.ResetBy == flowtable.ClientSide:
		return "rst_client"
	case e.Reset:
		return "rst_backend"
	case e.Fin, e.State == flowtable.LastAckClient, e.State == flowtable.TimeWaitClient:
		return "fin_client"
	case e.State == flowtable.LastAckBackend, e.State == flowtable.TimeWaitBackend:
		return "fin_backend"
	}
	return ""
}

// encoder appends records as lines. It writes JSON itself: at 100,000 lines a second, encoding by
// reflection would take CPU time from the workers.
type encoder struct {
	offset   int64 // nanoseconds from CLOCK_BOOTTIME to the wall clock
	services *services.Snapshot
}

// timeFormat is RFC 3339 in UTC, in microseconds.
const timeFormat = "2006-01-02T15:04:05.000000Z"

func appendTime(b []byte, t time.Time) []byte {
	b = append(b, '"')
	return append(t.UTC().AppendFormat(b, timeFormat), '"')
}

func (c *encoder) time(b []byte, t flowtable.Time) []byte {
	return appendTime(b, time.Unix(0, int64(t)+c.offset))
}

func appendSocket(b []byte, name string, s *flowtable.Socket) []byte {
	b = append(append(b, name...), '"')
	return append(s.AddrPort().AppendTo(b), '"')
}

// event appends the line of an event. No text in it needs an escape.
func (c *encoder) event(b []byte, e *flowtable.Event) []byte {
	b = c.time(append(b, `{"time":`...), e.At)
	if e.Begins {
		b = append(b, `,"event":"begin"`...)
	} else {
		b = append(b, `,"event":"end"`...)
	}
	b = append(append(append(b, `,"protocol":"`...), status.ProtocolName(e.Proto)...), '"')
	b = appendSocket(b, `,"client":`, &e.Client)
	b = appendSocket(b, `,"vip":`, &e.Frontend)
	b = appendSocket(b, `,"snat":`, &e.Source)
	b = c.backend(b, e)
	if name := c.service(e); name != "" {
		b = strconv.AppendQuote(append(b, `,"service":`...), name) // names of Kubernetes have only ASCII
	}
	if !e.Begins {
		b = c.end(b, e)
	}
	return append(b, "}\n"...)
}

// backend appends the backend. For a flow with direct return, whose packets are not translated, it
// appends the node that gets them.
func (c *encoder) backend(b []byte, e *flowtable.Event) []byte {
	if e.Backend != e.Frontend {
		return appendSocket(b, `,"backend":`, &e.Backend)
	}
	if n := c.services.Backend(services.BackendRef(e.BackendRef)); n != nil {
		node := flowtable.SocketOf(&n.Addr, n.Port)
		b = appendSocket(b, `,"backend":`, &node)
	}
	return append(b, `,"forwarding":"direct"`...)
}

// service returns the name of a flow's service port: by the port's number, or by the flow's
// frontend if an earlier process made the flow and no packet has arrived since.
func (c *encoder) service(e *flowtable.Event) string {
	if p := c.services.Service(services.ServiceID(e.Service)); e.Service != 0 && p != nil {
		return p.FullName()
	}
	t := header.Tuple{Dst: e.Frontend.Addr(), DstPort: e.Frontend.Port, Proto: e.Proto, V6: e.V6}
	if f := c.services.Frontend(&t); f != nil {
		return f.Service.FullName()
	}
	return ""
}

func (c *encoder) end(b []byte, e *flowtable.Event) []byte {
	if e.Start != 0 {
		b = c.time(append(b, `,"start":`...), e.Start)
	}
	seen := uint64(e.Seen) * uint64(conn.Tick)
	b = c.time(append(b, `,"lastPacket":`...), min(e.At, flowtable.Time(seen)))
	b = append(append(append(b, `,"state":"`...), e.State.String()...), '"')
	if closed := closedOf(e); closed != "" {
		b = append(append(append(b, `,"closed":"`...), closed...), '"')
	}
	if e.Counted {
		b = appendTraffic(b, &e.Traffic)
	}
	return append(append(append(b, `,"why":"`...), e.Ended.String()...), '"')
}

func appendTraffic(b []byte, t *[2]flowtable.Traffic) []byte {
	in, out := &t[flowtable.ClientSide], &t[flowtable.ReplySide]
	for _, f := range [...]struct {
		name string
		n    uint64
	}{
		{`,"traffic":{"toBackend":`, in.Packets}, {`,"toBackendBytes":`, in.Bytes},
		{`,"toClient":`, out.Packets}, {`,"toClientBytes":`, out.Bytes},
	} {
		b = strconv.AppendUint(append(b, f.name...), f.n, 10)
	}
	return append(b, '}')
}

// note appends the line of an Open or a Lost.
func note(b []byte, now time.Time, event string, lines uint64) []byte {
	b = appendTime(append(b, `{"time":`...), now)
	b = append(append(append(b, `,"event":"`...), event...), '"')
	if lines != 0 {
		b = strconv.AppendUint(append(b, `,"lines":`...), lines, 10)
	}
	return append(b, "}\n"...)
}

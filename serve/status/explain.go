package status

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"sluice.dev/sluice/nat/header"
)

// ExplainQuery describes the packet to explain. ParseExplain makes one.
type ExplainQuery struct {
	From, To netip.AddrPort
	Protocol string // TCP, UDP, SCTP
	// Established: the packet belongs to an open connection or association. UDP has none.
	Established bool
	// AnyPort: no source port was given, and From has assumedPort.
	AnyPort bool
}

// assumedPort is in the ephemeral range (RFC 6335 section 6: 49152 to 65535).
const assumedPort = 50000

// ParseExplain parses from, an address or address:port, and to, address:port or
// address:port/protocol; the default protocol is TCP.
func ParseExplain(from, to string, established bool) (q ExplainQuery, err error) {
	q.Established = established
	end, protocol, named := strings.Cut(to, "/")
	if q.Protocol = strings.ToUpper(protocol); !named {
		q.Protocol = "TCP"
	}
	if q.number() == 0 {
		return q, fmt.Errorf("%q: protocol %q is none of TCP, UDP and SCTP", to, protocol)
	}
	if q.To, err = netip.ParseAddrPort(end); err != nil {
		return q, fmt.Errorf("%q is not an address and port, write one such as 203.0.113.10:80/TCP or "+
			"[2001:db8::10]:53/UDP", to)
	}
	if q.From, err = netip.ParseAddrPort(from); err != nil {
		a, err := netip.ParseAddr(strings.Trim(from, "[]"))
		if err != nil {
			return q, fmt.Errorf("%q is no address or address:port, write one such as 198.51.100.7, "+
				"198.51.100.7:40000 or [2001:db8::7]:40000", from)
		}
		q.From, q.AnyPort = netip.AddrPortFrom(a, assumedPort), true
	}
	for _, p := range []*netip.AddrPort{&q.From, &q.To} {
		if p.Addr().Zone() != "" {
			return q, fmt.Errorf("%v has a zone: packets that are forwarded have no link-local address", p.Addr())
		}
		*p = netip.AddrPortFrom(p.Addr().Unmap(), p.Port())
	}
	if q.From.Addr().Is4() != q.To.Addr().Is4() {
		return q, fmt.Errorf("%v and %v are of two families: a packet has addresses of one", q.From.Addr(), q.To.Addr())
	}
	if established && q.Protocol == "UDP" {
		return q, errors.New("UDP has no connections, every datagram may begin a flow: leave out established")
	}
	if established && q.AnyPort {
		return q, fmt.Errorf("a connection of %v is identified by its port: give that, too", q.From.Addr())
	}
	return q, nil
}

// number returns the IP protocol number; 0 if no flow can have the protocol.
func (q *ExplainQuery) number() uint8 {
	for _, p := range [...]uint8{header.ProtoTCP, header.ProtoUDP, header.ProtoSCTP} {
		if ProtocolName(p) == q.Protocol {
			return p
		}
	}
	return 0
}

// Tuple returns the packet's tuple in a worker's form.
func (q *ExplainQuery) Tuple() header.Tuple {
	return header.Tuple{
		Src: header.AddrFrom(q.From.Addr()), Dst: header.AddrFrom(q.To.Addr()),
		SrcPort: q.From.Port(), DstPort: q.To.Port(), Proto: q.number(), V6: q.From.Addr().Is6(),
	}
}

// The verdicts of an ExplainView.
const (
	VerdictForward = "forward" // to Backend, or back to the client of a flow
	VerdictReject  = "reject"  // dropped; the sender gets an ICMP error or an RST
	VerdictDrop    = "drop"    // dropped without an answer
	VerdictPass    = "pass"    // to the kernel, as without Sluice
)

// ExplainView is the verdict on a packet, and the steps that lead to it.
type ExplainView struct {
	From     netip.AddrPort `json:"from"`
	To       netip.AddrPort `json:"to"`
	Protocol string         `json:"protocol"`
	// Opens: the packet opens a connection or association.
	Opens bool `json:"opens"`
	// AnyPort: the query had no source port; this one is assumed.
	AnyPort bool `json:"anyPort,omitempty"`
	// Offline: no gateway was asked; steps that depend on its state are Unknown.
	Offline bool `json:"offline,omitempty"`

	Verdict string `json:"verdict"`          // forward, reject, drop, pass
	Reason  string `json:"reason,omitempty"` // of a drop or reject, as in `sluice stats`
	Advice  string `json:"advice,omitempty"` // what to do if the verdict is not the intended one

	Service string `json:"service,omitempty"` // namespace/name, with :port-name if it has one
	// Backend gets the packet. BackendUnknown: another one may get it, depending on the state of a
	// gateway or on chance.
	Backend        netip.AddrPort `json:"backend,omitzero"`
	BackendUnknown bool           `json:"backendUnknown,omitempty"`
	Generation     uint64         `json:"generation"` // of the table of services

	Steps     []ExplainStep     `json:"steps"` // in the order of the decision
	Endpoints []ExplainEndpoint `json:"endpoints,omitempty"`
	// Problems are the problems of the Service, or about the address.
	Problems []ProblemView `json:"problems,omitempty"`
	// Unread has, offline, manifests that cannot be read: the answer leaves them out.
	Unread []ProblemView `json:"unread,omitempty"`
}

// ExplainStep is one step to the verdict, and its result.
type ExplainStep struct {
	Name string `json:"name"`
	Text string `json:"text"`
	// Unknown: the answer is an assumption.
	Unknown bool `json:"unknown,omitempty"`
}

// ExplainEndpoint is one endpoint of the service, and whether it may take the flow.
type ExplainEndpoint struct {
	Address netip.AddrPort `json:"address"`
	In      bool           `json:"in"`
	Why     string         `json:"why"`
	Weight  uint16         `json:"weight"`
}

// query returns the query as parameters of a request.
func (q *ExplainQuery) query() url.Values {
	v := url.Values{"from": {q.From.String()}, "to": {q.To.String() + "/" + q.Protocol}}
	if q.AnyPort {
		v.Set("from", q.From.Addr().String())
	}
	if q.Established {
		v.Set("established", "true")
	}
	return v
}

// explain serves /v5/explain.
func (s *Server) explain(r *http.Request) (any, error) {
	v := r.URL.Query()
	var established bool
	var err error
	if text := v.Get("established"); text != "" {
		if established, err = strconv.ParseBool(text); err != nil {
			return nil, badRequest{fmt.Errorf("parameter established: %w", err)}
		}
	}
	q, err := ParseExplain(v.Get("from"), v.Get("to"), established)
	if err != nil {
		return nil, badRequest{err}
	}
	return s.gateway.Explain(&q)
}

// Explain returns the verdict on a packet, and why.
func (c *Client) Explain(ctx context.Context, q *ExplainQuery) (ExplainView, error) {
	return ask[ExplainView](ctx, c, http.MethodGet, c.root+"/explain", q.query())
}

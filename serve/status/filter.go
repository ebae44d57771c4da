package status

import (
	"fmt"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// Endpoint selects by address, by address and port, or by prefix. The zero value
// selects everything.
type Endpoint struct {
	Prefix netip.Prefix // a single address is a prefix of full length
	Port   uint16       // 0 is any
}

// ParseEndpoint parses 10.0.0.1, 10.0.0.1:80, 10.0.0.0/8, 2001:db8::1 or [2001:db8::1]:80.
func ParseEndpoint(s string) (Endpoint, error) {
	if p, err := netip.ParsePrefix(s); err == nil {
		return Endpoint{Prefix: p.Masked()}, nil
	}
	if ap, err := netip.ParseAddrPort(s); err == nil && ap.Port() != 0 {
		a := ap.Addr().Unmap()
		return Endpoint{Prefix: netip.PrefixFrom(a, a.BitLen()), Port: ap.Port()}, nil
	}
	if a, err := netip.ParseAddr(strings.Trim(s, "[]")); err == nil {
		a = a.Unmap()
		return Endpoint{Prefix: netip.PrefixFrom(a, a.BitLen())}, nil
	}
	return Endpoint{},
		fmt.Errorf("%q is no address, address:port or prefix, write one such as 192.0.2.1, [2001:db8::1]:80 or "+
			"10.0.0.0/8", s)
}

// IsZero reports whether e selects everything.
func (e Endpoint) IsZero() bool { return !e.Prefix.IsValid() }

// Match reports whether e selects an address and port.
func (e Endpoint) Match(ap netip.AddrPort) bool {
	return e.IsZero() || e.Prefix.Contains(ap.Addr()) && (e.Port == 0 || e.Port == ap.Port())
}

// String returns the form that ParseEndpoint parses.
func (e Endpoint) String() string {
	switch {
	case e.IsZero():
		return ""
	case e.Port != 0:
		return netip.AddrPortFrom(e.Prefix.Addr(), e.Port).String()
	case e.Prefix.IsSingleIP():
		return e.Prefix.Addr().String()
	}
	return e.Prefix.String()
}

// FlowFilter selects flows; a field that is not set selects all.
type FlowFilter struct {
	Client, VIP, Backend Endpoint
	Service              string // namespace/name or namespace/name:port
	State                string
	Protocol             string
}

// IsZero reports whether every flow matches.
func (f FlowFilter) IsZero() bool { return f == FlowFilter{} }

// Match reports whether a flow is selected. It does not allocate.
func (f *FlowFilter) Match(v *FlowView) bool {
	return f.Client.Match(v.Client) && f.VIP.Match(v.VIP) && f.Backend.Match(v.Backend) &&
		(f.State == "" || strings.EqualFold(f.State, v.State)) &&
		(f.Protocol == "" || strings.EqualFold(f.Protocol, v.Protocol)) &&
		(f.Service == "" || MatchService(f.Service, v.Service))
}

// MatchService reports whether a filter selects a service port. Without a port it selects every
// port of the service.
func MatchService(filter, service string) bool {
	rest, ok := strings.CutPrefix(service, filter)
	return ok && (rest == "" || rest[0] == ':')
}

// parts returns the fields that are set, with the names of their parameters.
func (f FlowFilter) parts() (list []struct{ name, value string }) {
	for _, p := range []struct{ name, value string }{
		{"client", f.Client.String()}, {"vip", f.VIP.String()}, {"backend", f.Backend.String()},
		{"service", f.Service}, {"state", f.State}, {"protocol", f.Protocol},
	} {
		if p.value != "" {
			list = append(list, p)
		}
	}
	return list
}

// String returns a description such as: client 198.51.100.0/24, state established.
func (f FlowFilter) String() string {
	if f.IsZero() {
		return "all flows"
	}
	var words []string
	for _, p := range f.parts() {
		words = append(words, p.name+" "+p.value)
	}
	return strings.Join(words, ", ")
}

// query returns the filter as parameters of a request.
func (f FlowFilter) query() url.Values {
	q := url.Values{}
	for _, p := range f.parts() {
		q.Set(p.name, p.value)
	}
	return q
}

// ParseFlowFilter parses the parameters of a request. An unknown parameter is an error: a misspelt
// filter must not select everything.
func ParseFlowFilter(q url.Values) (f FlowFilter, all bool, err error) {
	for name, values := range q {
		if len(values) != 1 {
			return f, false, fmt.Errorf("parameter %s is given %d times, give it once", name, len(values))
		}
		value := values[0]
		switch name {
		case "client":
			f.Client, err = ParseEndpoint(value)
		case "vip":
			f.VIP, err = ParseEndpoint(value)
		case "backend":
			f.Backend, err = ParseEndpoint(value)
		case "service":
			f.Service = value
		case "state":
			f.State = value
		case "protocol":
			f.Protocol = value
		case "all":
			all, err = strconv.ParseBool(value)
		default:
			err = fmt.Errorf("is unknown; the parameters are client, vip, backend, service, state, protocol, all")
		}
		if err != nil {
			return f, false, fmt.Errorf("parameter %s: %w", name, err)
		}
	}
	return f, all, nil
}

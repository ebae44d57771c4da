package objects

import (
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"sluice.dev/sluice/nat/header"
)

// annotationCheck is the annotation of a Service with the checks of its endpoints, see ParseChecks.
const annotationCheck = "sluice.dev/health-check"

// CheckKind is how an endpoint is checked.
type CheckKind uint8

// The kinds of checks. An endpoint fails a check that gets no answer in time, or that the endpoint
// refuses.
const (
	CheckNone  CheckKind = iota // not at all
	CheckTCP                    // the endpoint accepts a connection
	CheckHTTP                   // it answers a request with a status code that is expected
	CheckHTTPS                  // the same by TLS; its certificate is not verified
	CheckGRPC                   // it answers grpc.health.v1.Health/Check with SERVING
	CheckUDP                    // no ICMP error answers a datagram; with require_reply, a datagram does
	CheckDNS                    // it answers a query with NOERROR
)

var checkKinds = [...]string{"none", "tcp", "http", "https", "grpc", "udp", "dns"}

// String returns the name in annotations.
func (k CheckKind) String() string { return checkKinds[k] }

// Proto returns the protocol of the service ports that the check is for.
func (k CheckKind) Proto() uint8 {
	if k == CheckUDP || k == CheckDNS {
		return header.ProtoUDP
	}
	return header.ProtoTCP
}

// Check has the parameters of an endpoint's check. It is comparable.
type Check struct {
	Kind CheckKind
	// Interval is the time between the starts of two checks. Timeout is the time allowed for an
	// answer.
	Interval, Timeout time.Duration
	// An endpoint is down after Fall failures in a row, and up again after Rise successes.
	Rise, Fall uint8
	// SlowStart is the time in which the weight of an endpoint that is up again grows to its full
	// value.
	SlowStart time.Duration

	Method, Path, Host   string // of HTTP
	StatusMin, StatusMax uint16 // of HTTP, the codes that are expected
	Service              string // of gRPC; "" is the server as a whole
	Name                 string // of DNS, with the dot at its end
	Type                 uint16 // of DNS (RFC 1035 section 3.2.2)
	Send                 string // of UDP, the bytes of the datagram
	RequireReply         bool   // of UDP
	// ProxyHeader: the endpoint expects the PROXY protocol. A check that sends data begins with a
	// header of the command LOCAL, each datagram of it over UDP. No annotation field sets it.
	ProxyHeader bool
}

// Bounds of annotations, which anyone who can write a Service controls.
const (
	maxChecks         = 16   // in one annotation
	maxCheckText      = 2048 // bytes of one annotation
	minCheckInterval  = time.Second
	maxCheckInterval  = time.Hour
	minCheckTimeout   = 100 * time.Millisecond
	maxCheckTimeout   = 10 * time.Second // a check holds its place among those under way so long
	maxCheckCount     = 10               // of rise and fall
	maxCheckSlowStart = time.Hour
	maxCheckField     = 256 // bytes of a path, a host or a service
	maxCheckSend      = 512 // bytes of a datagram

	defaultCheckInterval = 5 * time.Second
	maxDefaultTimeout    = 3 * time.Second
)

// PortCheck is the check of the service port of that name; of all ports of its protocol, if Named
// is false.
type PortCheck struct {
	Named bool
	Port  string
	Check Check
}

// Checks are tried in order.
type Checks []PortCheck

// Of returns the check of a service port, and false if there is none. CheckNone is a check, which
// means that the port must not be checked in any way.
func (cs Checks) Of(p *ServicePort) (_ Check, ok bool) {
	for i := range cs {
		c := &cs[i]
		if (!c.Named || c.Port == p.Name) && (c.Check.Kind == CheckNone || c.Check.Kind.Proto() == p.Proto) {
			return c.Check, true
		}
	}
	return Check{}, false
}

// ParseChecks reads checks, separated by semicolons: a kind, and fields FIELD=VALUE, separated by
// spaces, such as "http path=/healthz interval=2s; port=dns dns name=example.org". Fields have the
// names of HAProxy and keepalived if they have the same meaning: docs/health.md lists them.
func ParseChecks(text string) (Checks, error) {
	if len(text) > maxCheckText {
		return nil, fmt.Errorf("has %d bytes, more than %d", len(text), maxCheckText)
	}
	var list Checks
	for entry := range strings.SplitSeq(text, ";") {
		if strings.TrimSpace(entry) == "" {
			continue
		}
		if len(list) == maxChecks {
			return nil, fmt.Errorf("has more than %d checks", maxChecks)
		}
		c, err := parseCheck(strings.Fields(entry))
		if err != nil {
			return nil, fmt.Errorf("%q: %w", strings.TrimSpace(entry), err)
		}
		list = append(list, c)
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("has no check; one of %s", strings.Join(checkKinds[:], ", "))
	}
	return list, nil
}

func parseCheck(words []string) (p PortCheck, err error) {
	c, kind := &p.Check, ""
	fields := map[string]string{}
	for _, word := range words {
		name, value, isField := strings.Cut(word, "=")
		switch {
		case word == "require_reply":
			name, value = word, "true"
		case !isField && kind == "":
			kind = word
			continue
		case !isField:
			return p, fmt.Errorf("%q is neither FIELD=VALUE nor the kind, which is %s", word, kind)
		case name == "inter":
			name = "interval"
		}
		if _, twice := fields[name]; twice {
			return p, fmt.Errorf("%s is there twice", name)
		}
		fields[name] = value
	}
	if c.Kind, err = parseKind(kind); err != nil {
		return p, err
	}
	if p.Port, p.Named = fields["port"]; p.Named {
		delete(fields, "port")
	}
	if err := c.readTimes(fields); err != nil {
		return p, err
	}
	if err := c.readKind(fields); err != nil {
		return p, err
	}
	if len(fields) > 0 {
		return p, fmt.Errorf("%s has no field %q", c.Kind, slices.Sorted(maps.Keys(fields))[0])
	}
	return p, nil
}

func parseKind(name string) (CheckKind, error) {
	for k, known := range checkKinds {
		if name == known {
			return CheckKind(k), nil
		}
	}
	return 0, fmt.Errorf("%q is no kind of check; one of %s", name, strings.Join(checkKinds[:], ", "))
}

// take removes a field and reads it; without the field the value stays.
func take[T any](fields map[string]string, name string, to *T, read func(string) (T, error)) error {
	text, ok := fields[name]
	if !ok {
		return nil
	}
	delete(fields, name)
	v, err := read(text)
	if err != nil {
		return fmt.Errorf("%s=%s: %w", name, text, err)
	}
	*to = v
	return nil
}

// readTimes reads what all kinds have but none.
func (c *Check) readTimes(fields map[string]string) error {
	if c.Kind == CheckNone {
		return nil
	}
	c.Interval, c.Rise, c.Fall = defaultCheckInterval, 2, 3
	if err := take(fields, "interval", &c.Interval, between(minCheckInterval, maxCheckInterval)); err != nil {
		return err
	}
	c.Timeout = min(c.Interval/4*3, maxDefaultTimeout)
	count := func(text string) (uint8, error) {
		n, err := strconv.ParseUint(text, 10, 8)
		if err != nil || n < 1 || n > maxCheckCount {
			return 0, fmt.Errorf("is no number from 1 to %d", maxCheckCount)
		}
		return uint8(n), nil
	}
	for _, err := range []error{
		take(fields, "timeout", &c.Timeout, between(minCheckTimeout, min(c.Interval, maxCheckTimeout))),
		take(fields, "slowstart", &c.SlowStart, between(0, maxCheckSlowStart)),
		take(fields, "rise", &c.Rise, count),
		take(fields, "fall", &c.Fall, count),
	} {
		if err != nil {
			return err
		}
	}
	return nil
}

func between(least, most time.Duration) func(string) (time.Duration, error) {
	return func(text string) (time.Duration, error) {
		d, err := time.ParseDuration(text)
		if err != nil || d < least || d > most {
			return 0, fmt.Errorf("is no time from %v to %v", least, most)
		}
		return d, nil
	}
}

// readKind reads the fields of the kind.
func (c *Check) readKind(fields map[string]string) error {
	switch c.Kind {
	case CheckHTTP, CheckHTTPS:
		return c.readHTTP(fields)
	case CheckGRPC:
		return take(fields, "service", &c.Service, visible)
	case CheckUDP:
		c.RequireReply = fields["require_reply"] == "true"
		delete(fields, "require_reply")
		return take(fields, "send", &c.Send, datagram)
	case CheckDNS:
		c.Name, c.Type = ".", uint16(dnsmessage.TypeSOA) // as keepalived's DNS_CHECK
		if err := take(fields, "name", &c.Name, domain); err != nil {
			return err
		}
		return take(fields, "type", &c.Type, queryType)
	}
	return nil
}

func (c *Check) readHTTP(fields map[string]string) error {
	type codes struct{ min, max uint16 }
	expected := codes{200, 399} // as HAProxy's option httpchk
	c.Method, c.Path = "GET", "/"
	for _, err := range []error{
		take(fields, "method", &c.Method, func(m string) (string, error) {
			if m != "GET" && m != "HEAD" && m != "OPTIONS" {
				return "", fmt.Errorf("is none of GET, HEAD, OPTIONS")
			}
			return m, nil
		}),
		take(fields, "path", &c.Path, func(p string) (string, error) {
			if !strings.HasPrefix(p, "/") {
				return "", fmt.Errorf("does not begin with a slash")
			}
			return visible(p)
		}),
		take(fields, "host", &c.Host, func(h string) (string, error) {
			if strings.ContainsAny(h, "/?#@\\\"<>") {
				return "", fmt.Errorf("is no host name")
			}
			return visible(h)
		}),
		take(fields, "expect", &expected, func(text string) (codes, error) {
			from, to, ranged := strings.Cut(text, "-")
			if !ranged {
				to = from
			}
			least, err1 := strconv.ParseUint(from, 10, 16)
			most, err2 := strconv.ParseUint(to, 10, 16)
			if err1 != nil || err2 != nil || least < 100 || most > 599 || least > most {
				return codes{}, fmt.Errorf("is no status code from 100 to 599, and no range of them such as 200-399")
			}
			return codes{uint16(least), uint16(most)}, nil
		}),
	} {
		if err != nil {
			return err
		}
	}
	c.StatusMin, c.StatusMax = expected.min, expected.max
	return nil
}

// visible returns text of visible ASCII: it becomes part of a request.
func visible(text string) (string, error) {
	if len(text) > maxCheckField {
		return "", fmt.Errorf("has %d bytes, more than %d", len(text), maxCheckField)
	}
	for i := range len(text) {
		if text[i] <= ' ' || text[i] > '~' {
			return "", fmt.Errorf("has other characters than visible ASCII")
		}
	}
	return text, nil
}

// datagram returns the bytes of a datagram: text, or after 0x in hexadecimal.
func datagram(text string) (string, error) {
	b := []byte(text)
	if digits, ok := strings.CutPrefix(text, "0x"); ok {
		var err error
		if b, err = hex.DecodeString(digits); err != nil {
			return "", fmt.Errorf("is not hexadecimal after 0x")
		}
	}
	if len(b) > maxCheckSend {
		return "", fmt.Errorf("has %d bytes, more than %d", len(b), maxCheckSend)
	}
	return string(b), nil
}

func domain(text string) (string, error) {
	if !strings.HasSuffix(text, ".") {
		text += "."
	}
	name, err := dnsmessage.NewName(text)
	if err == nil {
		// Packing finds empty and long labels.
		m := dnsmessage.Message{Questions: []dnsmessage.Question{{Name: name}}}
		_, err = m.Pack()
	}
	if err != nil {
		return "", fmt.Errorf("is no domain name")
	}
	return visible(text)
}

var queryTypes = map[string]dnsmessage.Type{
	"A": dnsmessage.TypeA, "AAAA": dnsmessage.TypeAAAA, "CNAME": dnsmessage.TypeCNAME, "MX": dnsmessage.TypeMX,
	"NS": dnsmessage.TypeNS, "PTR": dnsmessage.TypePTR, "SOA": dnsmessage.TypeSOA, "SRV": dnsmessage.TypeSRV,
	"TXT": dnsmessage.TypeTXT,
}

func queryType(text string) (uint16, error) {
	t, ok := queryTypes[strings.ToUpper(text)]
	if !ok {
		return 0, fmt.Errorf("is none of A, AAAA, CNAME, MX, NS, PTR, SOA, SRV, TXT")
	}
	return uint16(t), nil
}

// String returns the check in short: its kind and its request.
func (c *Check) String() string {
	switch c.Kind {
	case CheckHTTP, CheckHTTPS:
		return fmt.Sprintf("%s %s", c.Kind, c.Path)
	case CheckGRPC:
		if c.Service != "" {
			return fmt.Sprintf("%s %s", c.Kind, c.Service)
		}
	case CheckDNS:
		return fmt.Sprintf("%s %s", c.Kind, c.Name)
	}
	return c.Kind.String()
}

// readChecks reads the annotation. With an invalid one the Service has the checks of the
// configuration, and a warning.
func (s *Service) readChecks(annotations map[string]string) {
	text, ok := annotations[annotationCheck]
	if !ok {
		return
	}
	checks, err := ParseChecks(text)
	if err != nil {
		s.Problems = append(s.Problems, warn("metadata.annotations["+annotationCheck+"]",
			"%v; the checks of the configuration hold", err))
		return
	}
	s.Checks = checks
}

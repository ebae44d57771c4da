package stateful

import (
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// Profile is a load, as described by a file in bench/profiles.
type Profile struct {
	Name        string
	Duration    time.Duration
	CPS         float64 // connections per second, all templates together; 0: limited by Concurrency only
	Concurrency int     // maximum number of connections at a time
	Clients     Pool
	Servers     Pool
	VIP         netip.Addr // address that clients connect to through a gateway; may be invalid
	Ramp        []RampStep
	TCP         TCP
	Templates   []Template
}

// RampStep is the end of a linear change of the rate, which starts at the previous RampStep or, for
// the first, at zero. After the last step the rate is Profile.CPS.
type RampStep struct {
	Until time.Duration // since the beginning
	CPS   float64
}

// TCP are the settings of both engines.
type TCP struct {
	MSS      int           // bytes per segment, 1460 (IPv6: 1440); a smaller MSS of the peer takes precedence
	Window   int           // bytes in flight and bytes offered, 65535
	FirstRTO time.Duration `yaml:"firstRTO"` // 1 s (RFC 6298, section 2.1)
	MinRTO   time.Duration `yaml:"minRTO"`   // 200 ms as in Linux; the RFC has 1 s
	TimeWait time.Duration `yaml:"timeWait"` // 1 s instead of two maximum segment lifetimes
	Retries  int           // of one segment before the connection fails, 6
}

// Protocol is TCP or UDP, by number.
type Protocol uint8

// The protocols of templates (IANA, protocol numbers).
const (
	ProtocolTCP Protocol = 6
	ProtocolUDP Protocol = 17
)

func (p Protocol) String() string {
	if p == ProtocolUDP {
		return "udp"
	}
	return "tcp"
}

// UnmarshalText reads tcp or udp.
func (p *Protocol) UnmarshalText(text []byte) error {
	switch string(text) {
	case "tcp":
		*p = ProtocolTCP
	case "udp":
		*p = ProtocolUDP
	default:
		return fmt.Errorf("%q is no protocol: tcp and udp are possible", text)
	}
	return nil
}

// Side is the sending side.
type Side uint8

// The two sides of a connection.
const (
	Client Side = iota
	Server
)

func (s Side) String() string { return [...]string{"client", "server"}[s] }

// UnmarshalText reads client or server.
func (s *Side) UnmarshalText(text []byte) error {
	switch string(text) {
	case "client":
		*s = Client
	case "server":
		*s = Server
	default:
		return fmt.Errorf("%q is no side: client and server are possible", text)
	}
	return nil
}

// Template is one kind of exchange. The server identifies it by its port.
type Template struct {
	Name     string
	Protocol Protocol
	Port     uint16
	Share    float64
	Timeout  time.Duration // wait for an answer, for the next request, or for FIN; 5 s
	Retries  int           // UDP: how often a client repeats an unanswered step
	Close    Side          // TCP: the side that sends FIN first
	Steps    []Step        // without repetitions: written out
}

// Step is one message, or Count of them.
type Step struct {
	From  Side
	Size  int    // bytes of one message
	Count int    // UDP: datagrams; TCP: 1
	Bytes []byte // bytes to send; nil: Size bytes of a pattern
	After time.Duration
}

// Bounds of a profile. Each has a reason in the engine's layout.
const (
	MaxTemplates = 64       // one byte in a record, and a row each in the report
	MaxSteps     = 60_000   // of a template, written out: two bytes in a record
	MaxMessage   = 64 << 20 // bytes of a TCP step: sequence numbers compare within 2 GiB
	MaxDatagrams = 64       // of a UDP step: one bit each in a record
	maxDatagram  = 1472     // IPv4 in 1500 bytes; IPv6 takes 20 less
	maxPool      = 1 << 16  // addresses: two bytes in a record
	maxConns     = 16 << 20
)

// setDefaults sets the fields that a file may omit.
func (p *Profile) setDefaults() {
	t := &p.TCP
	for _, d := range []struct {
		p *int
		v int
	}{{&t.MSS, 1460}, {&t.Window, 65535}, {&t.Retries, 6}} {
		if *d.p == 0 {
			*d.p = d.v
		}
	}
	for _, d := range []struct {
		p *time.Duration
		v time.Duration
	}{{&t.FirstRTO, time.Second}, {&t.MinRTO, 200 * time.Millisecond}, {&t.TimeWait, time.Second}} {
		if *d.p == 0 {
			*d.p = d.v
		}
	}
	for i := range p.Templates {
		t := &p.Templates[i]
		if t.Timeout == 0 {
			t.Timeout = 5 * time.Second
		}
		for j := range t.Steps {
			if t.Steps[j].Count == 0 {
				t.Steps[j].Count = 1
			}
		}
	}
}

// Validate sets defaults and returns all errors. A profile from a file has already been
// validated.
func (p *Profile) Validate() error {
	p.setDefaults()
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	switch {
	case p.Duration <= 0 || p.Duration > 24*time.Hour:
		fail("duration %s: above zero and at most 24h are possible", p.Duration)
	case p.CPS < 0 || p.CPS > 1e7:
		fail("connectionsPerSecond %g: 0 (limited by concurrency only) to 1e7 are possible", p.CPS)
	case p.Concurrency < 1 || p.Concurrency > maxConns:
		fail("concurrency %d: 1 to %d are possible", p.Concurrency, maxConns)
	}
	if err := p.checkPools(); err != nil {
		errs = append(errs, err)
	}
	last := time.Duration(0)
	for _, r := range p.Ramp {
		if r.Until <= last || r.CPS < 0 {
			fail("ramp until %s at %g cps: times must rise and rates not be negative", r.Until, r.CPS)
		}
		last = r.Until
	}
	t := &p.TCP
	if t.MSS < 64 || t.MSS > 1460 || t.Window < t.MSS || t.Window > 65535 {
		fail("tcp: mss %d and window %d: 64 to 1460 bytes, and the window from mss to 65535, are possible", t.MSS,
			t.Window)
	}
	if t.FirstRTO < time.Millisecond || t.MinRTO < time.Millisecond || t.TimeWait < 0 || t.Retries < 1 ||
		t.Retries > 20 {
		fail("tcp: firstRTO %s, minRTO %s, timeWait %s, retries %d: at least 1ms, 1ms, 0s and 1 to 20 are possible",
			t.FirstRTO, t.MinRTO, t.TimeWait, t.Retries)
	}
	if err := p.checkTemplates(); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (p *Profile) checkPools() error {
	switch {
	case p.Clients.Len() == 0 || p.Servers.Len() == 0:
		return errors.New("clients and servers need addresses")
	case p.Clients.Is6() != p.Servers.Is6() || p.VIP.IsValid() && p.VIP.Is6() != p.Clients.Is6():
		return errors.New("clients, servers and vip must be of one address family")
	case p.Clients.tuples() < p.Concurrency:
		return fmt.Errorf("%d client addresses and ports are fewer than concurrency %d: give clients more of them",
			p.Clients.tuples(), p.Concurrency)
	}
	return nil
}

func (p *Profile) checkTemplates() error {
	if len(p.Templates) == 0 || len(p.Templates) > MaxTemplates {
		return fmt.Errorf("%d templates: 1 to %d are possible", len(p.Templates), MaxTemplates)
	}
	var errs []error
	names, ports := map[string]bool{}, map[string]string{}
	for i := range p.Templates {
		t := &p.Templates[i]
		if names[t.Name] || t.Name == "" {
			errs = append(errs, fmt.Errorf("template %d: the name %q is empty or used twice", i+1, t.Name))
		}
		names[t.Name] = true
		where := fmt.Sprintf("%s port %d", t.Protocol, t.Port)
		if other, taken := ports[where]; taken {
			errs = append(errs,
				fmt.Errorf("template %s: %s is %s's: the port names the template, so each needs its own", t.Name, where,
					other))
		}
		ports[where] = t.Name
		if err := t.check(); err != nil {
			errs = append(errs, fmt.Errorf("template %s: %w", t.Name, err))
		}
	}
	return errors.Join(errs...)
}

func (t *Template) check() error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if t.Protocol != ProtocolTCP && t.Protocol != ProtocolUDP {
		fail("protocol %d: tcp and udp are possible", t.Protocol)
	}
	if t.Port == 0 || t.Share <= 0 || t.Timeout < time.Millisecond || t.Retries < 0 || t.Retries > 20 {
		fail("port %d, share %g, timeout %s, retries %d: a port, a share above zero, at least 1ms and 0 to 20 are "+
			"possible",
			t.Port, t.Share, t.Timeout, t.Retries)
	}
	if len(t.Steps) == 0 || len(t.Steps) > MaxSteps {
		fail("%d steps: 1 to %d are possible, repetitions written out", len(t.Steps), MaxSteps)
		return errors.Join(errs...)
	}
	if t.Steps[0].From != Client {
		fail("the first step is the server's: over UDP the client must send first, so that the server knows its " +
			"address")
	}
	for i := range t.Steps {
		if err := t.Steps[i].check(t.Protocol); err != nil {
			fail("step %d: %w", i+1, err)
		}
	}
	return errors.Join(errs...)
}

func (s *Step) check(p Protocol) error {
	if s.After < 0 || s.After > time.Hour {
		return fmt.Errorf("after %s: 0s to 1h are possible", s.After)
	}
	if s.Bytes != nil && len(s.Bytes) != s.Size {
		return fmt.Errorf("%d bytes and size %d", len(s.Bytes), s.Size)
	}
	if s.From == Server && s.Size < TagBytes {
		return fmt.Errorf("%d bytes: a server's message begins with a tag of %d", s.Size, TagBytes)
	}
	if p == ProtocolTCP {
		if s.Size < 1 || s.Size > MaxMessage || s.Count != 1 {
			return fmt.Errorf("%d messages of %d bytes: over TCP a step is one message of 1 to %d bytes", s.Count,
				s.Size, MaxMessage)
		}
		return nil
	}
	switch {
	case s.Count < 1 || s.Count > MaxDatagrams || s.Size > maxDatagram:
		return fmt.Errorf("%d datagrams of %d bytes: 1 to %d of at most %d bytes are possible", s.Count, s.Size,
			MaxDatagrams, maxDatagram)
	case s.Bytes == nil && s.Size < TagBytes:
		return fmt.Errorf("%d bytes: a datagram of a given size begins with a tag of %d; give its bytes instead",
			s.Size, TagBytes)
	case s.From == Client && s.Bytes != nil && s.Count != 1:
		return fmt.Errorf("%d equal datagrams are indistinguishable: give their size, or one", s.Count)
	}
	return nil
}

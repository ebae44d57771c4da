package config

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// Duration is a time.Duration in the form "30s" or "2h4m".
type Duration time.Duration

// D returns the duration as a time.Duration.
func (d Duration) D() time.Duration { return time.Duration(d) }

// String prints like time.Duration, without zero units at the end.
func (d Duration) String() string {
	s := time.Duration(d).String()
	if strings.HasSuffix(s, "m0s") {
		s = s[:len(s)-2]
	}
	if strings.HasSuffix(s, "h0m") {
		s = s[:len(s)-2]
	}
	return s
}

// MarshalText prints the form that UnmarshalText parses.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText parses a number with a unit.
func (d *Duration) UnmarshalText(b []byte) error {
	v, err := time.ParseDuration(string(b))
	if err != nil {
		return fmt.Errorf("%q is no duration, write a number with a unit such as 500ms, 30s or 2h4m", b)
	}
	*d = Duration(v)
	return nil
}

// PortRange is the ports First to Last, both included, in the form "first-last".
type PortRange struct{ First, Last uint16 }

// Count returns the number of ports.
func (r PortRange) Count() int { return int(r.Last) - int(r.First) + 1 }

// Contains reports whether a port is in the range.
func (r PortRange) Contains(port uint16) bool { return r.First <= port && port <= r.Last }

// Overlaps reports whether two ranges share a port.
func (r PortRange) Overlaps(o PortRange) bool { return r.First <= o.Last && o.First <= r.Last }

// String prints first-last, or one port.
func (r PortRange) String() string {
	if r.First == r.Last {
		return strconv.Itoa(int(r.First))
	}
	return fmt.Sprintf("%d-%d", r.First, r.Last)
}

// MarshalText prints the form that UnmarshalText parses.
func (r PortRange) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText parses first-last or one port.
func (r *PortRange) UnmarshalText(b []byte) error {
	first, last, two := strings.Cut(string(b), "-")
	if !two {
		last = first
	}
	f, err1 := strconv.ParseUint(strings.TrimSpace(first), 10, 16)
	l, err2 := strconv.ParseUint(strings.TrimSpace(last), 10, 16)
	if err1 != nil || err2 != nil || f == 0 || l < f {
		return fmt.Errorf("%q is no port range, write first-last with 1 <= first <= last <= 65535", b)
	}
	*r = PortRange{uint16(f), uint16(l)}
	return nil
}

// Queues is the number of queues of an interface that are used, from queue 0 on. Zero: all.
type Queues int

// AllQueues is every combined queue of the interface.
const AllQueues Queues = 0

// String prints all or the number.
func (q Queues) String() string { return numberOr("all", int(q)) }

// MarshalJSON prints "all" or a number.
func (q Queues) MarshalJSON() ([]byte, error) { return marshalOr("all", int(q)) }

// UnmarshalText parses all or a number.
func (q *Queues) UnmarshalText(b []byte) error {
	return parseOr("all", b, (*int)(q), "is not a number of queues, write all or a number from 1 on")
}

// FrameSize is the size of a frame, in bytes. Zero: auto.
type FrameSize int

// AutoFrameSize stands for the size that the interfaces' MTUs and drivers need.
const AutoFrameSize FrameSize = 0

// String prints auto or the number.
func (s FrameSize) String() string { return numberOr("auto", int(s)) }

// MarshalJSON prints "auto" or a number.
func (s FrameSize) MarshalJSON() ([]byte, error) { return marshalOr("auto", int(s)) }

// UnmarshalText parses auto or a number.
func (s *FrameSize) UnmarshalText(b []byte) error {
	return parseOr("auto", b, (*int)(s), "is not a size of frames, write auto, 2048 or 4096")
}

// numberOr prints a number, or the word for zero.
func numberOr(zero string, n int) string {
	if n == 0 {
		return zero
	}
	return strconv.Itoa(n)
}

func marshalOr(zero string, n int) ([]byte, error) {
	if n == 0 {
		return json.Marshal(zero)
	}
	return json.Marshal(n)
}

// parseOr parses a number from 1 to 65535, or the word for zero.
func parseOr(zero string, b []byte, to *int, problem string) error {
	if string(b) == zero {
		*to = 0
		return nil
	}
	n, err := strconv.ParseUint(string(b), 10, 16)
	if err != nil || n == 0 {
		return fmt.Errorf("%q %s", b, problem)
	}
	*to = int(n)
	return nil
}

// AddressSelector selects addresses of the node: by a CIDR, or the addresses of the Node object.
type AddressSelector struct {
	Prefix  netip.Prefix // not valid if Primary
	Primary bool
}

// primary is the text of an AddressSelector for the Node object's addresses.
const primary = "primary"

// String prints the form that UnmarshalText parses.
func (s AddressSelector) String() string {
	if s.Primary {
		return primary
	}
	return s.Prefix.String()
}

// MarshalText prints the form that UnmarshalText parses.
func (s AddressSelector) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText parses a CIDR or the word primary.
func (s *AddressSelector) UnmarshalText(b []byte) error {
	if string(b) == primary {
		*s = AddressSelector{Primary: true}
		return nil
	}
	p, err := netip.ParsePrefix(string(b))
	if err != nil {
		return fmt.Errorf("%q is no CIDR, write one such as 10.0.0.0/8, or primary", b)
	}
	*s = AddressSelector{Prefix: p}
	return nil
}

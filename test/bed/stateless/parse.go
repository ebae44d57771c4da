package stateless

import (
	"fmt"
	"math/big"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// How the command line writes traffic.

// ParseAddresses reads "10.0.0.1", "10.0.0.1-10.0.0.100" or "10.0.0.0/24": one
// address, a range with both ends, or all of a prefix.
func ParseAddresses(s string) (Addresses, error) {
	bad := func(why string) (Addresses, error) {
		return Addresses{}, fmt.Errorf("addresses %q: %s: want ADDRESS, FIRST-LAST or PREFIX/BITS", s, why)
	}
	if strings.Contains(s, "/") {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return bad(err.Error())
		}
		host := p.Addr().BitLen() - p.Bits()
		if host > 24 {
			return bad("more addresses than there can be flows")
		}
		return Addresses{First: p.Masked().Addr(), Count: 1 << host}, nil
	}
	from, to, isRange := strings.Cut(s, "-")
	first, err := netip.ParseAddr(from)
	if err != nil {
		return bad(err.Error())
	}
	if !isRange {
		return Addresses{First: first, Count: 1}, nil
	}
	last, err := netip.ParseAddr(to)
	if err != nil {
		return bad(err.Error())
	}
	n := new(big.Int).Sub(new(big.Int).SetBytes(last.AsSlice()), new(big.Int).SetBytes(first.AsSlice()))
	if first.BitLen() != last.BitLen() || n.Sign() < 0 || n.Cmp(big.NewInt(MaxFlows)) >= 0 {
		return bad("the last is before the first, of another family, or too far away")
	}
	return Addresses{First: first, Count: int(n.Int64()) + 1}, nil
}

// ParsePorts reads "80" or "1024-65535".
func ParsePorts(s string) (Ports, error) {
	from, to, isRange := strings.Cut(s, "-")
	if !isRange {
		to = from
	}
	first, err1 := strconv.ParseUint(from, 10, 16)
	last, err2 := strconv.ParseUint(to, 10, 16)
	if err1 != nil || err2 != nil || last < first {
		return Ports{}, fmt.Errorf("ports %q: want PORT or FIRST-LAST, up to 65535", s)
	}
	return Ports{First: uint16(first), Last: uint16(last)}, nil
}

// ParseSizes reads "64", "imix", or sizes with weights: "64:7,594:4,1518:1".
func ParseSizes(s string) ([]Size, error) {
	if s == "imix" {
		return IMIX(), nil
	}
	var out []Size
	for part := range strings.SplitSeq(s, ",") {
		bytes, weight, weighted := strings.Cut(part, ":")
		if !weighted {
			weight = "1"
		}
		b, err1 := strconv.Atoi(bytes)
		w, err2 := strconv.Atoi(weight)
		if err1 != nil || err2 != nil {
			return nil, fmt.Errorf("sizes %q: want BYTES, imix, or several BYTES:WEIGHT with commas between them", s)
		}
		out = append(out, Size{Bytes: b, Weight: w})
	}
	return out, nil
}

// parseName finds a value by the name that it prints.
func parseName[T interface {
	~uint8
	fmt.Stringer
}](what, s string, last T) (T, error) {
	var names []string
	for v := T(0); v <= last; v++ {
		if v.String() == s {
			return v, nil
		}
		names = append(names, v.String())
	}
	return 0, fmt.Errorf("%s %q: want one of %s", what, s, strings.Join(names, ", "))
}

// ParseProtocol and ParseMethod read what String prints.
func ParseProtocol(s string) (Protocol, error) { return parseName("protocol", s, ICMPEcho) }
func ParseMethod(s string) (Method, error)     { return parseName("receiver", s, Timed) }

// ParseRate reads packets per second: "250000", "250k", "1.5M"; "max" is 0.
func ParseRate(s string) (float64, error) {
	if s == "max" {
		return 0, nil
	}
	number, unit := s, 1.0
	switch {
	case strings.HasSuffix(s, "k"):
		number, unit = strings.TrimSuffix(s, "k"), 1e3
	case strings.HasSuffix(s, "M"):
		number, unit = strings.TrimSuffix(s, "M"), 1e6
	}
	v, err := strconv.ParseFloat(number, 64)
	if v *= unit; err != nil || !(v > 0) || v > 1e9 {
		return 0, fmt.Errorf("rate %q: want packets per second, such as 250000, 250k or 1.5M, or max", s)
	}
	return v, nil
}

// micros prints a latency.
func micros(d time.Duration) string { return fmt.Sprintf("%.1f", float64(d)/float64(time.Microsecond)) }

package pools

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"net/netip"
	"slices"
	"strings"

	"go4.org/netipx"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Spec is the specification of an AddressPool. MetalLB's IPAddressPool (metallb.io/v1beta1) has the
// same fields.
type Spec struct {
	// Addresses are prefixes, or ranges of two addresses with "-" between them.
	Addresses []string `json:"addresses"`
	// AutoAssign: Services that name neither a pool nor an address may use the pool. nil is true.
	AutoAssign *bool `json:"autoAssign,omitempty"`
	// AvoidBuggyIPs leaves out IPv4 addresses that end with 0 or 255.
	AvoidBuggyIPs     bool               `json:"avoidBuggyIPs,omitempty"`
	ServiceAllocation *ServiceAllocation `json:"serviceAllocation,omitempty"`
}

// ServiceAllocation restricts a pool to some Services.
type ServiceAllocation struct {
	// Priority orders the pools that admit a Service: the lowest first, 0 last.
	Priority           int                    `json:"priority,omitempty"`
	Namespaces         []string               `json:"namespaces,omitempty"`
	NamespaceSelectors []metav1.LabelSelector `json:"namespaceSelectors,omitempty"`
	ServiceSelectors   []metav1.LabelSelector `json:"serviceSelectors,omitempty"`
}

// Pool is a parsed Spec. It must not be changed.
type Pool struct {
	Name          string
	ranges        []netipx.IPRange // in the order of the specification
	autoAssign    bool
	avoidBuggyIPs bool
	only          *only // nil: all Services may use it
	// size4s, size6s count the addresses that the pool can give.
	size4s, size6s int64
	anyName        bool // Unlisted
}

// only restricts a pool. A Service must match one element of each list that is not empty.
type only struct {
	priority     int
	namespaces   []string
	byNamespace  []labels.Selector
	byService    []labels.Selector
	anyNamespace bool // both namespaces and byNamespace are empty
}

// New reads a specification. It reports all mistakes together.
func New(name string, s Spec) (*Pool, error) {
	p := &Pool{Name: name, autoAssign: s.AutoAssign == nil || *s.AutoAssign, avoidBuggyIPs: s.AvoidBuggyIPs}
	var errs []error
	if len(s.Addresses) == 0 {
		errs = append(errs, errors.New("addresses is empty: list prefixes or ranges"))
	}
	for i, text := range s.Addresses {
		r, err := parseRange(text)
		if err != nil {
			errs = append(errs, fmt.Errorf("addresses[%d]: %w", i, err))
			continue
		}
		p.ranges = append(p.ranges, r)
	}
	var err error
	if p.only, err = newOnly(s.ServiceAllocation); err != nil {
		errs = append(errs, err)
	}
	if p.size4s, p.size6s, err = p.count(); err != nil {
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("pool %s: %w", name, err)
	}
	return p, nil
}

func newOnly(s *ServiceAllocation) (*only, error) {
	if s == nil {
		return nil, nil
	}
	o := &only{priority: s.Priority, namespaces: s.Namespaces}
	o.anyNamespace = len(s.Namespaces)+len(s.NamespaceSelectors) == 0
	var errs []error
	if s.Priority < 0 {
		errs = append(errs, fmt.Errorf("serviceAllocation.priority is %d: must be 0 or more", s.Priority))
	}
	read := func(field string, from []metav1.LabelSelector) (to []labels.Selector) {
		for i := range from {
			selector, err := metav1.LabelSelectorAsSelector(&from[i])
			if err != nil {
				errs = append(errs, fmt.Errorf("serviceAllocation.%s[%d]: %w", field, i, err))
				continue
			}
			to = append(to, selector)
		}
		return to
	}
	o.byNamespace = read("namespaceSelectors", s.NamespaceSelectors)
	o.byService = read("serviceSelectors", s.ServiceSelectors)
	return o, errors.Join(errs...)
}

// CheckAddresses returns the error in one entry of Spec.Addresses, or nil.
func CheckAddresses(text string) error {
	_, err := parseRange(text)
	return err
}

// parseRange reads a prefix or a range. As in MetalLB, bits beyond a prefix's length are ignored.
func parseRange(text string) (netipx.IPRange, error) {
	first, last, isRange := strings.Cut(text, "-")
	if !isRange {
		p, err := netip.ParsePrefix(strings.TrimSpace(text))
		if err != nil || p.Addr().Is4In6() {
			return netipx.IPRange{}, fmt.Errorf("%q is no prefix such as 192.0.2.0/24, and no range such as "+
				"192.0.2.10-192.0.2.20", text)
		}
		return netipx.RangeOfPrefix(p.Masked()), nil
	}
	from, err := parseAddress(first)
	if err != nil {
		return netipx.IPRange{}, fmt.Errorf("range %q: %w", text, err)
	}
	to, err := parseAddress(last)
	if err != nil {
		return netipx.IPRange{}, fmt.Errorf("range %q: %w", text, err)
	}
	r := netipx.IPRangeFrom(from, to)
	if !r.IsValid() {
		return r, fmt.Errorf("range %q: the first address must not be after the last, nor of another family", text)
	}
	return r, nil
}

func parseAddress(text string) (netip.Addr, error) {
	a, err := netip.ParseAddr(strings.TrimSpace(text))
	if err != nil || a.Zone() != "" || a.Is4In6() {
		return netip.Addr{}, fmt.Errorf("%q is no IPv4 or IPv6 address", text)
	}
	return a, nil
}

// buggy reports whether some old devices take an address for a network or broadcast address.
func buggy(a netip.Addr) bool {
	if !a.Is4() {
		return false
	}
	last := a.As4()[3]
	return last == 0 || last == 255
}

// Contains reports whether the pool can give an address.
func (p *Pool) Contains(a netip.Addr) bool {
	if p.avoidBuggyIPs && buggy(a) {
		return false
	}
	return slices.ContainsFunc(p.ranges, func(r netipx.IPRange) bool { return r.Contains(a) })
}

func (p *Pool) containsAll(list []netip.Addr) bool {
	return !slices.ContainsFunc(list, func(a netip.Addr) bool { return !p.Contains(a) })
}

// Overlaps returns an address that both pools contain.
func (p *Pool) Overlaps(q *Pool) (netip.Addr, bool) {
	for _, a := range p.ranges {
		for _, b := range q.ranges {
			if a.Overlaps(b) {
				if a.From().Less(b.From()) {
					return b.From(), true
				}
				return a.From(), true
			}
		}
	}
	return netip.Addr{}, false
}

// OverlapsWith returns a message for each pool in others that has an address in common with p.
func OverlapsWith(p *Pool, others []*Pool) (texts []string) {
	for _, q := range others {
		if at, overlap := p.Overlaps(q); overlap {
			texts = append(texts, fmt.Sprintf("%s is also in pool %s: each address is given once, from either",
				at, q.Name))
		}
	}
	return texts
}

// Size returns how many addresses the pool can give, at most math.MaxInt64 per family. An address
// that is in several ranges counts once.
func (p *Pool) Size() (v4, v6 int64) {
	return p.size4s, p.size6s
}

func (p *Pool) count() (v4, v6 int64, err error) {
	var b netipx.IPSetBuilder
	for _, r := range p.ranges {
		b.AddRange(r)
	}
	set, err := b.IPSet()
	if err != nil {
		return 0, 0, err
	}
	for _, r := range set.Ranges() {
		if r.From().Is4() {
			v4 = saturated(v4, p.size4(r))
		} else {
			v6 = saturated(v6, size6(r))
		}
	}
	return v4, v6, nil
}

func saturated(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

func (p *Pool) size4(r netipx.IPRange) int64 {
	from, to := number4(r.From()), number4(r.To())
	n := to - from + 1
	if p.avoidBuggyIPs {
		n -= endingWith(0, from, to) + endingWith(255, from, to)
	}
	return n
}

func number4(a netip.Addr) int64 {
	b := a.As4()
	return int64(b[0])<<24 | int64(b[1])<<16 | int64(b[2])<<8 | int64(b[3])
}

// endingWith counts the addresses from..to whose last byte has a value.
func endingWith(last, from, to int64) int64 {
	upTo := func(n int64) int64 { return (n + 256 - last) >> 8 } // of 0..n
	return upTo(to) - upTo(from-1)
}

func size6(r netipx.IPRange) int64 {
	half := func(b []byte) (n uint64) {
		for _, x := range b {
			n = n<<8 | uint64(x)
		}
		return n
	}
	from, to := r.From().As16(), r.To().As16()
	low, borrow := bits.Sub64(half(to[8:]), half(from[8:]), 0)
	high, _ := bits.Sub64(half(to[:8]), half(from[:8]), borrow)
	if high != 0 || low >= math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(low) + 1
}

// admits reports whether a Service may use a pool, and if not, why.
func (p *Pool) admits(r *Request) (string, bool) {
	if p.only == nil {
		return "", true
	}
	if !p.only.anyNamespace && !slices.Contains(p.only.namespaces, r.Namespace) &&
		!anyMatches(p.only.byNamespace, r.NamespaceLabels) {
		return fmt.Sprintf("pool %s is not for namespace %s", p.Name, r.Namespace), false
	}
	if len(p.only.byService) > 0 && !anyMatches(p.only.byService, r.Labels) {
		return fmt.Sprintf("pool %s is not for a Service with these labels", p.Name), false
	}
	return "", true
}

func anyMatches(selectors []labels.Selector, set labels.Set) bool {
	return slices.ContainsFunc(selectors, func(s labels.Selector) bool { return s.Matches(set) })
}

// dedicated pools name namespaces or Services. They come before pools for all Services. A pool that
// only has a priority is used only by Services that ask for it, as in MetalLB.
func (p *Pool) dedicated() bool {
	return p.only != nil && !(p.only.anyNamespace && len(p.only.byService) == 0)
}

func (p *Pool) priority() int {
	if p.only == nil || p.only.priority == 0 {
		return math.MaxInt
	}
	return p.only.priority
}

// SelectsNamespaces reports whether the pool depends on labels of namespaces.
func (p *Pool) SelectsNamespaces() bool { return p.only != nil && len(p.only.byNamespace) > 0 }

// Covers reports whether the pool contains all addresses of a prefix.
func (p *Pool) Covers(prefix netip.Prefix) bool {
	var b netipx.IPSetBuilder
	for _, r := range p.ranges {
		b.AddRange(r)
	}
	set, err := b.IPSet()
	return err == nil && set.ContainsPrefix(prefix)
}

// Meets reports whether an address of a prefix is in one of the pool's ranges.
func (p *Pool) Meets(prefix netip.Prefix) bool {
	r := netipx.RangeOfPrefix(prefix.Masked())
	return slices.ContainsFunc(p.ranges, r.Overlaps)
}

package kinds

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Set is what speakers announce by. It must not be changed.
type Set struct {
	Pools          []*Pool
	Peers          []*Peer
	Advertisements []*Advertisement
	Layer2         []*L2Advertisement
}

// PoolOf returns the pool that an address is of; nil if none has it.
func (s *Set) PoolOf(a netip.Addr) *Pool {
	for _, p := range s.Pools {
		if p.Contains(a) {
			return p
		}
	}
	return nil
}

// Peer is a BGPPeer that was read.
type Peer struct {
	Ref         Ref
	Name        string
	MyASN       uint32
	PeerASN     uint32     // 0 for an unnumbered peer: any
	Address     netip.Addr // not valid for an unnumbered peer
	Interface   string
	Source      netip.Addr
	Port        uint16
	Hold        time.Duration
	Keepalive   time.Duration
	Connect     time.Duration
	RouterID    netip.Addr // not valid: that of the node
	Password    string
	BFD         *BFD // nil: none
	Restart     bool // graceful restart (RFC 4724)
	MultiHop    bool
	DualStack   bool
	NodeLabels  Selectors
	passwordRef string
}

// Carries reports whether the session carries routes of an address's family.
func (p *Peer) Carries(a netip.Addr) bool {
	return p.Interface != "" || p.DualStack || p.Address.Is4() == a.Is4()
}

// BFD has the parameters of a BFD session (RFC 5880, section 6.8.1).
type BFD struct {
	Receive, Transmit time.Duration
	Multiplier        uint8
}

// Selection says which VIPs an advertisement is about, and of which nodes.
type Selection struct {
	pools      []string
	poolLabels Selectors
	NodeLabels Selectors
	Services   Selectors
}

// ForPool reports whether it is about the addresses of a pool.
func (s *Selection) ForPool(p *Pool) bool {
	if len(s.pools)+len(s.poolLabels) == 0 {
		return true
	}
	return slices.Contains(s.pools, p.Name) || len(s.poolLabels) > 0 && s.poolLabels.Match(p.Labels)
}

// ForServices reports whether it is about an address of Services with these labels, one of which it
// must select. Labels that are not known are nil.
func (s *Selection) ForServices(list []labels.Set) bool {
	return len(s.Services) == 0 || slices.ContainsFunc(list, func(l labels.Set) bool {
		return l != nil && s.Services.Match(l)
	})
}

// Advertisement is a BGPAdvertisement that was read.
type Advertisement struct {
	Name        string
	Length4     int
	Length6     int
	LocalPref   uint32
	Communities []Community
	Selection
	peers []string
}

// L2Advertisement is one that was read.
type L2Advertisement struct {
	Ref  Ref
	Name string
	// Interfaces are those on which VIPs are announced; none: those with an address in a network
	// that has the VIP.
	Interfaces []string
	Selection
}

// ForPeer reports whether it is sent to a peer.
func (a *Advertisement) ForPeer(name string) bool {
	return len(a.peers) == 0 || slices.Contains(a.peers, name)
}

// Prefix is what is announced for an address.
func (a *Advertisement) Prefix(address netip.Addr) netip.Prefix {
	bits := a.Length6
	if address.Is4() {
		bits = a.Length4
	}
	return netip.PrefixFrom(address, bits).Masked()
}

// Community is one of RFC 1997, two numbers of 16 bits, or of RFC 8092 (Large), three of 32.
type Community struct {
	Large   bool
	Numbers [3]uint32
}

func (c Community) String() string {
	if c.Large {
		return fmt.Sprintf("large:%d:%d:%d", c.Numbers[0], c.Numbers[1], c.Numbers[2])
	}
	return fmt.Sprintf("%d:%d", c.Numbers[0], c.Numbers[1])
}

// ParseCommunity reads "65000:1" or "large:65000:1:2".
func ParseCommunity(text string) (c Community, err error) {
	bits, want := 16, 2
	rest, large := strings.CutPrefix(text, "large:")
	if c.Large = large; large {
		bits, want = 32, 3
	}
	parts := strings.Split(rest, ":")
	bad := fmt.Errorf("community %q is none such as 64500:7 or large:64500:1:2, and no Community object has the name",
		text)
	if len(parts) != want {
		return c, bad
	}
	for i, p := range parts {
		n, err := strconv.ParseUint(p, 10, bits)
		if err != nil {
			return c, bad
		}
		c.Numbers[i] = uint32(n)
	}
	if !large && c.Numbers[0] == 0 {
		return c, fmt.Errorf("community %q is reserved (RFC 1997)", text)
	}
	return c, nil
}

// Selectors match if one of them does, or if there is none.
type Selectors []labels.Selector

// Match reports whether labels match.
func (s Selectors) Match(l labels.Labels) bool {
	return len(s) == 0 || slices.ContainsFunc(s, func(one labels.Selector) bool { return one.Matches(l) })
}

func newSelectors(field string, from []metav1.LabelSelector) (s Selectors, err error) {
	var errs []error
	for i := range from {
		one, err := metav1.LabelSelectorAsSelector(&from[i])
		if err != nil {
			errs = append(errs, fmt.Errorf("%s[%d]: %w", field, i, err))
			continue
		}
		s = append(s, one)
	}
	return s, errors.Join(errs...)
}

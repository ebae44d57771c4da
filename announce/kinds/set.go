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

// Set is the parsed input of speakers. It must not be changed.
type Set struct {
	Pools          []*Pool
	Peers          []*Peer
	Advertisements []*Advertisement
	Layer2         []*L2Advertisement
}

// PoolOf returns the pool that contains an address; nil if none does.
func (s *Set) PoolOf(a netip.Addr) *Pool {
	for _, p := range s.Pools {
		if p.Contains(a) {
			return p
		}
	}
	return nil
}

// Peer is a parsed BGPPeer.
type Peer struct {
	Ref         Ref
	Name        string
	Created     time.Time // zero if the object comes from a file
	MyASN       uint32
	PeerASN     uint32     // 0 for an unnumbered peer: any
	Address     netip.Addr // not valid for an unnumbered peer
	Interface   string
	Source      netip.Addr
	Port        uint16
	Hold        time.Duration
	Keepalive   time.Duration
	Connect     time.Duration
	RouterID    netip.Addr // not valid: the node's
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

// Selection restricts an advertisement to some VIPs and nodes.
type Selection struct {
	pools      []string
	poolLabels Selectors
	NodeLabels Selectors
	Services   Selectors
}

// ForPool reports whether the advertisement applies to addresses of a pool; nil: of no pool.
func (s *Selection) ForPool(p *Pool) bool {
	if len(s.pools)+len(s.poolLabels) == 0 {
		return true
	}
	return p != nil && (slices.Contains(s.pools, p.Name) || len(s.poolLabels) > 0 && s.poolLabels.Match(p.Labels))
}

// ForServices reports whether the advertisement applies to an address of Services with these
// labels: it must select one of them. Unknown labels are nil.
func (s *Selection) ForServices(list []labels.Set) bool {
	return len(s.Services) == 0 || slices.ContainsFunc(list, func(l labels.Set) bool {
		return l != nil && s.Services.Match(l)
	})
}

// Advertisement is a parsed BGPAdvertisement.
type Advertisement struct {
	Name        string
	Length4     int
	Length6     int
	LocalPref   uint32
	Communities []Community
	Selection
	peers []string
}

// L2Advertisement is a parsed L2Advertisement.
type L2Advertisement struct {
	Ref  Ref
	Name string
	// Interfaces are the interfaces to announce VIPs on; none: those with an address in a network
	// that contains the VIP.
	Interfaces []string
	Selection
}

// ForPeer reports whether the advertisement is sent to a peer.
func (a *Advertisement) ForPeer(name string) bool {
	return len(a.peers) == 0 || slices.Contains(a.peers, name)
}

// Prefix returns the prefix to announce for an address.
func (a *Advertisement) Prefix(address netip.Addr) netip.Prefix {
	bits := a.Length6
	if address.Is4() {
		bits = a.Length4
	}
	return netip.PrefixFrom(address, bits).Masked()
}

// Community is a community: two numbers of 16 bits (RFC 1997), or three of 32 (Large, RFC 8092).
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

// ParseCommunity parses "65000:1" or "large:65000:1:2".
func ParseCommunity(text string) (c Community, err error) {
	bits, want := 16, 2
	rest, large := strings.CutPrefix(text, "large:")
	if c.Large = large; large {
		bits, want = 32, 3
	}
	parts := strings.Split(rest, ":")
	bad := fmt.Errorf("community %q has no form such as 64500:7 or large:64500:1:2, and no Community object has "+
		"the name", text)
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

// Selectors match if one of them matches, or if there are none.
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

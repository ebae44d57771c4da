package bgp

import (
	"fmt"
	"net/netip"
	"strings"

	"sluice.dev/sluice/announce"
	"sluice.dev/sluice/announce/kinds"
)

// protocol is the name of this speaker.
const protocol = "bgp"

// gracefulShutdown is the community GRACEFUL_SHUTDOWN (RFC 8326, section 3).
var gracefulShutdown = kinds.Community{Numbers: [3]uint32{65535, 0}}

// A LastResort route is a Leaving route with a longer AS path, or to a peer of the same AS with a
// higher MED: routers compare the length of the AS path and then MED (RFC 4271, section 9.1.2.2)
// before they balance over equal routes. To a peer of the same AS the path cannot be longer,
// because the peer would reject its own AS in it as a loop. The prepended path is longer than a
// path by any other gateway of the same fabric: a Clos network of five stages has five hops.
const (
	lastResortPrepend = 8
	lastResortMED     = 1 // a route without MED has the lowest one, 0
)

// Route is a prefix and its attributes for each peer.
type Route struct {
	Prefix netip.Prefix
	To     map[string]Attributes // by the peer's name
}

// Attributes are the attributes of a route that may differ between peers.
type Attributes struct {
	LocalPref   uint32 // 0: none, or the route leaves
	Communities []kinds.Community
	// Leaving: routers that know GRACEFUL_SHUTDOWN prefer others. LastResort: all routers do.
	Leaving, LastResort bool
	Internal            bool // to a peer of the same AS: LocalPref is sent
	// Rank: routers prefer a gateway with a lower rank, by the AS path or MED like LastResort.
	Rank int
}

// prepend returns by how much the AS path is longer, or to a peer of the same AS the MED higher.
func (a *Attributes) prepend() int {
	switch {
	case !a.LastResort:
		return a.Rank
	case a.Internal:
		return a.Rank + lastResortMED
	}
	return a.Rank + lastResortPrepend
}

// String returns the attributes as text.
func (a Attributes) String() string {
	var parts []string
	if a.Internal && (a.LocalPref != 0 || a.Leaving) {
		parts = append(parts, fmt.Sprintf("local preference %d", a.LocalPref))
	}
	switch n := a.prepend(); {
	case n > 0 && a.Internal:
		parts = append(parts, fmt.Sprintf("MED %d", n))
	case n > 0:
		parts = append(parts, fmt.Sprintf("AS path +%d", n))
	}
	for _, c := range a.Communities {
		if c == gracefulShutdown {
			parts = append(parts, "GRACEFUL_SHUTDOWN")
		} else {
			parts = append(parts, c.String())
		}
	}
	return strings.Join(parts, " ")
}

// prefixOf returns the prefix to announce for a VIP. An aggregate must lie in the pool: otherwise
// it would attract packets to addresses that belong to others. why is the reason if it does not.
func prefixOf(a *kinds.Advertisement, s *announce.VIPVerdict) (prefix netip.Prefix, why string) {
	single := netip.PrefixFrom(s.VIP, s.VIP.BitLen())
	if s.Source { // each has its own owner
		return single, ""
	}
	if prefix = a.Prefix(s.VIP); prefix.IsSingleIP() || s.Pool.Covers(prefix) {
		return prefix, ""
	}
	return single, fmt.Sprintf("not as %v, which pool %s does not cover", prefix,
		s.Pool.Name)
}

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

// What makes a route the last resort, beside what makes it leave: routers compare the length of the
// AS path and then MED (RFC 4271, section 9.1.2.2) before they spread packets over equal routes. A
// path to a peer of the same AS cannot be longer, as the peer takes its own AS in it for a loop.
// The prepended path is longer than one by any other gateway of the same fabric: a Clos network of
// five stages has five hops.
const (
	lastResortPrepend = 8
	lastResortMED     = 1 // a route without MED has the lowest one, 0
)

// Route is a prefix and what of it each peer is told.
type Route struct {
	Prefix netip.Prefix
	To     map[string]Attributes // by the peer's name
}

// Attributes are those of a route that peers may be told differently.
type Attributes struct {
	LocalPref   uint32 // 0: none, or that of a route that leaves
	Communities []kinds.Community
	// Leaving: routers are asked to prefer others. LastResort: and so that no configuration of
	// theirs is needed.
	Leaving, LastResort bool
	Internal            bool // to a peer of the same AS: LocalPref is sent
}

// String describes them for people.
func (a Attributes) String() string {
	var parts []string
	if a.Internal && (a.LocalPref != 0 || a.Leaving) {
		parts = append(parts, fmt.Sprintf("local preference %d", a.LocalPref))
	}
	switch {
	case a.LastResort && a.Internal:
		parts = append(parts, fmt.Sprintf("MED %d", lastResortMED))
	case a.LastResort:
		parts = append(parts, fmt.Sprintf("AS path +%d", lastResortPrepend))
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

// prefixOf is what is announced for a VIP. An aggregate must lie in the pool: it would take packets
// of addresses that are somebody else's.
func prefixOf(a *kinds.Advertisement, s *announce.VIPVerdict) (prefix netip.Prefix, why string) {
	if prefix = a.Prefix(s.VIP); prefix.IsSingleIP() || s.Pool.Covers(prefix) {
		return prefix, ""
	}
	return netip.PrefixFrom(s.VIP, s.VIP.BitLen()), fmt.Sprintf("not as %v, which pool %s does not cover", prefix,
		s.Pool.Name)
}

package neigh

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// maxMultipathWarnings bounds the prefixes that are named; the others are only counted.
const maxMultipathWarnings = 5

// spreadRoute is a route that the kernel would spread over several next hops: target has the first
// next hop, without a source.
type spreadRoute struct {
	prefix netip.Prefix
	target target
}

// multipathWarnings names the prefixes for which the kernel would use several next hops and the
// mirror uses one. Routes of Kind Kernel need no warning: the kernel sends their packets.
func multipathWarnings(routes []spreadRoute, targets map[netip.Prefix]target) []string {
	var found []netip.Prefix
	for _, r := range routes {
		t := r.target
		t.source = targets[r.prefix].source
		if t == targets[r.prefix] { // otherwise another route for the prefix is preferred
			found = append(found, r.prefix)
		}
	}
	slices.SortFunc(found, netip.Prefix.Compare)
	found = slices.Compact(found)
	var warnings []string
	for _, p := range found[:min(len(found), maxMultipathWarnings)] {
		warnings = append(warnings, fmt.Sprintf("multipath route is not spread, its first next hop takes all: %s", p))
	}
	if more := len(found) - maxMultipathWarnings; more > 0 {
		warnings = append(warnings, fmt.Sprintf("multipath routes are not spread: %d more", more))
	}
	return warnings
}

func aliveNexthops(r *netlink.Route) (n int) {
	for _, nh := range r.MultiPath {
		if nh.Flags&unix.RTNH_F_DEAD == 0 {
			n++
		}
	}
	return n
}

// logNew logs the warnings that were not there before.
func logNew(log *slog.Logger, warnings, before []string) {
	for _, w := range warnings {
		if !slices.Contains(before, w) {
			log.Warn(w)
		}
	}
}

package compare

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"sluice.dev/sluice/bench/paired"
)

// system is what forwards, in a place of its own.
type system interface {
	// start returns when packets are forwarded.
	start(ctx context.Context, p *place) error
	// stop ends it. The place is closed afterwards, with all that is left in it.
	stop() error
	// counters are what it says itself about packets that it lost, by name.
	counters(ctx context.Context) (map[string]uint64, error)
	// diagnosis is what it logged, for an error message.
	diagnosis() string
}

// kind describes a system: what it does to a packet, and what it is compared as.
type kind struct {
	name string
	// translates: packets arrive at an endpoint and from the gateway's address. Others
	// arrive as they were sent.
	translates bool
	peer       bool // translates, and is not Sluice
	cluster    bool // needs kube-proxy and a control plane
	// optional systems are measured when they are named.
	optional bool
	rps      bool // received packets are spread over all CPUs (receive packet steering)
	services bool // has as many Services as the Config says; else one
	what     string
}

var kinds = []kind{
	{name: "sluice", translates: true, services: true,
		what: "the daemon with its defaults, as many Services as kube-proxy"},
	{name: "sluice-one", translates: true, what: "the same, with one Service"},
	{name: paired.Before, translates: true, services: true, optional: true,
		what: "an older build of the daemon (--before), otherwise as sluice"},
	{name: "l2fwd", what: "our rings, MAC addresses rewritten, nothing else"},
	{name: "asavie", what: "l2fwd over asavie/xdp v0.3.3 as it is"},
	{name: "asavie-drained", optional: true, what: "the same, its transmit ring drained by the caller"},
	{name: "kernel", what: "ip_forward, no netfilter rules"},
	{name: "kernel-rps", optional: true, rps: true, what: "the same, RPS over all CPUs"},
	{name: "nftables", translates: true, peer: true, what: "DNAT and masquerade, two rules"},
	{name: "nftables-rps", translates: true, peer: true, rps: true, what: "the same, RPS over all CPUs"},
	{name: "kube-proxy-nftables", translates: true, peer: true, cluster: true, services: true,
		what: "kube-proxy as installed"},
	{name: "kube-proxy-nftables-rps", translates: true, peer: true, cluster: true, services: true, rps: true,
		what: "the same, RPS over all CPUs"},
	{name: "kube-proxy-iptables", translates: true, peer: true, cluster: true, services: true,
		what: "kube-proxy as installed"},
	{name: "kube-proxy-iptables-rps", translates: true, peer: true, cluster: true, services: true, rps: true,
		what: "the same, RPS over all CPUs"},
}

// Systems are the names of what can be measured, in the order of tables.
func Systems() (names []string) {
	for _, k := range kinds {
		names = append(names, k.name)
	}
	return names
}

// Describe lists the systems, a line each.
func Describe() string {
	var b strings.Builder
	for _, k := range kinds {
		fmt.Fprintf(&b, "  %-24s %s\n", k.name, k.what)
	}
	return b.String()
}

// defaultSystems are all that are not optional; without a cluster, those that need none.
func defaultSystems(cluster bool) (names []string) {
	for _, k := range kinds {
		if !k.optional && (cluster || !k.cluster) {
			names = append(names, k.name)
		}
	}
	return names
}

func kindOf(name string) (kind, error) {
	i := slices.IndexFunc(kinds, func(k kind) bool { return k.name == name })
	if i < 0 {
		return kind{}, fmt.Errorf("system %q is not one of %s", name, strings.Join(Systems(), ", "))
	}
	return kinds[i], nil
}

// base is the system without the way packets are steered to it.
func (k *kind) base() string { return strings.TrimSuffix(k.name, "-rps") }

package compare

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"sluice.dev/sluice/bench/paired"
)

// system is a forwarder in a place of its own.
type system interface {
	// start returns when packets are forwarded.
	start(ctx context.Context, p *place) error
	// stop ends it. The caller closes the place, and everything left in it, afterwards.
	stop() error
	// counters returns the system's own counters of lost packets, by name.
	counters(ctx context.Context) (map[string]uint64, error)
	// diagnosis returns the system's log, for an error message.
	diagnosis() string
}

// kind describes a system: how it changes a packet, and in which comparisons it takes part.
type kind struct {
	name string
	// translates: packets arrive at an endpoint, from the gateway's address. Other systems deliver
	// packets unchanged.
	translates bool
	peer       bool // translates, and is not Sluice
	cluster    bool // needs kube-proxy and a control plane
	// optional systems are measured only when they are named.
	optional bool
	rps      rps
	services bool // has Config.Services Services; otherwise one
	what     string
}

// rps selects the CPUs on which a system in the kernel handles received packets (receive packet
// steering, Documentation/networking/scaling.rst).
type rps uint8

const (
	noRPS   rps = iota // the CPU on which a packet arrives
	rpsAll             // all CPUs
	rpsFree            // CPUs on which no packet arrives
)

// suffix is the end of a system's name that states its RPS variant.
func (r rps) suffix() string { return [...]string{"", "-rps", "-rps-free"}[r] }

// what describes an RPS variant in the list of systems.
func (r rps) what() string {
	return [...]string{"", "the same, RPS over all CPUs", "the same, RPS over the CPUs where no packet arrives"}[r]
}

// steered returns a system in the kernel and its RPS variants. The variants are optional unless the
// system is a peer.
func steered(k kind) (list []kind) {
	name := k.name
	for r := noRPS; r <= rpsFree; r++ {
		if k.rps, k.name = r, name+r.suffix(); r != noRPS {
			k.what, k.optional = r.what(), k.optional || !k.peer
		}
		list = append(list, k)
	}
	return list
}

var kinds = slices.Concat([]kind{
	{name: ours, translates: true, services: true,
		what: "the daemon with its defaults, as many Services as kube-proxy"},
	{name: "sluice-one", translates: true, what: "the same, with one Service"},
	{name: placed, translates: true, services: true,
		what: "as sluice, and by hand a worker on each CPU where no packet arrives"},
	{name: shared, translates: true, services: true, optional: true, what: "as sluice, with waiting: shared"},
	{name: withOptions, translates: true, services: true, optional: true,
		what: "as sluice, with --sluice-options"},
	{name: paired.Before, translates: true, services: true, optional: true,
		what: "an older build of the daemon (--before), otherwise as sluice"},
	{name: "l2fwd", what: "our rings, MAC addresses rewritten, nothing else; workers as sluice-placed"},
	{name: "asavie", what: "l2fwd over asavie/xdp v0.3.3 as it is"},
	{name: "asavie-drained", optional: true, what: "the same, its transmit ring drained by the caller"},
	{name: "xdp-nat", translates: true, peer: true, services: true,
		what: "NAT in the kernel by an XDP program, as Cilium's acceleration does it (bench/xdpnat)"},
},
	steered(kind{name: "kernel", what: "ip_forward, no netfilter rules"}),
	steered(kind{name: "nftables", translates: true, peer: true, what: "DNAT and masquerade, two rules"}),
	steered(kind{name: withOffloads, translates: true, peer: true, optional: true,
		what: "the same between interfaces with the kernel's offloads, for --bulk"}),
	steered(kind{name: "kube-proxy-nftables", translates: true, peer: true, cluster: true, services: true,
		what: "kube-proxy as installed"}),
	steered(kind{name: "kube-proxy-iptables", translates: true, peer: true, cluster: true, services: true,
		what: "kube-proxy as installed"}),
)

// Systems that ratios compare, and the system that uses Config.Options.
const (
	ours        = "sluice"
	placed      = "sluice-placed"
	shared      = "sluice-shared"
	withOptions = "sluice-options"
)

// Systems returns the names of all systems, in the order of tables.
func Systems() (names []string) {
	for _, k := range kinds {
		names = append(names, k.name)
	}
	return names
}

// Describe lists the systems, one per line.
func Describe() string {
	var b strings.Builder
	for _, k := range kinds {
		fmt.Fprintf(&b, "  %-24s %s\n", k.name, k.what)
	}
	return b.String()
}

// protocol is that of the Services.
func (c *Config) protocol() corev1.Protocol {
	if c.Bulk {
		return corev1.ProtocolTCP
	}
	return corev1.ProtocolUDP
}

// defaultSystems returns all systems that are not optional; without a cluster, only systems that
// need none.
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

// base is the system's name without the suffix of its RPS variant.
func (k *kind) base() string { return strings.TrimSuffix(k.name, k.rps.suffix()) }

package compare

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"sluice.dev/sluice/test/bed/topo"
)

// kernel is Linux' own forwarding. The service's address is routed to the server, so that it
// forwards the same packets as all systems.
type kernel struct{}

func (kernel) start(_ context.Context, p *place) error {
	if err := p.gateway.Forward(true); err != nil {
		return err
	}
	return p.gateway.Route(netip.PrefixFrom(serviceVIP, serviceVIP.BitLen()), p.server.Addr4())
}

func (kernel) stop() error                                         { return nil }
func (kernel) counters(context.Context) (map[string]uint64, error) { return nil, nil }
func (kernel) diagnosis() string                                   { return "" }

// nftables is the smallest equivalent of Sluice: two rules.
type nftables struct {
	kernel
	from     []netip.Addr // the SNAT addresses; the interface's own address if nil
	protocol corev1.Protocol
}

func (n nftables) start(ctx context.Context, p *place) error {
	if err := p.gateway.Forward(true); err != nil {
		return err
	}
	if err := p.gateway.NFT(ctx, n.twoRules()); err != nil {
		return fmt.Errorf("%w (install the package nftables, or leave this system out with --systems)", err)
	}
	return nil
}

// twoRules choose an endpoint at random, as kube-proxy does.
func (n *nftables) twoRules() string {
	source := "masquerade"
	if len(n.from) > 0 {
		source = fmt.Sprintf("snat to %s-%s", n.from[0], n.from[len(n.from)-1])
	}
	var list []string
	for i := range endpoints {
		list = append(list, fmt.Sprintf("%d : %s", i, endpoint(i)))
	}
	return fmt.Sprintf(`table ip compare {
	chain prerouting {
		type nat hook prerouting priority dstnat
		ip daddr %s %s dport %d dnat to numgen random mod %d map { %s } : %d
	}
	chain postrouting {
		type nat hook postrouting priority srcnat
		oifname %s %s
	}
}
`, serviceVIP, strings.ToLower(string(n.protocol)), servicePort, endpoints, strings.Join(list, ", "), endpointPort,
		backDev, source)
}

// steerPackets makes the kernel distribute the packets that a host's interface receives over the
// CPUs of a mask; 0 turns this off (RPS, Documentation/networking/scaling.rst).
func steerPackets(h *topo.Host, dev string, queues int, mask uint64) error {
	for q := range queues {
		if err := h.SetDevice(dev, fmt.Sprintf("queues/rx-%d/rps_cpus", q), strconv.FormatUint(mask, 16)); err != nil {
			return err
		}
	}
	return nil
}

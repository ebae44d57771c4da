package compare

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"sluice.dev/sluice/bench/topo"
)

// kernel is Linux' own forwarding. The service's address is routed to the server, so
// that it gets the packets that all get.
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

// nftables is the least that does what Sluice does: two rules.
type nftables struct{ kernel }

func (nftables) start(ctx context.Context, p *place) error {
	if err := p.gateway.Forward(true); err != nil {
		return err
	}
	return p.gateway.Run(func() error {
		c := exec.CommandContext(ctx, "nft", "-f", "-")
		c.Stdin = strings.NewReader(twoRules())
		if out, err := c.CombinedOutput(); err != nil {
			return fmt.Errorf("nft: %w (install the package nftables, or leave this system out with --systems)\n%s",
				err, out)
		}
		return nil
	})
}

// twoRules choose an endpoint at random, as kube-proxy does.
func twoRules() string {
	var list []string
	for i := range endpoints {
		list = append(list, fmt.Sprintf("%d : %s", i, endpoint(i)))
	}
	return fmt.Sprintf(`table ip compare {
	chain prerouting {
		type nat hook prerouting priority dstnat
		ip daddr %s udp dport %d dnat to numgen random mod %d map { %s } : %d
	}
	chain postrouting {
		type nat hook postrouting priority srcnat
		oifname %s masquerade
	}
}
`, serviceVIP, servicePort, endpoints, strings.Join(list, ", "), endpointPort, backDev)
}

// steerPackets has the kernel spread what a host's interface receives over the CPUs of
// a mask, or over none (RPS, Documentation/networking/scaling.rst).
func steerPackets(h *topo.Host, dev string, queues int, mask uint64) error {
	for q := range queues {
		if err := h.SetDevice(dev, fmt.Sprintf("queues/rx-%d/rps_cpus", q), strconv.FormatUint(mask, 16)); err != nil {
			return err
		}
	}
	return nil
}

// conntrackRoom reports whether the machine's connection tracking takes so many flows. The
// limit is the machine's, and can be set in its first namespace only.
func conntrackRoom(flows int) error {
	const file = "/proc/sys/net/netfilter/nf_conntrack_max"
	text, err := os.ReadFile(file)
	if os.IsNotExist(err) {
		return nil // not loaded yet; loading makes room for as many as memory suggests
	}
	if err != nil {
		return err
	}
	most, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	// Entries of a place that was closed stay until the kernel's worker comes round.
	if need := 2 * flows; most < need {
		return fmt.Errorf("%d flows: nf_conntrack_max is %d: sysctl -w net.netfilter.nf_conntrack_max=%d", flows, most,
			need)
	}
	return nil
}

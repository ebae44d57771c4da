package compare

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/host/nic/ethtool"
)

// losses are counters of lost packets by place, as the kernel and the system count them. Several
// counters may count the same packet: a full receive ring of a socket is also a drop of the device
// to which the socket is bound.
type losses map[string]uint64

// readLosses reads all counters of a place. The counters of the generator's and the receiver's own
// interfaces are in the generator's result.
func readLosses(ctx context.Context, p *place, s system) (losses, error) {
	all := losses{}
	err := p.gateway.Run(func() error {
		for _, dev := range [...]string{frontDev, backDev} {
			if err := all.addDevice(dev); err != nil {
				return err
			}
		}
		return all.addConntrack()
	})
	if err != nil {
		return nil, err
	}
	if err := all.addBacklog(); err != nil {
		return nil, err
	}
	own, err := s.counters(ctx)
	if err != nil {
		return nil, err
	}
	for name, n := range own {
		all[name] += n
	}
	return all, nil
}

func (l losses) addDevice(dev string) error {
	link, err := netlink.LinkByName(dev)
	if err != nil {
		return err
	}
	if s := link.Attrs().Statistics; s != nil {
		l[dev+" rx_dropped"] += s.RxDropped
		l[dev+" tx_dropped"] += s.TxDropped
	}
	stats, err := ethtool.Statistics(dev)
	if err != nil {
		return err
	}
	for name, n := range stats {
		// rx_queue_0_drops, rx_queue_0_xdp_drops, tx_queue_0_xdp_xmit_errors, ...
		if strings.HasSuffix(name, "drops") || strings.HasSuffix(name, "errors") {
			l[dev+" "+name] += n
		}
	}
	return nil
}

// addBacklog reads the second column of /proc/net/softnet_stat: packets dropped because the backlog
// queue of a CPU was full (net.core.netdev_max_backlog), in all namespaces.
func (l losses) addBacklog() error {
	text, err := os.ReadFile("/proc/net/softnet_stat")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 1 {
			n, err := strconv.ParseUint(f[1], 16, 64)
			if err != nil {
				return fmt.Errorf("softnet_stat: %w", err)
			}
			l["backlog full"] += n
		}
	}
	return nil
}

// addConntrack reads the failure counters of connection tracking in the calling thread's namespace:
// a table of hexadecimal numbers with a line per CPU, after a line of names.
func (l losses) addConntrack() error {
	text, err := os.ReadFile("/proc/thread-self/net/stat/nf_conntrack")
	if os.IsNotExist(err) {
		return nil // the module was never loaded
	}
	if err != nil {
		return err
	}
	var names []string
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if names == nil {
			names = f
			continue
		}
		for i, name := range names {
			if i >= len(f) || !slices.Contains([]string{"insert_failed", "drop", "early_drop", "invalid"}, name) {
				continue
			}
			n, err := strconv.ParseUint(f[i], 16, 64)
			if err != nil {
				return fmt.Errorf("nf_conntrack statistics: %w", err)
			}
			l["conntrack "+name] += n
		}
	}
	return nil
}

// since returns the losses after an earlier reading, without zeroes.
func (l losses) since(before losses) losses {
	d := losses{}
	for name, n := range l {
		if n > before[name] {
			d[name] = n - before[name]
		}
	}
	return d
}

// String lists the counters, the largest first.
func (l losses) String() string {
	names := slices.SortedFunc(maps.Keys(l), func(a, b string) int {
		return cmp.Or(cmp.Compare(l[b], l[a]), strings.Compare(a, b))
	})
	for i, name := range names {
		names[i] = fmt.Sprintf("%s %d", name, l[name])
	}
	return strings.Join(names, ", ")
}

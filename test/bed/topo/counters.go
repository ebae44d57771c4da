package topo

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
)

// Counters are the kernel's own counters of a namespace, by the names nstat(8)
// prints: "TcpInErrs", "UdpInCsumErrors", "Ip6InHdrErrors", "TcpExtTCPTimeouts".
type Counters map[string]uint64

// Counters reads the host's counters.
func (h *Host) Counters() (Counters, error) {
	c := make(Counters)
	err := h.Run(func() error {
		// /proc/net is that of the process; this thread's is elsewhere.
		for _, f := range [...]struct {
			file  string
			parse func(Counters, string) error
		}{
			{"/proc/thread-self/net/snmp", parsePairedLines},
			{"/proc/thread-self/net/netstat", parsePairedLines},
			{"/proc/thread-self/net/snmp6", parseColumns},
			{"/proc/thread-self/net/sctp/snmp", parseColumns}, // of a module
		} {
			b, err := os.ReadFile(f.file)
			if errors.Is(err, os.ErrNotExist) && strings.Contains(f.file, "sctp") {
				continue
			}
			if err != nil {
				return err
			}
			if err := f.parse(c, string(b)); err != nil {
				return fmt.Errorf("%s: %w", f.file, err)
			}
		}
		return nil
	})
	return c, err
}

// parsePairedLines reads a line of names and a line of values for each protocol.
func parsePairedLines(c Counters, text string) error {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	for i := 0; i+1 < len(lines); i += 2 {
		names, values := strings.Fields(lines[i]), strings.Fields(lines[i+1])
		if len(names) != len(values) || len(names) == 0 || names[0] != values[0] {
			return fmt.Errorf("names and values do not match: %q", lines[i])
		}
		protocol := strings.TrimSuffix(names[0], ":")
		for j := 1; j < len(names); j++ {
			// A few are signed (TcpMaxConn is -1); none of them is a counter.
			if v, err := strconv.ParseUint(values[j], 10, 64); err == nil {
				c[protocol+names[j]] = v
			}
		}
	}
	return nil
}

func parseColumns(c Counters, text string) error {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) != 2 {
			return fmt.Errorf("not a name and a value: %q", line)
		}
		v, err := strconv.ParseUint(f[1], 10, 64)
		if err != nil {
			return err
		}
		c[f[0]] = v
	}
	return nil
}

// Dropped is how many packets the network's veth devices could not hand to their other end, whose
// ring or backlog was full: a NIC counts the same when its ring has no free descriptor. The sender
// counts it (veth_xmit, drivers/net/veth.c).
func (n *Net) Dropped() (dropped uint64, err error) {
	count := func() error {
		links, err := netlink.LinkList()
		if err != nil {
			return fmt.Errorf("read counters of interfaces: %w", err)
		}
		for _, l := range links {
			// Devices that a gateway makes for itself do not belong to the network.
			if a := l.Attrs(); l.Type() == "veth" && !strings.HasPrefix(a.Name, "sluice") && a.Statistics != nil {
				dropped += a.Statistics.TxDropped
			}
		}
		return nil
	}
	for _, h := range n.hosts {
		if err := h.Run(count); err != nil {
			return 0, err
		}
	}
	if n.wire != nil {
		err = n.wire.run(count)
	}
	return dropped, err
}

// Since returns the counts after an earlier reading.
func (c Counters) Since(before Counters) Counters {
	d := make(Counters, len(c))
	for k, v := range c {
		d[k] = v - min(v, before[k])
	}
	return d
}

// damage are the counters of packets that arrived with a bad header or checksum.
var damage = [...]string{
	"IpInHdrErrors", "IpInAddrErrors", "IpExtInCsumErrors",
	"IcmpInErrors", "IcmpInCsumErrors", "TcpInErrs", "TcpInCsumErrors",
	"UdpInErrors", "UdpInCsumErrors", "UdpLiteInCsumErrors",
	"Ip6InHdrErrors", "Ip6InAddrErrors", "Ip6InTruncatedPkts",
	"Icmp6InErrors", "Icmp6InCsumErrors", "Udp6InErrors", "Udp6InCsumErrors",
	"SctpChecksumErrors",
}

// harmless maps counters of damage to the part of them that is no damage: good
// datagrams for a full receive buffer (__udp_queue_rcv_skb, net/ipv4/udp.c), and a SYN
// or SYN-ACK that comes again on an open connection (tcp_validate_incoming,
// net/ipv4/tcp_input.c).
var harmless = map[string]string{
	"UdpInErrors": "UdpRcvbufErrors", "Udp6InErrors": "Udp6RcvbufErrors", "TcpInErrs": "TcpExtTCPSYNChallenge",
}

// Damaged returns the counters of damaged packets that are not zero, as
// "name=value", sorted. Nothing a good translator sends adds to them.
func (c Counters) Damaged() []string {
	var out []string
	for _, name := range damage {
		if v := c[name] - min(c[name], c[harmless[name]]); v > 0 {
			out = append(out, fmt.Sprintf("%s=%d", name, v))
		}
	}
	slices.Sort(out)
	return out
}

// Retransmitted is how many TCP segments the host sent again.
func (c Counters) Retransmitted() uint64 { return c["TcpRetransSegs"] }

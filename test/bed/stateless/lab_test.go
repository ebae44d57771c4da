//go:build root

package stateless

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
)

// loopback is a pair of ports and traffic between them.
func loopback(tb testing.TB, queues int) Config {
	tb.Helper()
	l, err := NewLoopback(queues)
	must(tb, err)
	tb.Cleanup(func() { must(tb, l.Close()) })
	t := traffic4()
	t.DestinationMAC, err = l.B.MAC()
	must(tb, err)
	return Config{Traffic: t, Tx: Tx{Port: l.A, Queues: queues}, Rx: Rx{Port: l.B, Settle: 20 * time.Millisecond}}
}

func open(tb testing.TB, c Config) *Lab {
	tb.Helper()
	l, err := Open(tb.Context(), c)
	must(tb, err)
	tb.Cleanup(func() { must(tb, l.Close()) })
	return l
}

func TestCountsAreExact(t *testing.T) {
	for _, method := range []Method{Count, Full, Timed} {
		t.Run(method.String(), func(t *testing.T) {
			c := loopback(t, 2)
			c.Rx.Method = method
			lab := open(t, c)
			for _, packets := range []uint64{1, 999, 5000} {
				checkCounts(t, lab, packets)
			}
		})
	}
}

// TestNoSuchCPU: a CPU that is not there is an error that names it, for sender and receiver.
func TestNoSuchCPU(t *testing.T) {
	const none = 1023 // the last that a CPU set has room for
	for name, set := range map[string]func(*Config){
		"afxdp": func(c *Config) { c.Tx.CPUs = []int{none} },
		"full":  func(c *Config) { c.Rx.Method, c.Rx.CPUs = Full, []int{none} },
	} {
		t.Run(name, func(t *testing.T) {
			c := loopback(t, 2)
			set(&c)
			_, err := open(t, c).Trial(t.Context(), Load{Packets: 10, Rate: 1000})
			if err == nil || !strings.Contains(err.Error(), "pin to CPU 1023") {
				t.Errorf("%v", err)
			}
		})
	}
}

func checkCounts(t *testing.T, lab *Lab, packets uint64) {
	t.Helper()
	r, err := lab.Trial(t.Context(), Load{Packets: packets, Rate: 100_000})
	must(t, err)
	if r.Sent.Packets != packets || r.Received.Packets != packets || r.Lost() != 0 {
		t.Errorf("sent %d, received %d of %d", r.Sent.Packets, r.Received.Packets, packets)
	}
	if want := int(min(packets, 1000)); r.Received.Flows != want || r.Sent.Flows != want {
		t.Errorf("%d packets: %d flows sent, %d received, want %d", packets, r.Sent.Flows, r.Received.Flows, want)
	}
	if want := packets * 60; r.Sent.Bytes != want || r.Received.Bytes != want {
		t.Errorf("%d bytes sent, %d received, want %d", r.Sent.Bytes, r.Received.Bytes, want)
	}
	c := &r.Received
	if c.Foreign+c.Duplicates+c.Reordered+c.Damaged+c.Moved+c.Renamed+c.Starved > 0 || len(c.Violations) > 0 ||
		len(r.Drops) > 0 {
		t.Errorf("something is wrong: %+v, %v", c, r.Drops)
	}
	if h := c.Latency; h != nil && (h.Count() != int64(packets) || h.Max() > time.Second) {
		t.Errorf("%d latencies, the highest %v", h.Count(), h.Max())
	} else if h == nil && lab.Config().Rx.Method != Count {
		t.Error("no latency")
	} else if h != nil {
		t.Logf("latency of %d packets: median %v, p99 %v", packets, h.Percentile(50), h.Percentile(99))
	}
}

// TestEveryPacketArrives sends all kinds over veth; the receiver checks each.
func TestEveryPacketArrives(t *testing.T) {
	for name, traffic := range everyTraffic() {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // mostly waits
			c := loopback(t, 1)
			c.Rx.Method = Full
			mac := c.Traffic.DestinationMAC
			c.Traffic = traffic
			c.Traffic.DestinationMAC, c.Traffic.SourceMAC = mac, nil
			lab := open(t, c)
			const packets = 240
			r, err := lab.Trial(t.Context(), Load{Packets: packets, Rate: 20_000})
			must(t, err)
			v := &r.Received
			if v.Packets != packets || v.Flows != 7 || v.Bytes != r.Sent.Bytes || v.Damaged+v.Foreign+v.Duplicates+
				v.Reordered+v.Moved+v.Renamed != 0 {
				t.Errorf("sent %+v, received %+v", r.Sent, v)
			}
			samples, err := lab.Samples()
			must(t, err)
			if len(samples) == 0 || v.Bytes < packets*60 {
				t.Errorf("%d samples, %d bytes", len(samples), v.Bytes)
			}
		})
	}
}

func TestGuard(t *testing.T) {
	c := loopback(t, 1)
	c.Tx.Port = Port{Interface: "lo"} // the machine's own namespace
	if _, err := Open(t.Context(), c); !errors.Is(err, ErrNotYours) {
		t.Errorf("in the machine's namespace: %v", err)
	}
	c = loopback(t, 1)
	must(t, c.Tx.Port.Run(func() error {
		link, err := netlink.LinkByName(c.Tx.Port.Interface)
		if err != nil {
			return err
		}
		return netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Scope: netlink.SCOPE_LINK,
			Dst: &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}})
	}))
	if _, err := Open(t.Context(), c); !errors.Is(err, ErrNotYours) {
		t.Errorf("with a default route: %v", err)
	}
	c.Tx.OwnNetwork = true
	open(t, c)
}

func TestBadConfigs(t *testing.T) {
	for name, spoil := range map[string]func(*Config){
		"no addresses": func(c *Config) { c.Traffic.Sources = Addresses{} },
		"two families": func(c *Config) { c.Traffic.Destinations.First = netip.MustParseAddr("fd00::1") },
		"ports":        func(c *Config) { c.Traffic.SourcePorts = Ports{9, 8} },
		"flows":        func(c *Config) { c.Traffic.Flows = 1001 },
		"carry": func(c *Config) {
			c.Traffic.Sources = Addresses{netip.MustParseAddr("255.255.255.255"),
				2}
		},
		"no MAC":            func(c *Config) { c.Traffic.DestinationMAC = nil },
		"SYN fragments":     func(c *Config) { c.Traffic.Protocol, c.Traffic.Fragments = TCPSYN, 2 },
		"VLAN":              func(c *Config) { c.Traffic.VLANs = []uint16{4095} },
		"three tags":        func(c *Config) { c.Traffic.VLANs = []uint16{1, 2, 3} },
		"size":              func(c *Config) { c.Traffic.Sizes = []Size{{63, 1}} },
		"above the MTU":     func(c *Config) { c.Traffic.Sizes = []Size{{loopbackMTU + 19, 1}} },
		"weight":            func(c *Config) { c.Traffic.Sizes = []Size{{64, 0}} },
		"burst":             func(c *Config) { c.Tx.Burst = maxBurst + 1 },
		"more queues":       func(c *Config) { c.Tx.Queues = maxQueues + 1 },
		"echo with a port":  func(c *Config) { c.Traffic.Protocol = ICMPEcho },
		"no such interface": func(c *Config) { c.Rx.Port.Interface = "nothing" },
	} {
		c := loopback(t, 1)
		spoil(&c)
		if lab, err := Open(t.Context(), c); err == nil {
			t.Errorf("%s: accepted", name)
			must(t, lab.Close())
		}
	}
	lab := open(t, loopback(t, 1))
	for _, l := range []Load{{}, {Rate: -1, Packets: 1}, {Duration: MaxDuration + 1}} {
		if _, err := lab.Trial(t.Context(), l); err == nil {
			t.Errorf("%+v was accepted", l)
		}
	}
}

// TestCancel ends a trial that would last an hour.
func TestCancel(t *testing.T) {
	lab := open(t, loopback(t, 1))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	r, err := lab.Trial(ctx, Load{Rate: 1000, Duration: time.Hour})
	if !errors.Is(err, context.DeadlineExceeded) || r == nil || r.Sent.Packets == 0 || r.Sent.Elapsed > time.Minute {
		t.Errorf("%+v, %v", r, err)
	}
}

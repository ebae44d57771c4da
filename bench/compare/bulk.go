package compare

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/bench/results"
	"sluice.dev/sluice/test/bed/procstat"
	"sluice.dev/sluice/test/bed/topo"
)

// bulkLoad is one measurement of Config.Bulk: a number of connections and a direction.
type bulkLoad struct {
	streams  int
	toClient bool // the server sends
}

var bulkLoads = []bulkLoad{{1, false}, {1, true}, {8, false}, {8, true}}

// way names the receiver.
func (l bulkLoad) way() string {
	if l.toClient {
		return "to the client"
	}
	return "to the server"
}

func (l bulkLoad) String() string { return fmt.Sprintf("%d TCP streams %s", l.streams, l.way()) }

// bulk has the figures of a system under one load; a sample per round.
type bulk struct {
	rate    []float64 // bits of payload that arrived per second
	cpu     []float64 // processor time of the whole machine, nanoseconds per byte that arrived
	resent  []float64 // TCP segments that were sent again, per 10^9 bytes that arrived
	dropped []float64 // packets that the veth devices could not hand over, the same
}

// bulkSystems are the default systems of Config.Bulk.
var bulkSystems = []string{
	ours, "l2fwd", "xdp-nat", "nftables", "nftables-rps", withOffloads, withOffloads + "-rps",
}

// withOffloads is nftables between interfaces with the kernel's default offloads.
const withOffloads = "nftables-offloads"

const (
	bulkWarm        = 500 * time.Millisecond // of warm-up before each measurement: slow start
	bytesPerUnit    = 1e9                    // counts are per 10^9 bytes
	bulkMTU         = 1500
	serverLoopback  = "lo"
	untranslatedTCP = servicePort // a system that does not translate delivers to the service's own address
)

// checkBulk returns an error if the options exclude each other.
func (c *Config) checkBulk() error {
	if c.Bulk && (c.BothWays || c.Rates || c.atRates()) {
		return errors.New("bulk transfers have no rate of packets and are of both ways: leave out --rates, --at and " +
			"--both-ways")
	}
	if !c.Bulk {
		for _, name := range c.Systems {
			if k, err := kindOf(name); err == nil && k.base() == withOffloads {
				return fmt.Errorf("system %s is for --bulk: the generator's packets have checksums and are short", name)
			}
		}
	}
	return nil
}

// measureBulk measures each load over connections of its own.
func measureBulk(ctx context.Context, s *stage, x *subject, _ *comparison, f *figures) (err error) {
	if err := x.place.serveBulk(); err != nil {
		return err
	}
	if x.kind.name == "xdp-nat" {
		// A veth delivers packets of XDP_REDIRECT only to a peer that polls (veth_xdp_xmit in
		// drivers/net/veth.c).
		for _, h := range [...]*topo.Host{x.place.client, x.place.server} {
			pass, err := attach(h, "eth0", passAll)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, pass.Close()) }()
		}
	}
	port := uint16(endpointPort)
	if !x.kind.translates {
		port = untranslatedTCP
	}
	l, err := x.place.server.Listen("tcp4", netip.AddrPortFrom(netip.IPv4Unspecified(), port).String())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	if s.Settle > 0 {
		if _, err := s.bulkTrial(ctx, x, l.(*net.TCPListener), bulkLoads[0], s.Settle); err != nil {
			return err
		}
	}
	for _, load := range bulkLoads {
		r, err := s.bulkTrial(ctx, x, l.(*net.TCPListener), load, s.Duration)
		if err != nil {
			return fmt.Errorf("%v: %w", load, err)
		}
		if f.bulk == nil {
			f.bulk = map[bulkLoad]*bulk{}
		}
		if f.bulk[load] == nil {
			f.bulk[load] = new(bulk)
		}
		f.bulk[load].add(&r)
	}
	return nil
}

// serveBulk gives the server the addresses of the service and of its endpoints.
func (p *place) serveBulk() error {
	return p.server.Run(func() error {
		lo, err := netlink.LinkByName(serverLoopback)
		if err != nil {
			return err
		}
		list := []netip.Addr{serviceVIP}
		for i := range endpoints {
			list = append(list, endpoint(i))
		}
		for _, a := range list {
			addr, err := netlink.ParseAddr(netip.PrefixFrom(a, a.BitLen()).String())
			if err != nil {
				return err
			}
			if err := netlink.AddrReplace(lo, addr); err != nil {
				return fmt.Errorf("address %s of the server: %w", a, err)
			}
		}
		return nil
	})
}

// bulkReading has the counts at one moment of a transfer.
type bulkReading struct {
	client, server topo.Counters
	at             time.Time
	bytes, dropped uint64
}

// readBulk reads all counts.
func readBulk(x *subject, t *transfer) (r bulkReading, err error) {
	var errs [4]error
	r.client, errs[0] = x.place.client.Counters()
	r.server, errs[1] = x.place.server.Counters()
	r.dropped, errs[2] = x.place.net.Dropped()
	r.at = time.Now()
	r.bytes, errs[3] = t.received()
	return r, errors.Join(errs[:]...)
}

// bulkResult is one measurement.
type bulkResult struct {
	bytes, resent, dropped uint64
	elapsed, busy          time.Duration
}

// bulkTrial transfers for a while after a warm-up.
func (s *stage) bulkTrial(
	ctx context.Context, x *subject, l *net.TCPListener, load bulkLoad, d time.Duration,
) (r bulkResult, err error) {
	t, err := startTransfer(ctx, x.place.client, netip.AddrPortFrom(serviceVIP, servicePort), l, load.streams,
		load.toClient)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, t.stop()) }()
	if err := topo.Pause(ctx, bulkWarm); err != nil {
		return r, err
	}
	var first, last bulkReading
	used, err := procstat.During(func() (err error) {
		if first, err = readBulk(x, t); err != nil {
			return err
		}
		if err := topo.Pause(ctx, d); err != nil {
			return err
		}
		last, err = readBulk(x, t)
		return err
	})
	if err != nil {
		return r, err
	}
	client, server := last.client.Since(first.client), last.server.Since(first.server)
	if bad := append(client.Damaged(), server.Damaged()...); len(bad) > 0 {
		return r, fmt.Errorf("damaged packets arrived: %v", bad)
	}
	r = bulkResult{bytes: last.bytes - first.bytes, resent: client.Retransmitted() + server.Retransmitted(),
		dropped: last.dropped - first.dropped, elapsed: last.at.Sub(first.at), busy: used.Busy}
	if r.bytes == 0 {
		return r, errors.New("nothing arrived")
	}
	return r, nil
}

func (b *bulk) add(r *bulkResult) {
	const bitsPerByte = 8
	bytes := float64(r.bytes)
	b.rate = append(b.rate, bitsPerByte*bytes/r.elapsed.Seconds())
	b.cpu = append(b.cpu, float64(r.busy)/bytes)
	b.resent = append(b.resent, float64(r.resent)/bytes*bytesPerUnit)
	b.dropped = append(b.dropped, float64(r.dropped)/bytes*bytesPerUnit)
}

// bulkMetric is a figure of a load, scaled to its unit.
type bulkMetric struct {
	name, unit, better string
	by                 float64
	of                 func(*bulk) []float64
}

var bulkMetrics = [...]bulkMetric{
	{"rate", "Gbit/s", "higher", 1e-9, func(b *bulk) []float64 { return b.rate }},
	{"cpu_per_gigabyte", "s", "lower", 1, func(b *bulk) []float64 { return b.cpu }}, // ns per byte are s per 10^9 bytes
	{"resent_per_gigabyte", "segments", "lower", 1, func(b *bulk) []float64 { return b.resent }},
	{"dropped_per_gigabyte", "packets", "lower", 1, func(b *bulk) []float64 { return b.dropped }},
}

// at are a system's samples of a metric under a load.
func (m *bulkMetric) at(load bulkLoad) func(*figures) []float64 {
	return func(f *figures) []float64 {
		if b := f.bulk[load]; b != nil {
			return m.of(b)
		}
		return nil
	}
}

// bulkParams makes a point one of a load.
func (c *comparison) bulkParams(p *results.Point, load bulkLoad) {
	against := p.Params["against"]
	p.Params = map[string]string{
		"services": strconv.Itoa(c.services), "queues": strconv.Itoa(c.Queues), "mtu": strconv.Itoa(bulkMTU),
		"streams": strconv.Itoa(load.streams), "way": load.way(),
	}
	if against != "" {
		p.Params["against"] = against
	}
	if p.System == withOptions {
		p.Params["sluice_options"] = c.Options
	}
}

// bulkPoints are the figures of a system.
func (c *comparison) bulkPoints(f *figures) (list []results.Point) {
	for _, load := range bulkLoads {
		for i := range bulkMetrics {
			m := &bulkMetrics[i]
			if samples := m.at(load)(f); len(samples) > 0 {
				p := c.point("bulk", f, m.name, m.unit, m.better, scaled(samples, m.by))
				c.bulkParams(&p, load)
				list = append(list, p)
			}
		}
	}
	return list
}

// bulkTargets are ratios of rate and processor time to each other system. Ratios to
// nftables-offloads have no bound: with offloads one packet of 64 KiB replaces 45 packets.
func (c *comparison) bulkTargets(load bulkLoad) (list []target) {
	rate, cpu := bulkMetrics[0].at(load), bulkMetrics[1].at(load)
	type bound struct{ rate, cpu float64 }
	bounds := map[string]bound{"l2fwd": {0.95, 1.05}, "nftables": {1, 1}}
	for _, own := range [...]string{ours, withOptions} {
		for _, base := range c.bases() {
			k, err := kindOf(base)
			if err != nil || (!k.peer && base != "l2fwd") {
				continue
			}
			held := bounds[base]
			if own != ours {
				held = bound{}
			}
			list = append(list, target{own, base, anyWay, "ratio of rates", rate, held.rate, "higher"},
				target{own, base, anyWay, "ratio of cpu_per_gigabyte", cpu, held.cpu, "lower"})
		}
	}
	return list
}

// bulkRatioPoints are ratios under each load.
func (c *comparison) bulkRatioPoints() (list []results.Point) {
	if !c.Bulk {
		return nil
	}
	for _, load := range bulkLoads {
		for _, t := range c.bulkTargets(load) {
			p, _, ok := c.ratioPoint("bulk", &t)
			if !ok {
				continue
			}
			c.bulkParams(&p, load)
			if t.bound > 0 {
				p.Target = &t.bound
			}
			list = append(list, p)
		}
	}
	return list
}

// bulkPairs are the figures of two builds under each load.
func (c *comparison) bulkPairs(own, old *figures) (list []bothBuilds) {
	for _, load := range bulkLoads {
		for i, format := range [...]string{"%.2f Gbit/s", "%.3f s"} {
			m := &bulkMetrics[i]
			list = append(list, bothBuilds{experiment: "bulk", of: m.name + " of " + load.String(), better: m.better,
				format: format, by: m.by, now: m.at(load)(own), then: m.at(load)(old)})
		}
	}
	return list
}

// bulkRivals have a column of ratios of rates, each at its best.
var bulkRivals = []string{"l2fwd", "xdp-nat", "nftables", withOffloads}

// printBulk writes the table of Config.Bulk.
func (c *comparison) printBulk(w io.Writer) {
	fmt.Fprint(w, "streams\tsystem\tGbit/s\tfrom\tto\t")
	for _, r := range bulkRivals {
		fmt.Fprintf(w, "x %s\t", r)
	}
	fmt.Fprint(w, "CPU s/GB\tfrom\tto\tresent/GB\tdropped/GB\t\n")
	for _, load := range bulkLoads {
		for _, f := range c.systems {
			b := f.bulk[load]
			if b == nil {
				continue
			}
			low, high := span(b.rate)
			fmt.Fprintf(w, "%d %s\t%s\t%.2f\t%.2f\t%.2f\t", load.streams, load.way(), f.kind.name, median(b.rate)*1e-9,
				low*1e-9, high*1e-9)
			for _, r := range bulkRivals {
				ratio := "-"
				if other := c.best(r, bulkMetrics[0].at(load), "higher"); other != nil {
					ratio = fmt.Sprintf("%.2f", median(ratios(b.rate, other.bulk[load].rate)))
				}
				fmt.Fprintf(w, "%s\t", ratio)
			}
			low, high = span(b.cpu)
			fmt.Fprintf(w, "%.3f\t%.3f\t%.3f\t%.0f\t%.0f\t\n", median(b.cpu), low, high, median(b.resent),
				median(b.dropped))
		}
	}
}

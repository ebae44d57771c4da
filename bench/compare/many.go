package compare

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"sluice.dev/sluice/test/bed/stateless"
)

// Up to fewFlows all systems have their defaults. Defaults have no room for more flows: Sluice's
// table has a million entries and gives an eighth of it to flows that nobody answers, and a SNAT
// address has 64,512 ports for each endpoint. So with more flows every system is enlarged, and
// nothing else is changed: SNAT addresses, Sluice's flow table, the map of XDP NAT, and
// nf_conntrack_max, which the user sets. kube-proxy masquerades with one address only, so it is not
// measured.
const (
	fewFlows      = 100_000
	maxFlows      = 4_000_000
	snatAddresses = 16 // 64,512 ports of each to each of 10 endpoints: 10,321,920 flows
)

// firstSNAT is on the server's segment; no interface has these addresses.
var firstSNAT = netip.MustParseAddr("10.72.0.201")

// many reports whether there are more flows than the defaults have room for.
func (c *Config) many() bool { return c.Flows > fewFlows }

// sources are the possible source addresses of translated packets: with many flows the same in each
// place.
func (s *stage) sources(p *place) (list []netip.Addr) {
	if !s.many() {
		return []netip.Addr{p.gatewayBack4()}
	}
	for a := firstSNAT; len(list) < snatAddresses; a = a.Next() {
		list = append(list, a)
	}
	return list
}

// room is the part of Sluice's configuration that makes room for many flows.
func (s *stage) room() string {
	if !s.many() {
		return ""
	}
	var list []string
	for _, a := range s.sources(nil) {
		list = append(list, a.String())
	}
	const spare = 1 << 20
	return fmt.Sprintf("flows: {ipv4: %d}\nsnat: {addresses: [%s]}\n", s.Flows+s.Flows/4+spare,
		strings.Join(list, ", "))
}

// checkMany reports whether this number of flows can be measured on this machine.
func (c *Config) checkMany() error {
	if c.Flows < 1 || c.Flows > maxFlows {
		return fmt.Errorf("%d flows: 1 to %d are possible", c.Flows, maxFlows)
	}
	tracked := false
	for _, name := range c.Systems {
		k, err := kindOf(name)
		if err != nil {
			return err
		}
		if c.many() && k.cluster {
			return fmt.Errorf("%d flows: system %s masquerades with one address: %d at most, or leave it out with "+
				"--systems", c.Flows, name, fewFlows)
		}
		tracked = tracked || k.base() == "nftables" || k.cluster
	}
	if !tracked {
		return nil
	}
	// Entries of a closed place stay until the kernel's garbage collection removes them.
	if err := conntrackRoom("nf_conntrack_max", 2*c.Flows); err != nil || !c.many() {
		return err
	}
	return conntrackRoom("nf_conntrack_buckets", c.Flows)
}

// conntrackRoom reports whether a setting of the machine's connection tracking is large enough. It
// can be set only in the machine's initial network namespace.
func conntrackRoom(name string, need int) error {
	file := "/proc/sys/net/netfilter/" + name
	text, err := os.ReadFile(file)
	if os.IsNotExist(err) {
		return nil // not loaded yet; the kernel sizes it by the machine's memory
	}
	if err != nil {
		return err
	}
	most, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	if most < need {
		return fmt.Errorf("connection tracking has no room for the flows: %s is %d: sysctl -w net.netfilter.%s=%d",
			name, most, name, need)
	}
	return nil
}

// manyRate is the first rate, in packets per second, at which many flows are established: if
// packets are lost, the next try has half the rate, down to the rate for few flows.
const manyRate = 200_000

func rateOfTry(n int) float64 { return max(manyRate/float64(int(1)<<n), warmRate) }

// openMany establishes many flows in parts, while the server answers, so that each flow has an
// answer and a further packet before the system holds more unanswered flows than it accepts. Flows
// whose packets are lost in every try are left out; the measurement counts the flows that arrive.
func (s *stage) openMany(ctx context.Context, x *subject) error {
	const ports = fewFlows / clientAddresses
	config := *s.Config
	config.BothWays = true
	both := *s
	both.Config = &config
	for first := 0; first < s.Flows; first += fewFlows {
		from := firstPort + uint16(first/fewFlows*ports)
		if err := both.openSome(ctx, x, from, min(fewFlows, s.Flows-first)); err != nil {
			return err
		}
	}
	return nil
}

func (s *stage) openSome(ctx context.Context, x *subject, port uint16, flows int) (err error) {
	lab, err := s.generator(ctx, x, stateless.Count, port, flows)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lab.Close()) }()
	for n := range warmTimes {
		r, err := lab.Trial(ctx, warmLoad(uint64(warmRounds*flows), rateOfTry(n)))
		if err != nil || r.Received.Flows == r.Sent.Flows {
			return err
		}
	}
	return nil
}

package compare

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"sluice.dev/sluice/bench/paired"
)

// Config selects the systems to compare, and the traffic.
type Config struct {
	Systems []string // of Systems; nil: all that are not optional
	Sluice  string   // path of the daemon's binary
	Bench   string   // path of sluice-bench's binary, which contains l2fwd
	// Services are numbers of Services for Sluice and kube-proxy; each number is a run.
	Services []int
	Flows    int // UDP flows, all established before measuring
	Frame    int // bytes, with the frame check sequence (RFC 2544, section 9.1)
	// Rows are the senders; each is a comparison. nil: StandardSenders, or one CPU with two queues
	// for Quick, At and Before.
	Rows      []Senders
	Repeat    int           // rounds, each of all systems
	Duration  time.Duration // of each measurement
	Trial     time.Duration // of each step in the search for the no-drop rate
	Settle    time.Duration // of slow traffic before measuring
	LossBound float64       // of the no-drop rate: a share of the packets sent
	Quick     bool          // no search and no latency: a sanity check that takes a minute
	Rates     bool          // measure only the highest rates
	// At are rates, in packets per second, at which only processor time and latency are measured:
	// the cost and the delay of a system below its limit.
	At []float64
	// AtShares are further such rates, as shares of the no-drop rate of the best variant of
	// nftables. That rate is searched first, once for each row of senders.
	AtShares []float64
	// Together is how long a generator's thread collects packets to send them at once, in trials
	// with a given rate; 0 is stateless.Tx's default.
	Together time.Duration
	// First gives this session priority over all others of the machine.
	First bool
	// Options are extra configuration in YAML for system sluice-options only.
	Options string
	// BothWays makes the server answer each packet: rates then count answers that reach the client,
	// each translated twice, and latencies are round trips.
	BothWays bool
	// Bulk measures TCP connections that carry as much as they can (bulk.go), and nothing else.
	Bulk   bool
	Trials bool   // print for each trial of the search how many packets were lost, and where
	JSON   string // file for a results.Run; none if empty

	// Before is the binary of an older daemon, or its directory. It becomes system sluice-before,
	// measured beside sluice.
	Before     string
	FailSlower bool // return an error if a figure is worse than before

	Out      io.Writer
	Progress io.Writer
}

// Defaults returns the documented comparison.
func Defaults() Config {
	return Config{
		Services: []int{5000}, Flows: 1000, Frame: 64, Repeat: 5,
		Duration: 2 * time.Second, Trial: 500 * time.Millisecond, Settle: 2 * time.Second, LossBound: 0.001,
		Out: os.Stdout, Progress: os.Stderr,
	}
}

// quicken turns the comparison into a sanity check. Systems and rows requested by name stay.
func (c *Config) quicken() {
	if len(c.Systems) == 0 {
		c.Systems = defaultSystems(false)
	}
	rounds := 2
	if c.Before != "" {
		rounds = paired.FewestPairs
	}
	c.Repeat, c.Duration, c.Services = min(c.Repeat, rounds), min(c.Duration, 500*time.Millisecond),
		[]int{min(c.Services[0], 1000)}
}

func (c *Config) check() error {
	if len(c.Services) == 0 {
		return errors.New("no number of Services: name one, or several")
	}
	if err := c.checkBefore(); err != nil {
		return err
	}
	if c.Bulk && len(c.Systems) == 0 {
		c.Systems = slices.Clone(bulkSystems)
	}
	if c.Quick {
		c.quicken()
	}
	if len(c.Systems) == 0 {
		c.Systems = defaultSystems(!c.many())
	}
	if err := c.checkBulk(); err != nil {
		return err
	}
	if err := c.checkOptions(); err != nil {
		return err
	}
	if c.Rows == nil {
		c.Rows = StandardSenders()
		switch {
		case c.Bulk:
			c.Rows = []Senders{c.Rows[0], c.Rows[2]}
		case c.Quick || c.Before != "" || c.atRates():
			c.Rows = []Senders{twoQueues()}
		}
	}
	for _, r := range c.Rows {
		if err := r.check(); err != nil {
			return err
		}
	}
	for _, name := range c.Systems {
		if _, err := kindOf(name); err != nil {
			return err
		}
	}
	for _, n := range c.Services {
		if n < 1 || n > 50_000 {
			return fmt.Errorf("%d Services: 1 to 50,000 are possible", n)
		}
	}
	for i, rate := range c.At {
		if rate <= 0 || slices.Contains(c.At[:i], rate) {
			return fmt.Errorf("measurements at %g packets per second: name rates above 0, each once", rate)
		}
	}
	for _, share := range c.AtShares {
		if share <= 0 || share > 1 {
			return fmt.Errorf("measurements at %g %% of nftables' no-drop rate: name shares above 0, up to 100 %%",
				100*share)
		}
	}
	if len(c.AtShares) > 0 && !slices.ContainsFunc(c.Systems, isNftables) {
		return errors.New("measurements at shares of nftables' no-drop rate: nftables is not among the systems: " +
			"name it")
	}
	switch {
	case c.Together < 0:
		return fmt.Errorf("packets of %s sent at once: it is a time ahead", c.Together)
	case c.Settle < 0:
		return fmt.Errorf("%s of slow traffic at first: it is a time ahead", c.Settle)
	case c.Frame < 64 || c.Frame > 1518:
		return fmt.Errorf("frames of %d bytes: 64 to 1518 are possible", c.Frame)
	case c.Repeat < 1 || c.Duration < 100*time.Millisecond || c.Trial < 50*time.Millisecond:
		return fmt.Errorf("%d rounds, measurements of %s, trials of %s: at least 1, 100ms and 50ms", c.Repeat,
			c.Duration, c.Trial)
	case c.LossBound < 0 || c.LossBound >= 1:
		return fmt.Errorf("loss bound %g: it is a share, from 0 to less than 1", c.LossBound)
	case os.Geteuid() != 0:
		return errors.New("network namespaces, XDP and AF_XDP need root")
	}
	return errors.Join(c.program(&c.Sluice, ours, "sluice-one", placed, shared, withOptions),
		c.program(&c.Bench, "l2fwd"), c.checkMany())
}

// checkOptions adds system sluice-options if Config.Options is set.
func (c *Config) checkOptions() error {
	named := slices.Contains(c.Systems, withOptions)
	switch {
	case c.Options == "" && named:
		return fmt.Errorf("system %s is the daemon with options: name them with --sluice-options", withOptions)
	case c.Options != "" && !named:
		c.Systems = append(slices.Clone(c.Systems), withOptions)
	}
	return nil
}

// program checks the path of a binary if one of the systems that need it is measured.
func (c *Config) program(path *string, systems ...string) error {
	if !slices.ContainsFunc(systems, func(s string) bool { return slices.Contains(c.Systems, s) }) {
		return nil
	}
	full, err := filepath.Abs(*path)
	if err != nil {
		return err
	}
	*path = full
	if _, err := os.Stat(full); err != nil {
		return fmt.Errorf("the binary of %s: %w; build it with `make build`", systems[0], err)
	}
	return nil
}

// kinds returns the systems to measure with some senders. If packets arrive on all CPUs, there is
// no free CPU for -rps-free, so that variant is left out.
func (c *Config) kinds(from Senders) (list []kind) {
	for _, name := range c.Systems {
		k, err := kindOf(name)
		if _, ok := from.mask(k.rps); err == nil && ok { // check has reported the error
			list = append(list, k)
		}
	}
	return list
}

package connections

import (
	"context"
	_ "embed" // the profile
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"sluice.dev/sluice/bench/results"
	"sluice.dev/sluice/bench/stateful"
	"sluice.dev/sluice/test/bed/cluster"
	"sluice.dev/sluice/test/bed/launch"
)

//go:embed answers.yaml
var answers []byte

// profile is what clients and servers say.
func profile() (*stateful.Profile, error) {
	return stateful.Parse("bench/connections/answers.yaml", answers)
}

// Systems are what can be measured; direct is the wire without a gateway.
var Systems = []string{"sluice", "nftables", "iptables", "direct"}

// Config selects what to measure.
type Config struct {
	Systems       []string // of Systems
	Sluice        string   // path of the daemon's binary
	Options       string   // more of its configuration: YAML, whole top-level fields
	Rates         []int    // connections a second
	Services      int      // in all
	Repeat        int
	Length        time.Duration // of each measurement
	JSON          string
	Out, Progress io.Writer
}

// Defaults is the measurement as it is documented.
func Defaults() Config {
	return Config{
		Systems: slices.Clone(Systems), Rates: []int{1_000, 5_000, 10_000, 20_000}, Services: 100, Repeat: 5,
		Length: 2 * time.Second, Out: os.Stdout, Progress: os.Stderr,
	}
}

// maxRate is what the engines reach with time to spare.
const maxRate = 50_000

func (c *Config) check() error {
	for _, name := range c.Systems {
		if !slices.Contains(Systems, name) {
			return fmt.Errorf("system %q is not one of %v", name, Systems)
		}
	}
	for _, r := range c.Rates {
		if r < 1 || r > maxRate {
			return fmt.Errorf("%d connections a second: 1 to %d are possible", r, maxRate)
		}
	}
	switch {
	case len(c.Systems) == 0 || len(c.Rates) == 0:
		return errors.New("nothing to measure: name systems and rates")
	case c.Services < 1 || c.Services > 20_000:
		return fmt.Errorf("%d Services: 1 to 20,000 are possible", c.Services)
	case c.Repeat < 1 || c.Length < 100*time.Millisecond:
		return errors.New("at least one measurement of 100 ms is needed")
	case os.Geteuid() != 0:
		return errors.New("network namespaces, XDP and AF_XDP need root")
	}
	if !slices.Contains(c.Systems, sluice) {
		return nil
	}
	var err error
	c.Sluice, err = launch.Find(c.Sluice)
	return err
}

// Run measures, prints a table and saves the figures. That a system fails connections is a figure
// and no error.
func Run(ctx context.Context, c Config) (err error) {
	if err := c.check(); err != nil {
		return err
	}
	if _, err := launch.Sweep(); err != nil {
		return err
	}
	run := results.Begin("veth; clients and servers by AF_XDP in copy mode")
	p, err := profile()
	if err != nil {
		return err
	}
	var labs []*lab
	defer func() {
		for _, l := range slices.Backward(labs) {
			err = errors.Join(err, l.close())
		}
	}()
	var k *cluster.Cluster
	for _, name := range c.Systems {
		if mode(name) && k == nil {
			if k, err = c.control(ctx, p); err != nil {
				return err
			}
			defer func() { err = errors.Join(err, k.Close()) }()
		}
		l, err := build(name, p)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		labs = append(labs, l)
		if err := l.prepare(ctx, &c, k); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	if k != nil {
		if err := k.Freeze(); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, k.Thaw()) }() // before kube-proxy is ended
	}
	rows, err := c.turns(ctx, p, labs)
	if err != nil {
		return err
	}
	for _, r := range rows {
		run.Points = append(run.Points, r.points(&c)...)
	}
	return errors.Join(print(c.Out, rows), run.Finish(c.JSON))
}

// turns measures all systems at all rates.
func (c *Config) turns(ctx context.Context, p *stateful.Profile, labs []*lab) (rows []*row, err error) {
	for _, rate := range c.Rates {
		at := make([]*row, len(labs))
		for i, l := range labs {
			at[i] = &row{system: l.system, rate: rate}
		}
		for n := range c.Repeat {
			for k := range labs {
				i := (n + k) % len(labs)
				fmt.Fprintf(c.Progress, "%d connections/s through %s, %d of %d\n", rate, labs[i].system, n+1, c.Repeat)
				r, err := labs[i].play(ctx, p, rate, c.Length)
				if err != nil {
					return nil, fmt.Errorf("%s, %d connections/s: %w", labs[i].system, rate, err)
				}
				at[i].add(r)
			}
		}
		rows = append(rows, at...)
	}
	return rows, nil
}

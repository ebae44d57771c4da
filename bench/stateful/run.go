package stateful

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"sluice.dev/sluice/bench/results"
	"sluice.dev/sluice/test/bed/cluster"
	"sluice.dev/sluice/test/bed/launch"
	"sluice.dev/sluice/test/bed/stateless"
)

// RunConfig holds the arguments of the command.
type RunConfig struct {
	Profile string // a file, or the name of a profile in bench/profiles
	IPv6    bool   // convert the profile's addresses to IPv6

	// Over a laboratory of its own:
	Through  []string // of Systems, in turn
	Sluice   string   // the daemon's binary
	Options  string   // more of its configuration: YAML, whole top-level fields
	Churn    int      // endpoint changes per second, through sluice
	Services int      // in all; fewer than templates are as many
	Rates    []int    // connections per second, in turn; empty: the profile's

	// Over existing interfaces, INTERFACE[@NAMESPACE]:
	Client, Server               string
	ClientGateway, ServerGateway string
	IOwnThisNetwork              bool

	Memory     bool // both engines in memory, without a profile
	Concurrent int
	Window     time.Duration

	// Replacements for values of the profile, unless zero (CPS: negative).
	Duration    time.Duration
	CPS         float64
	Concurrency int

	Repeat   int // 0: once, and five windows with Memory
	JSON     string
	Out      io.Writer
	Progress io.Writer
}

// Defaults returns the defaults of the command.
func Defaults() RunConfig {
	return RunConfig{
		Through: []string{ThroughNone}, CPS: -1, Concurrent: targetConcurrent, Window: 2 * time.Second,
		Out: os.Stdout, Progress: os.Stderr,
	}
}

// ErrBroken is returned if a run had violations; its table lists them.
var ErrBroken = errors.New("the verdict is bad")

// Run runs the command, prints tables and saves the figures.
func Run(ctx context.Context, c RunConfig) error {
	if c.Repeat == 0 {
		c.Repeat = 1
		if c.Memory {
			c.Repeat = 5
		}
	}
	if c.Memory {
		run := results.Begin("memory")
		points, err := Memory(ctx, MemoryConfig{Window: c.Window, Repeat: c.Repeat, Concurrent: c.Concurrent,
			Out: c.Out, Progress: c.Progress})
		if err != nil {
			return err
		}
		run.Points = points
		return run.Finish(c.JSON)
	}
	p, err := c.profile()
	if err != nil {
		return err
	}
	run := results.Begin("veth, AF_XDP in copy mode")
	if c.Client != "" {
		run.Machine.Link = "interfaces given"
		run.Points, err = c.overInterfaces(ctx, p)
	} else {
		run.Points, err = c.overLab(ctx, p)
	}
	if err != nil && !errors.Is(err, ErrBroken) {
		return err
	}
	return errors.Join(err, run.Finish(c.JSON))
}

// profile reads the profile and applies the flags.
func (c *RunConfig) profile() (*Profile, error) {
	path := c.Profile
	p, err := Named(path)
	if strings.ContainsAny(path, "./") {
		p, err = Load(path)
	}
	if err != nil {
		return nil, err
	}
	if c.IPv6 {
		six := p.To6()
		p = &six
	}
	if c.Duration != 0 {
		p.Duration = c.Duration
	}
	if c.CPS >= 0 {
		p.CPS, p.Ramp = c.CPS, nil
	}
	if c.Concurrency != 0 {
		p.Concurrency = c.Concurrency
	}
	if err := p.Validate(); err != nil {
		return nil, fmt.Errorf("%s, with the changes by flags: %w", path, err)
	}
	if c.Repeat < 1 || c.Churn < 0 || c.Churn > 100 {
		return nil, fmt.Errorf("--repeat %d, --churn %d: at least 1, and 0 to 100 a second, are possible", c.Repeat,
			c.Churn)
	}
	return p, nil
}

// overLab plays through each system in turn, Repeat times, at each rate. All systems exist
// at the same time; those whose turn it is not have nothing to do.
func (c *RunConfig) overLab(ctx context.Context, p *Profile) (points []results.Point, err error) {
	if err := c.checkLab(); err != nil {
		return nil, err
	}
	if _, err := launch.Sweep(); err != nil {
		return nil, err
	}
	var labs []*built
	defer func() {
		for _, b := range labs {
			err = errors.Join(err, b.close())
		}
	}()
	var k *cluster.Cluster
	for _, system := range c.Through {
		if k == nil && system != ThroughNone && system != ThroughSluice {
			if k, err = c.control(ctx, p); err != nil {
				return nil, err
			}
			defer func() { err = errors.Join(err, k.Close()) }()
		}
		b, err := c.build(system, p)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", system, err)
		}
		labs = append(labs, b)
		if err := b.start(ctx, k); err != nil {
			return nil, err
		}
	}
	if k != nil { // it would run on other machines
		if err := k.Freeze(); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, k.Thaw()) }() // before kube-proxy is ended
	}
	rates := c.Rates
	if len(rates) == 0 {
		rates = []int{0}
	}
	var bad error
	for _, rate := range rates {
		more, broken := c.turns(ctx, labs, p, rate)
		if broken != nil && !errors.Is(broken, ErrBroken) {
			return nil, broken
		}
		points, bad = append(points, more...), errors.Join(bad, broken)
	}
	return points, errors.Join(bad, summary(c.Out, points))
}

// checkLab checks the settings of the lab.
func (c *RunConfig) checkLab() (err error) {
	if os.Geteuid() != 0 {
		return errors.New("network namespaces, XDP and AF_XDP need root")
	}
	for i, system := range c.Through {
		if !slices.Contains(Systems, system) || slices.Contains(c.Through[:i], system) {
			return fmt.Errorf("--through %s: each of %s is possible, once", system, strings.Join(Systems, ", "))
		}
	}
	if c.Churn > 0 && !slices.Contains(c.Through, ThroughSluice) {
		return errors.New("--churn edits the endpoints of a gateway: add --through sluice")
	}
	if c.Services < 0 || c.Services > 20_000 {
		return fmt.Errorf("--services %d: at most 20,000 are possible", c.Services)
	}
	c.Sluice, err = filepath.Abs(c.Sluice)
	return err
}

// turns plays at a rate, or at the profile's own if it is 0, in an order that rotates.
func (c *RunConfig) turns(ctx context.Context, labs []*built, p *Profile, rate int) ([]results.Point, error) {
	at := *p
	if rate > 0 {
		at.CPS, at.Ramp = float64(rate), nil
	}
	if err := at.Validate(); err != nil {
		return nil, err
	}
	runs := make([][]*Result, len(labs))
	var bad error
	for n := range c.Repeat {
		for i := range labs {
			i = (n + i) % len(labs)
			what := fmt.Sprintf("through %s, %.0f connections/s, run %d of %d", labs[i].system, at.CPS, n+1, c.Repeat)
			fmt.Fprintf(c.Progress, "%s %s, %s each\n", p.Name, what, p.Duration)
			r, err := labs[i].play(ctx, &at, c.Progress)
			if err != nil {
				return nil, err
			}
			bad = errors.Join(bad, c.judge(r, what))
			runs[i] = append(runs[i], r)
		}
	}
	var points []results.Point
	for i, b := range labs {
		params := c.params(b.system)
		if rate > 0 {
			params["connections/s"] = strconv.Itoa(rate)
		}
		points = append(points, Points(b.system, params, runs[i])...)
	}
	return points, bad
}

func (c *RunConfig) params(system string) map[string]string {
	params := map[string]string{"family": "IPv4"}
	if c.IPv6 {
		params["family"] = "IPv6"
	}
	if c.Services > 0 {
		params["services"] = strconv.Itoa(c.Services)
	}
	if c.Churn > 0 && system == ThroughSluice {
		params["edits_per_second"] = strconv.Itoa(c.Churn)
	}
	return params
}

func (c *RunConfig) judge(r *Result, what string) error {
	fmt.Fprintf(c.Out, "\n%s, %s\n", r.Profile.Name, what)
	if err := r.Table(c.Out); err != nil {
		return err
	}
	if err := r.Broken(); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrBroken, what, err)
	}
	return nil
}

// overInterfaces plays over interfaces that the user has set up.
func (c *RunConfig) overInterfaces(ctx context.Context, p *Profile) ([]results.Point, error) {
	l := &Lab{Targets: p.Servers}
	var err error
	for _, end := range []struct {
		flag, port, gateway string
		to                  *Port
		via                 *netip.Addr
	}{{"--client", c.Client, c.ClientGateway, &l.Client, &l.ClientGateway}, {"--server", c.Server, c.ServerGateway,
		&l.Server, &l.ServerGateway}} {
		if *end.to, err = stateless.ParsePort(end.port); err != nil {
			return nil, fmt.Errorf("%s: %w", end.flag, err)
		}
		if !c.IOwnThisNetwork {
			if err := end.to.Guard(); err != nil {
				return nil, err
			}
		}
		if end.gateway != "" {
			if *end.via, err = netip.ParseAddr(end.gateway); err != nil {
				return nil, fmt.Errorf("%s-gateway: %w", end.flag, err)
			}
		}
	}
	if l.ClientGateway.IsValid() && p.VIP.IsValid() {
		l.Targets = Pool{First: p.VIP, Last: p.VIP}
	}
	var runs []*Result
	var bad error
	for range c.Repeat {
		r, err := Play(ctx, l, p, c.Progress)
		if err != nil {
			return nil, err
		}
		bad = errors.Join(bad, c.judge(r, "from "+c.Client+" to "+c.Server))
		runs = append(runs, r)
	}
	return Points("interfaces", c.params("interfaces"), runs), bad
}

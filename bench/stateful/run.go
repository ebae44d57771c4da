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
	"sluice.dev/sluice/test/bed/launch"
	"sluice.dev/sluice/test/bed/stateless"
)

// RunConfig holds the arguments of the command.
type RunConfig struct {
	Profile string // a file, or the name of a profile in bench/profiles
	IPv6    bool   // convert the profile's addresses to IPv6

	// Over a laboratory of its own:
	Through []string // systems, in turn
	Sluice  string   // the daemon's binary
	Churn   int      // endpoint changes per second, through sluice

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

// overLab plays through each system in turn, Repeat times.
func (c *RunConfig) overLab(ctx context.Context, p *Profile) ([]results.Point, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("network namespaces, XDP and AF_XDP need root")
	}
	for _, system := range c.Through {
		if system != ThroughNone && system != ThroughSluice {
			return nil, fmt.Errorf("--through %s: %s and %s are possible", system, ThroughNone, ThroughSluice)
		}
	}
	if c.Churn > 0 && !slices.Contains(c.Through, ThroughSluice) {
		return nil, errors.New("--churn edits the endpoints of a gateway: add --through sluice")
	}
	sluice, err := filepath.Abs(c.Sluice)
	if err != nil {
		return nil, err
	}
	if _, err := launch.Sweep(); err != nil {
		return nil, err
	}
	runs := map[string][]*Result{}
	var bad error
	for k := range c.Repeat {
		for _, system := range c.Through {
			fmt.Fprintf(c.Progress, "%s through %s, run %d of %d, %s each\n", p.Name, system, k+1, c.Repeat, p.Duration)
			r, err := c.once(ctx, system, sluice, p)
			if err != nil {
				return nil, err
			}
			bad = errors.Join(bad, c.judge(r, "through "+system))
			runs[system] = append(runs[system], r)
		}
	}
	var points []results.Point
	for _, system := range c.Through {
		points = append(points, Points(system, c.params(system), runs[system])...)
		delete(runs, system) // a system named twice runs twice, and is reported once
	}
	return points, bad
}

func (c *RunConfig) params(system string) map[string]string {
	params := map[string]string{"family": "IPv4"}
	if c.IPv6 {
		params["family"] = "IPv6"
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

// once is one run through one system in a network of its own.
func (c *RunConfig) once(ctx context.Context, system, sluice string, p *Profile) (r *Result, err error) {
	b, err := build(ctx, system, sluice, c.Churn, p)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	if err := b.started(ctx); err != nil {
		return nil, err
	}
	return b.play(ctx, p, c.Progress)
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

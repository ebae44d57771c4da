package rollout

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"time"

	"sluice.dev/sluice/test/bed/cluster"
	"sluice.dev/sluice/test/bed/launch"
)

// Config selects what to measure.
type Config struct {
	Systems  []string      // of Systems, one after another
	Sluice   string        // path of the daemon's binary
	Services int           // in all
	Pods     int           // of each Service except the one that is updated
	Replicas int           // of the one that is updated
	Rate     int           // connections per second to the Service that is updated
	Grace    time.Duration // from terminating to dead
	Timeout  time.Duration // of a client's connection
	Seed     uint64        // of the pods' start times

	Out, Progress io.Writer
}

const (
	otherRate = 50              // connections per second to other Services
	startup   = 2 * time.Second // of a pod, until it is ready: half to one and a half times this
	quietTime = 5 * time.Second // time without a connection to an old endpoint: converged
)

// Defaults returns the documented measurement.
func Defaults() Config {
	return Config{
		Systems: slices.Clone(Systems), Services: 4000, Pods: 6, Replicas: 50, Rate: 200, Grace: time.Second,
		Timeout: 5 * time.Second, Seed: 1, Out: os.Stdout, Progress: os.Stderr,
	}
}

func (c *Config) check() error {
	if err := checkSystems(c.Systems); err != nil {
		return err
	}
	switch {
	case len(c.Systems) == 0:
		return fmt.Errorf("no system to measure: name some of %v", Systems)
	case c.Services <= reached || c.Pods < 1 || c.Replicas < 1 || 2*c.Replicas+reached*c.Pods > maxPods:
		return fmt.Errorf("%d Services of %d pods, %d replicas: more than %d Services, and at most %d addresses (2 x "+
			"replicas + %d x pods) are possible",
			c.Services, c.Pods, c.Replicas, reached, maxPods, reached)
	case c.Services*c.Pods > 4<<20:
		return fmt.Errorf("%d Services of %d pods: at most %d endpoints have addresses", c.Services, c.Pods, 4<<20)
	case c.Rate < 1 || c.Rate > 2000:
		return fmt.Errorf("%d connections a second: 1 to 2,000 are possible", c.Rate)
	case c.Grace < 0 || c.Timeout <= 0:
		return errors.New("grace is negative, or timeout is not above zero")
	case os.Geteuid() != 0:
		return errors.New("network namespaces, XDP and AF_XDP need root")
	}
	if !slices.Contains(c.Systems, "sluice") {
		return nil
	}
	var err error
	c.Sluice, err = launch.Find(c.Sluice)
	return err
}

// plan is the part that all systems share.
type plan struct {
	*Config
	cluster    *cluster.Cluster
	addresses  podAddresses
	otherPods  []*pod
	addressed  int // addresses given to other pods: each roll begins after them
	otherVIPs  []netip.AddrPort
	rollingVIP netip.AddrPort
}

// Run measures the systems and prints the results. A failed measurement is an error; a bad result
// is not.
func Run(ctx context.Context, c Config) (results []*Result, err error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	if _, err := launch.Sweep(); err != nil {
		return nil, err
	}
	began := time.Now()
	k, err := cluster.Start(ctx, cluster.Config{})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, k.Close()) }()
	p := &plan{Config: &c, cluster: k, rollingVIP: netip.AddrPortFrom(vip(0), webPort)}
	objects, pods := others(&c, &p.addresses)
	p.otherPods, p.addressed = pods, p.addresses.given
	for i := range reached {
		p.otherVIPs = append(p.otherVIPs, netip.AddrPortFrom(vip(1+i), webPort))
	}
	if err := k.Put(ctx, append(objects, web)...); err != nil {
		return nil, err
	}
	p.say("API server with %d Services of %d endpoints and one of %d: %.1f s", c.Services-1, c.Pods, c.Replicas,
		time.Since(began).Seconds())
	for _, name := range c.Systems {
		r, err := p.measure(ctx, name)
		if err != nil {
			return results, fmt.Errorf("%s: %w", name, err)
		}
		results = append(results, r)
	}
	return results, table(c.Out, results)
}

func (p *plan) say(format string, args ...any) {
	fmt.Fprintf(p.Progress, format+"\n", args...)
}

// measure runs one system in a network of its own.
func (p *plan) measure(ctx context.Context, name string) (r *Result, err error) {
	p.addresses.given = p.addressed
	l := &lab{plan: p, rollout: newRollout(p.Config, p.addresses.next), result: &Result{System: name}}
	defer func() { err = errors.Join(err, l.close()) }()
	if err := l.build(ctx); err != nil {
		return nil, err
	}
	for _, part := range []func(context.Context) error{l.firstSync, l.roll} {
		if err := part(ctx); err != nil {
			if l.system != nil {
				err = fmt.Errorf("%w\n%s", err, l.system.Log())
			}
			return nil, err
		}
	}
	return l.result, nil
}

// jitter spreads times that would otherwise coincide with the seconds of a system.
func jitter(seed uint64, most time.Duration) time.Duration {
	return time.Duration(rand.New(rand.NewPCG(seed, 2)).Int64N(int64(most)))
}

package updates

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"sluice.dev/sluice/bench/results"
	"sluice.dev/sluice/test/bed/launch"
)

// Config selects what to measure.
type Config struct {
	Sluice    string // path of the daemon's binary
	Server    string // of Servers
	Services  int    // in all
	Endpoints int    // of each Service except the probed ones
	Probed    int    // Services to which datagrams are sent, of one endpoint each
	Rate      int    // changes a second, all together
	// ProbedRate is the part of Rate that changes probed Services.
	ProbedRate int
	Probe      time.Duration // between two datagrams to a Service
	Seconds    int           // of changes
	JSON       string        // file for a results.Run; empty for none
	Env        []string      // of the daemon
	Out        io.Writer
	Progress   io.Writer
}

// Defaults returns the documented measurement.
func Defaults() Config {
	return Config{
		Server: Servers[0], Services: 10_000, Endpoints: 10, Probed: 4, Rate: 1000, ProbedRate: 200,
		Probe: 500 * time.Microsecond, Seconds: 10, Out: os.Stdout, Progress: os.Stderr,
	}
}

func (c *Config) check() error {
	switch {
	case c.Probed < 1 || c.Probed > 200 || c.Endpoints < 1 || c.Services < c.Probed+2 ||
		c.Services*(c.Endpoints+1) > 4<<20:
		return fmt.Errorf("%d Services of %d endpoints, %d of them probed: at least one other, at most 200 probed "+
			"and %d endpoints are possible",
			c.Services, c.Endpoints, c.Probed, 4<<20)
	case c.Rate < 1 || c.ProbedRate < 1 || c.Rate%c.ProbedRate != 0 || c.ProbedRate/c.Probed > ring:
		return fmt.Errorf("%d changes a second, %d of them probed: the one must be a multiple of the other, which is "+
			"at most %d for each probed Service", c.Rate, c.ProbedRate, ring)
	case c.Seconds < 1 || c.Probe < 100*time.Microsecond:
		return fmt.Errorf("%d seconds, a datagram every %s: at least 1 and 100µs", c.Seconds, c.Probe)
	}
	var err error
	c.Sluice, err = launch.Find(c.Sluice)
	return err
}

// Run measures and prints the results.
func Run(ctx context.Context, c Config) (r *Result, err error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	if _, err := launch.Sweep(); err != nil {
		return nil, err
	}
	run := results.Begin("veth, native XDP, copy mode")
	l := &lab{Config: &c, result: &Result{Server: c.Server}}
	defer func() { err = errors.Join(err, l.close()) }()
	if err := l.build(ctx); err != nil {
		return nil, err
	}
	if err := l.measure(ctx); err != nil {
		if l.gate != nil {
			err = fmt.Errorf("%w\n%s", err, l.gate.Log())
		}
		return nil, err
	}
	run.Points = l.points()
	if err := run.Finish(c.JSON); err != nil {
		return nil, err
	}
	return l.result, l.result.table(c.Out)
}

package stateful

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync/atomic"
	"time"

	"sluice.dev/sluice/test/bed/topo"
)

// Lab is two ports and the network between them.
type Lab struct {
	Client, Server               Port
	ClientGateway, ServerGateway netip.Addr // invalid: the other's pool, back to back
	Targets                      Pool
	// Removed, see Config.
	Removed []atomic.Uint64
	// During, if set, runs beside the traffic until its context is done.
	During func(ctx context.Context) error
}

// Result is the result of one run.
type Result struct {
	Profile *Profile
	Seconds float64 // while connections were opened
	Client  Stats
	Server  Stats
	Open    int64 // connections that were still open when the run ended
	// From the gateway between the engines, if there is one.
	Dropped map[string]uint64 // packets by reason
	Edits   int               // number of endpoint changes
}

// Broken returns the reason why a run has failed; nil if it has not.
func (r *Result) Broken() error {
	c, server := r.Client.Total(), r.Server.Total()
	switch {
	case c.Violations > 0:
		return fmt.Errorf("%d connections met two servers", c.Violations)
	case c.Failed[Corrupt]+server.Failed[Corrupt] > 0:
		return fmt.Errorf("%d connections got other bytes than were sent", c.Failed[Corrupt]+server.Failed[Corrupt])
	case c.Failed[Reset] > server.Failures():
		// A server resets connections that it gave up. A further reset comes from a server that
		// never knew the connection: the connection was moved.
		return fmt.Errorf("%d connections were reset, and servers gave up %d", c.Failed[Reset], server.Failures())
	case c.Completed == 0:
		return errors.New("no connection was completed")
	}
	return nil
}

const (
	resolveTimeout = 10 * time.Second
	// drainFor is how long connections may take to end after the last was opened. Streams that last
	// longer are cut off, which does not count as a failure.
	drainFor = 3 * time.Second
)

// Play runs a profile over a lab. An error means that the lab failed; results of connections are in
// r.
func Play(ctx context.Context, l *Lab, p *Profile, progress io.Writer) (r *Result, err error) {
	client, err := openLine(ctx, &l.Client)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, client.close()) }()
	server, err := openLine(ctx, &l.Server)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, server.close()) }()
	c, err := client.engine(Config{Role: Client, Profile: p, Gateway: or(l.ClientGateway, p.Servers.First),
		Targets: l.Targets, Removed: l.Removed})
	if err != nil {
		return nil, err
	}
	s, err := server.engine(Config{Role: Server, Profile: p, Gateway: or(l.ServerGateway, p.Clients.First)})
	if err != nil {
		return nil, err
	}
	r = &Result{Profile: p}
	// The server starts first: it must resolve its gateway before it receives requests.
	sd := drive(s)
	cd := drive(c)
	err = l.play(ctx, r, cd, sd, progress)
	cd.end()
	sd.end()
	r.Client, r.Server = c.stats, s.stats
	return r, err
}

func or(a, b netip.Addr) netip.Addr {
	if a.IsValid() {
		return a
	}
	return b
}

// engine makes an engine on an open port.
func (l *line) engine(c Config) (*Engine, error) {
	c.Link, c.Pool, c.UMEM, c.MAC, c.Own = l.socket, l.pool, l.umem.Bytes(), l.mac, l.own4
	if c.Profile.Clients.Is6() {
		c.Own = l.own6
	}
	return New(c)
}

// play waits for neighbours, for the profile's time, and for open connections to end.
func (l *Lab) play(ctx context.Context, r *Result, client, server *driver, progress io.Writer) error {
	for began := time.Now(); !client.ready.Load() || !server.ready.Load(); {
		if time.Since(began) > resolveTimeout {
			return fmt.Errorf("no answer to ARP or neighbour discovery after %s: client requests %s (answered: %v), "+
				"server for %s (answered: %v)",
				resolveTimeout, client.engine.c.Gateway, client.ready.Load(), server.engine.c.Gateway,
				server.ready.Load())
		}
		if err := topo.Pause(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
	during, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	if l.During != nil {
		go func() { ended <- l.During(during) }()
	} else {
		ended <- nil
	}
	began := time.Now()
	err := watch(ctx, r.Profile.Duration, client, progress)
	r.Seconds = time.Since(began).Seconds()
	client.stopOpening.Store(true)
	for began := time.Now(); err == nil && client.total().Active > 0 && time.Since(began) < drainFor; {
		err = topo.Pause(ctx, publishEvery)
	}
	cancel()
	if aside := <-ended; aside != nil && !errors.Is(aside, context.Canceled) {
		err = errors.Join(err, aside)
	}
	r.Open = client.total().Active
	return err
}

// watch prints a line each second.
func watch(ctx context.Context, duration time.Duration, client *driver, progress io.Writer) error {
	began := time.Now()
	var last Counts
	for {
		left := duration - time.Since(began)
		if left <= 0 {
			return nil
		}
		if err := topo.Pause(ctx, min(left, time.Second)); err != nil {
			return err
		}
		c := client.total()
		fmt.Fprintf(progress,
			"%3.0f s left: %6d opened/s %6d completed/s, %d active, %d failed, %d retransmitted, %d violations\n",
			max(duration-time.Since(began), 0).Seconds(), c.Opened-last.Opened, c.Completed-last.Completed, c.Active,
			c.Failures(), c.Retransmits, c.Violations)
		last = c
	}
}

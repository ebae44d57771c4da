package demo

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"time"

	"sluice.dev/sluice/test/bed/topo"
)

// background is HTTP load that runs beside other actions.
type background struct {
	cancel context.CancelFunc
	done   chan struct{}
	result *topo.Result // valid after done
	err    error
}

// load starts new connections one after the other, from several clients at a time,
// until it is stopped.
func (d *demo) load(ctx context.Context, targets []netip.AddrPort) *background {
	ctx, cancel := context.WithCancel(ctx)
	b := &background{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(b.done)
		b.result, b.err = d.client.HTTP(ctx, topo.HTTPLoad{
			Targets: targets, Requests: 10_000_000, Concurrency: 8, Interval: 4 * time.Millisecond,
		})
	}()
	return b
}

// stop ends the load and returns its result.
func (b *background) stop() (*topo.Result, error) {
	b.cancel()
	<-b.done
	return b.result, b.err
}

// probe makes new connections to the web service, on both families.
func (d *demo) probe(ctx context.Context) (*topo.Result, error) {
	return d.client.HTTP(ctx, topo.HTTPLoad{Targets: webVIP, Requests: d.probes, Concurrency: 8})
}

// answerTimeout is how long a flow may take to answer again. TCP doubles the time between
// retransmissions, so after an outage a connection may be silent for as long again; a slow
// connection must not count as broken.
const answerTimeout = 12 * time.Second

// silent waits until every long-lived flow has answered once more, and returns the number of flows
// that did not in time. It does not wait for broken flows.
func (d *demo) silent(ctx context.Context) int {
	before := d.flows.States()
	_ = d.flows.AnsweredAgain(ctx, d.bound(answerTimeout), 1) // the number below says it
	return d.flows.Waiting(before, 1)
}

// errWaiting is returned while a condition does not hold yet; the caller checks the condition again
// later.
var errWaiting = errors.New("not yet")

// unbroken checks that no long-lived flow is broken.
func (d *demo) unbroken(ctx context.Context) {
	quiet, broken := d.silent(ctx), d.flows.Broken()
	d.p.Expect(broken == 0 && quiet == 0, "%d long-lived TCP connections: %d broken, %d silent", d.longFlows, broken,
		quiet)
	for _, s := range d.flows.States() {
		if s.Broken != nil {
			d.p.Say("   %s -> %s, with %s: %v", s.Local, s.Target, cmp.Or(s.Backend, "nobody"), s.Broken)
		}
	}
}

// Datagrams are sent at a rate, a second, to see when the gateway forwards; the last answers are
// waited for so long.
const (
	probeRate     = 1000
	probePatience = 50 * time.Millisecond
)

// answered waits until more datagrams than before were answered, and returns the time. While no
// daemon runs none is.
func (d *demo) answered(ctx context.Context, probe *topo.Numbered, before uint64) (time.Time, error) {
	err := topo.Until(ctx, d.bound(answerTimeout), time.Millisecond, func(context.Context) error {
		if probe.Answered() == before {
			return errors.New("no datagram was answered")
		}
		return nil
	})
	return time.Now(), err
}

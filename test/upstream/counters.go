package upstream

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"sluice.dev/sluice/serve/status"
)

// Source is where the gateway's counters are read; a status.Client is one.
type Source interface {
	Services(context.Context) ([]status.ServiceView, error)
	Stats(context.Context) (status.StatsView, error)
}

// Counters keeps the gateway's counters for each namespace. The gateway forgets a Service's
// counters with the Service, and cases delete theirs, so they are read again and again, and the
// most that was ever read of a Service stays.
type Counters struct {
	source Source
	cancel context.CancelFunc
	done   chan struct{}

	mu       sync.Mutex
	services map[servicePort]status.Traffic
	err      error // of the last reading
}

type servicePort struct{ namespace, name, protocol, port string }

// Traffic is the gateway's work for the Services of one namespace.
type Traffic struct {
	Flows     uint64 // created
	ToBackend uint64 // packets
	ToClient  uint64
}

// countEvery is how often the counters are read: cases use their Services for seconds before they
// go.
const countEvery = 200 * time.Millisecond

// StartCounters reads a gateway's counters until Close.
func StartCounters(source Source) *Counters {
	ctx, cancel := context.WithCancel(context.Background())
	c := &Counters{source: source, cancel: cancel, done: make(chan struct{}),
		services: map[servicePort]status.Traffic{}}
	go func() {
		defer close(c.done)
		tick := time.NewTicker(countEvery)
		defer tick.Stop()
		for {
			c.read(ctx)
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	}()
	return c
}

// read takes one reading. An error is kept until the next: a gateway that restarts answers again.
func (c *Counters) read(ctx context.Context) {
	views, err := c.source.Services(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = err
	for _, v := range views {
		key := servicePort{v.Namespace, v.Name, v.Protocol, fmt.Sprint(v.PortName, v.Port)}
		most := c.services[key]
		most.Flows = max(most.Flows, v.Traffic.Flows)
		most.ToBackend = max(most.ToBackend, v.Traffic.ToBackend)
		most.ToClient = max(most.ToClient, v.Traffic.ToClient)
		c.services[key] = most
	}
}

// Of returns the counters of the Services of a namespace.
func (c *Counters) Of(ctx context.Context, namespace string) (sum Traffic, err error) {
	c.read(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, t := range c.services {
		if key.namespace == namespace {
			sum.Flows, sum.ToBackend, sum.ToClient = sum.Flows+t.Flows, sum.ToBackend+t.ToBackend, sum.ToClient+
				t.ToClient
		}
	}
	return sum, c.err
}

// Total is the sum of the gateway's counters since it started.
type Total struct {
	Created uint64            // flows
	Drops   map[string]uint64 // packets by reason
}

// Total reads the counters of all workers.
func (c *Counters) Total(ctx context.Context) (Total, error) {
	v, err := c.source.Stats(ctx)
	if err != nil {
		return Total{}, fmt.Errorf("read the gateway's counters: %w", err)
	}
	t := Total{Drops: map[string]uint64{}}
	for _, w := range v.Workers {
		t.Created += w.FlowsCreated
		for reason, n := range w.Drops {
			t.Drops[reason] += n
		}
	}
	return t, nil
}

// risen returns the counters that are larger in b than in a, with the difference.
func risen(a, b map[string]uint64) map[string]uint64 {
	d := maps.Clone(b)
	for reason, n := range a {
		if d[reason] <= n {
			delete(d, reason)
			continue
		}
		d[reason] -= n
	}
	return d
}

// Close ends the reading.
func (c *Counters) Close() {
	c.cancel()
	<-c.done
}

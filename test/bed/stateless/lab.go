package stateless

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"
)

// Lab is an open sender and receiver. It runs one trial at a time.
type Lab struct {
	config Config
	tx     *sender
	rx     receiver
	clock  clock
	run    uint16
}

// Open opens both ends. The sender's MAC address is filled in; Open fixes the form of the packets,
// only the load differs between trials.
func Open(ctx context.Context, c Config) (*Lab, error) {
	if err := c.prepare(); err != nil {
		return nil, fmt.Errorf("stateless: %w", err)
	}
	l := &Lab{config: c, clock: newClock(), run: c.Traffic.Run}
	if err := l.open(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("stateless: %w", err), l.Close())
	}
	return l, nil
}

func (c *Config) prepare() error {
	c.Traffic.setDefaults()
	if c.Tx.Burst == 0 {
		c.Tx.Burst = defaultBurst
	}
	if c.Tx.Together == 0 {
		c.Tx.Together = defaultTogether
	}
	c.Tx.Queues = max(c.Tx.Queues, 1)
	if c.Rx.Settle == 0 {
		c.Rx.Settle = defaultSettle
	}
	if c.Rx.VLANs == nil {
		n := len(c.Traffic.VLANs)
		c.Rx.VLANs = &n
	}
	if !c.Tx.OwnNetwork {
		if err := c.Tx.Port.Guard(); err != nil {
			return err
		}
	}
	if c.Traffic.SourceMAC == nil {
		mac, err := c.Tx.Port.MAC()
		if err != nil {
			return err
		}
		c.Traffic.SourceMAC = mac
	}
	if c.Rx.Queues == 0 {
		n, _, err := c.Rx.Port.queues()
		if err != nil {
			return fmt.Errorf("interface %s: queues: %w", c.Rx.Port.Interface, err)
		}
		c.Rx.Queues = n
	}
	return errors.Join(c.Traffic.check(), c.check(), c.fits())
}

// fits reports whether frames fit the MTU of the sending interface, which tags do not
// count against.
func (c *Config) fits() error {
	a, err := c.Tx.Port.attributes()
	if err != nil {
		return err
	}
	for _, s := range c.Traffic.Sizes {
		if s.Bytes > a.MTU+ethernetBytes+len(c.Traffic.VLANs)*vlanBytes+fcsBytes {
			return fmt.Errorf("frame size %d does not fit interface %s with MTU %d", s.Bytes,
				c.Tx.Port.Interface, a.MTU)
		}
	}
	return nil
}

func (c *Config) check() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.Tx.Queues > maxQueues || c.Rx.Queues < 1 || c.Rx.Queues > maxQueues {
		bad("%d transmit, %d receive queues: want 1 to %d", c.Tx.Queues, c.Rx.Queues, maxQueues)
	}
	if c.Tx.Queues > c.Traffic.Flows {
		bad("%d queues for %d flows: want a flow for each queue", c.Tx.Queues, c.Traffic.Flows)
	}
	if c.Tx.Burst < 1 || c.Tx.Burst > maxBurst {
		bad("bursts of %d packets: want 1 to %d", c.Tx.Burst, maxBurst)
	}
	if c.Rx.Keep < 0 || c.Rx.Keep > maxKeep || c.Rx.Keep > 0 && c.Rx.Method != Timed {
		bad("%d packets kept by receiver %s: timed keeps up to %d", c.Rx.Keep, c.Rx.Method, maxKeep)
	}
	if *c.Rx.VLANs < 0 || *c.Rx.VLANs > 2 {
		bad("%d VLAN tags on arrival: want 0 to 2", *c.Rx.VLANs)
	}
	return errors.Join(errs...)
}

const (
	defaultTogether = 50 * time.Microsecond
	defaultSettle   = 100 * time.Millisecond
	// maxKeep packets take 400 MB in the kernel.
	maxKeep = 1 << 24
	// settleTimes bounds how often Settle may start over.
	settleTimes = 10
	// startAfter is what threads need to be ready.
	startAfter = 2 * time.Millisecond
)

func (l *Lab) open(ctx context.Context) error {
	c := &l.config
	rx, err := openReceiver(ctx, c)
	if err != nil {
		return err
	}
	l.rx = rx
	l.tx, err = openSender(ctx, c.Traffic, c.Tx)
	return err
}

func openReceiver(ctx context.Context, c *Config) (receiver, error) {
	p, err := attachProgram(&c.Traffic, &c.Rx)
	if err != nil {
		return nil, err
	}
	switch c.Rx.Method {
	case Full:
		return openFull(ctx, &c.Traffic, c.Rx, p)
	case Timed:
		return &timer{counter: counter{program: p}, keep: c.Rx.Keep}, nil
	}
	return &counter{program: p}, nil
}

// Trial sends a load and returns its outcome. It fails if something could not be
// set up or read; packets that are lost or damaged are no failure. Canceling ctx ends the trial
// early, with the result up to then and ctx's error.
func (l *Lab) Trial(ctx context.Context, load Load) (*Result, error) {
	if err := load.check(); err != nil {
		return nil, fmt.Errorf("stateless: %w", err)
	}
	result, err := l.trial(ctx, load)
	if err != nil {
		return result, fmt.Errorf("stateless: %w", err)
	}
	return result, ctx.Err()
}

func (l *Lab) trial(ctx context.Context, load Load) (*Result, error) {
	l.run++
	before, err := l.losses()
	if err != nil {
		return nil, err
	}
	if err := l.rx.begin(l.run); err != nil {
		return nil, err
	}
	var stop atomic.Bool
	defer context.AfterFunc(ctx, func() { stop.Store(true) })()
	sent, err := l.tx.send(load, l.run, l.clock.now()+uint64(startAfter), &stop)
	r := &Result{Load: load, Sent: sent}
	errSettle := l.settle()
	var errEnd, errLosses error
	r.Received, errEnd = l.rx.end()
	after, errLosses := l.losses()
	r.Drops = make(map[string]uint64)
	for k, v := range after {
		if d := v - before[k]; d > 0 {
			r.Drops[k] = d
		}
	}
	return r, errors.Join(err, errSettle, errEnd, errLosses)
}

// settle waits until nothing arrives any more.
func (l *Lab) settle() error {
	c := &l.config.Rx
	ticker := time.NewTicker(c.Settle)
	defer ticker.Stop()
	last, err := l.rx.packets()
	for range settleTimes {
		if err != nil {
			return err
		}
		<-ticker.C
		var n uint64
		if n, err = l.rx.packets(); n == last {
			return err
		}
		last = n
	}
	return err
}

// losses are the counters of both interfaces.
func (l *Lab) losses() (map[string]uint64, error) {
	out := make(map[string]uint64)
	for _, p := range []struct {
		end  string
		port *Port
	}{{"tx", &l.config.Tx.Port}, {"rx", &l.config.Rx.Port}} {
		counters, err := p.port.losses()
		if err != nil {
			return nil, err
		}
		for k, v := range counters {
			out[p.end+" "+p.port.Interface+" "+k] = v
		}
	}
	return out, nil
}

// Samples are the first up to 128 bytes of up to 16 packets that arrived since Open,
// for callers that inspect what became of them.
func (l *Lab) Samples() ([][]byte, error) { return l.rx.samples() }

// Config is what Open made of its argument: with defaults filled in.
func (l *Lab) Config() Config {
	c := l.config
	c.Traffic.Sizes = slices.Clone(c.Traffic.Sizes)
	return c
}

// Close closes both ends.
func (l *Lab) Close() error {
	var errs []error
	if l.tx != nil {
		errs = append(errs, l.tx.close())
	}
	if l.rx != nil {
		errs = append(errs, l.rx.close())
	}
	l.tx, l.rx = nil, nil
	return errors.Join(errs...)
}

package demo

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
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
	waiting := 0
	_ = topo.Until(ctx, d.bound(answerTimeout), 10*time.Millisecond, func(context.Context) error {
		waiting = 0
		for i, s := range d.flows.States() {
			if s.Broken == nil && s.Answers == before[i].Answers {
				waiting++
			}
		}
		if waiting > 0 {
			return errWaiting
		}
		return nil
	})
	return waiting
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

// probe is one UDP flow that sends a datagram every millisecond, to find out when the gateway
// forwards.
type probe struct {
	conn    net.Conn
	running sync.WaitGroup

	mu    sync.Mutex
	after time.Time // datagrams sent later count
	first chan time.Time
}

const probeEvery = time.Millisecond

// newProbe returns after the first answer on the flow.
func (d *demo) newProbe(ctx context.Context, target netip.AddrPort) (*probe, error) {
	conn, err := d.client.Dial(ctx, "udp", target.String())
	if err != nil {
		return nil, err
	}
	p := &probe{conn: conn}
	p.running.Go(p.send)
	p.running.Go(p.receive)
	if _, err := p.answered(ctx, time.Now(), d.bound(answerTimeout)); err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

func (p *probe) send() {
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	var datagram [8]byte
	for range tick.C {
		binary.BigEndian.PutUint64(datagram[:], uint64(time.Now().UnixNano()))
		if _, err := p.conn.Write(datagram[:]); errors.Is(err, net.ErrClosed) {
			return
		}
	}
}

// receive reads echoes: the backend's name, a space, and the time of sending.
func (p *probe) receive() {
	in := make([]byte, 256)
	for {
		n, err := p.conn.Read(in)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		_, echo, ok := bytes.Cut(in[:n], []byte(" "))
		if err != nil || !ok || len(echo) != 8 {
			continue
		}
		p.echoed(time.Unix(0, int64(binary.BigEndian.Uint64(echo))))
	}
}

func (p *probe) echoed(sent time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.first != nil && sent.After(p.after) {
		p.first <- time.Now()
		p.first = nil
	}
}

// answered waits for the first answer to a datagram sent after the given time.
func (p *probe) answered(ctx context.Context, after time.Time, timeout time.Duration) (time.Time, error) {
	first := make(chan time.Time, 1)
	p.mu.Lock()
	p.after, p.first = after, first
	p.mu.Unlock()
	select {
	case t := <-first:
		return t, nil
	case <-time.After(timeout):
		return time.Time{}, fmt.Errorf("no datagram was answered in %s", timeout)
	case <-ctx.Done():
		return time.Time{}, ctx.Err()
	}
}

func (p *probe) close() error {
	err := p.conn.Close()
	p.running.Wait()
	return err
}

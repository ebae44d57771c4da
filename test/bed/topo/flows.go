package topo

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"sluice.dev/sluice/test/bed/machine"
)

// FlowLoad is a number of long-lived flows that each ask again and again and
// check who answers.
type FlowLoad struct {
	Targets  []netip.AddrPort // taken in turn
	Flows    int
	Interval time.Duration // between two requests of a flow, 1 s
	Timeout  time.Duration // of one request; UDP: 5 s; else connectionTimeout
	Lifetime time.Duration // after which flows end by themselves, 5 min
	Payload  int           // UDP: bytes of a request, 64
}

// maxFlows bounds the flows of one load.
const maxFlows = 20_000

// connectionTimeout is how long a connection waits for an answer before it counts as broken. TCP
// doubles its retransmission timeout (RFC 6298, section 5.5), so after an outage of 16 s, as two
// starts of a gateway take on a busy machine, the next segment may be 16 s away.
const connectionTimeout = time.Minute

// setDefaults sets the fields that are 0. timeout is the default for Timeout.
func (l *FlowLoad) setDefaults(timeout time.Duration) {
	for _, d := range [...]struct {
		d *time.Duration
		v time.Duration
	}{{&l.Interval, time.Second}, {&l.Timeout, machine.Slower(timeout)},
		{&l.Lifetime, machine.Slower(5 * time.Minute)}} {
		if *d.d == 0 {
			*d.d = d.v
		}
	}
	if l.Payload == 0 {
		l.Payload = 64
	}
}

func (l *FlowLoad) check() error {
	if len(l.Targets) == 0 || l.Flows < 1 || l.Flows > maxFlows || l.Payload < 16 || l.Payload > maxDatagram-256 {
		return fmt.Errorf("%d targets, %d flows (1 to %d), payload of %d bytes", len(l.Targets), l.Flows, maxFlows,
			l.Payload)
	}
	return nil
}

// Flows is a load that runs.
type Flows struct {
	c       *collector
	cancel  context.CancelFunc
	running sync.WaitGroup
	enough  atomic.Bool // no further requests

	mu   sync.Mutex
	flow []FlowState
}

// FlowState is what one flow has seen.
type FlowState struct {
	Local   netip.AddrPort
	Target  netip.AddrPort
	Backend string // backend of the last answer
	Client  string // TCP: the client's address as the backend saw it
	Moves   int    // how often another backend answered than before
	Answers int64
	Lost    int64 // UDP: requests without an answer in time
	Broken  error // TCP: why the flow ended early; nil while it lives
}

// OpenTCP opens the flows from the host, one connection each, and returns once
// all are open or have failed. A flow whose connection breaks or that is answered by
// another backend is broken and stays so.
func (h *Host) OpenTCP(ctx context.Context, l FlowLoad) (*Flows, error) {
	l.setDefaults(connectionTimeout)
	return h.open(ctx, l, dialNet("tcp"), (*Flows).tcp)
}

// OpenUDP opens the flows from the host, one socket each. A UDP flow may lose
// datagrams and may be moved to another backend; both are counted.
func (h *Host) OpenUDP(ctx context.Context, l FlowLoad) (*Flows, error) {
	l.setDefaults(5 * time.Second)
	return h.open(ctx, l, dialNet("udp"), (*Flows).udp)
}

type flowRun func(*Flows, context.Context, *FlowLoad, int, net.Conn)

// dialFunc connects, in the calling thread's namespace, or gives up after a time.
type dialFunc func(context.Context, netip.AddrPort, time.Duration) (net.Conn, error)

func dialNet(network string) dialFunc {
	return func(ctx context.Context, to netip.AddrPort, timeout time.Duration) (net.Conn, error) {
		d := net.Dialer{Timeout: timeout, KeepAlive: -1}
		return d.DialContext(ctx, network, to.String())
	}
}

func (h *Host) open(ctx context.Context, l FlowLoad, dial dialFunc, run flowRun) (*Flows, error) {
	if err := l.check(); err != nil {
		return nil, fmt.Errorf("%s: flows: %w", h.Name, err)
	}
	ctx, cancel := context.WithTimeout(ctx, l.Lifetime)
	f := &Flows{c: newCollector(), cancel: cancel, flow: make([]FlowState, l.Flows)}
	conns := make([]net.Conn, l.Flows)
	if err := h.dialAll(ctx, &l, dial, f, conns); err != nil {
		cancel()
		return nil, err
	}
	for i, conn := range conns {
		if conn == nil {
			continue
		}
		f.flow[i].Local = conn.LocalAddr().(interface{ AddrPort() netip.AddrPort }).AddrPort()
		f.running.Go(func() {
			defer conn.Close()
			// The end of the load interrupts a request that waits.
			defer context.AfterFunc(ctx, func() { conn.Close() })()
			// Requests of different flows are spread over the interval.
			_ = Pause(ctx, l.Interval*time.Duration(i)/time.Duration(l.Flows))
			run(f, ctx, &l, i, conn)
		})
	}
	h.net.onClose(func() error { f.Stop(); return nil })
	return f, nil
}

// dialAll makes the connections, several at a time.
func (h *Host) dialAll(ctx context.Context, l *FlowLoad, dial dialFunc, f *Flows, conns []net.Conn) error {
	const dialers = 16
	var running sync.WaitGroup
	errs := make([]error, dialers)
	for d := range dialers {
		running.Go(func() {
			errs[d] = h.Run(func() error {
				for i := d; i < len(conns); i += dialers {
					target := l.Targets[i%len(l.Targets)]
					f.flow[i].Target = target // no flow runs yet
					conn, err := dial(ctx, target, l.Timeout)
					if err != nil {
						f.flow[i].Broken = err
						f.c.failed(err)
						continue
					}
					conns[i] = conn
				}
				return nil
			})
		})
	}
	running.Wait()
	return errors.Join(errs...)
}

func (f *Flows) tcp(ctx context.Context, l *FlowLoad, i int, conn net.Conn) {
	r := bufio.NewReader(conn)
	target := l.Targets[i%len(l.Targets)]
	for ctx.Err() == nil && !f.enough.Load() {
		began := time.Now()
		_ = conn.SetDeadline(began.Add(l.Timeout)) // cannot fail on an open connection
		backend, client, err := ask(conn, r, target, false)
		if err == nil && !f.answer(i, backend, client) {
			err = fmt.Errorf("wrong answer: another backend")
		}
		if err != nil {
			if ctx.Err() == nil {
				f.broken(i, err)
			}
			return
		}
		f.c.answered(backend, client, time.Since(began))
		_ = Pause(ctx, l.Interval)
	}
}

// udp sends datagrams with the flow's and the datagram's number and expects each
// back behind the backend's name. Late answers to earlier ones are passed over.
func (f *Flows) udp(ctx context.Context, l *FlowLoad, i int, conn net.Conn) {
	in := make([]byte, maxDatagram)
	out := make([]byte, l.Payload)
	client := conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr().String()
	for seq := 0; ctx.Err() == nil && !f.enough.Load(); seq++ {
		began := time.Now()
		copy(out, bytes.Repeat([]byte{' '}, len(out)))
		copy(out, fmt.Sprintf("%d/%d", i, seq))
		_ = conn.SetDeadline(began.Add(l.Timeout))
		backend, err := exchange(conn, out, in)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			f.lost(i, err)
		default:
			f.answer(i, backend, "")
			f.c.answered(backend, client, time.Since(began))
		}
		_ = Pause(ctx, l.Interval)
	}
}

// exchange sends one datagram and waits for its answer.
func exchange(conn net.Conn, out, in []byte) (backend string, err error) {
	if _, err := conn.Write(out); err != nil {
		return "", err
	}
	for {
		n, err := conn.Read(in)
		if err != nil {
			return "", err
		}
		name, payload, ok := bytes.Cut(in[:n], []byte(" "))
		if ok && bytes.Equal(payload, out) {
			return string(name), nil
		}
	}
}

// answer records who answered and reports whether it was the same as before.
func (f *Flows) answer(i int, backend, client string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := &f.flow[i]
	s.Answers++
	same := s.Backend == "" || s.Backend == backend
	if !same {
		s.Moves++
	}
	s.Backend, s.Client = backend, client
	return same
}

func (f *Flows) lost(i int, err error) {
	f.c.failed(err)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.flow[i].Lost++
}

func (f *Flows) broken(i int, err error) {
	f.c.failed(err)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.flow[i].Broken = err
}

// States returns what each flow has seen so far.
func (f *Flows) States() []FlowState {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.flow)
}

// Broken counts the flows that did not come about or broke.
func (f *Flows) Broken() int {
	n := 0
	for _, s := range f.States() {
		if s.Broken != nil {
			n++
		}
	}
	return n
}

// Waiting counts the flows that live and have had fewer than n answers since an earlier state;
// without one, in all.
func (f *Flows) Waiting(since []FlowState, n int64) (waiting int) {
	for i, s := range f.States() {
		least := n
		if since != nil {
			least += since[i].Answers
		}
		if s.Broken == nil && s.Answers < least {
			waiting++
		}
	}
	return waiting
}

// AnsweredAgain waits until every flow that lives has had n answers more than now.
func (f *Flows) AnsweredAgain(ctx context.Context, timeout time.Duration, n int64) error {
	since := f.States()
	return Until(ctx, timeout, 10*time.Millisecond, func(context.Context) error {
		if waiting := f.Waiting(since, n); waiting > 0 {
			return fmt.Errorf("%d of %d flows wait for an answer", waiting, len(since))
		}
		return nil
	})
}

// ByBackend counts the flows by who answered last.
func (f *Flows) ByBackend() map[string]int {
	m := make(map[string]int)
	for _, s := range f.States() {
		if s.Broken == nil && s.Backend != "" {
			m[s.Backend]++
		}
	}
	return m
}

// Finish is Stop without a request under way: each flow hears the answer to its last one. An answer
// to a socket that is closed already makes its kernel send an ICMP error.
func (f *Flows) Finish() *Result {
	f.enough.Store(true)
	f.running.Wait()
	return f.Stop()
}

// Stop ends the flows and returns their results together. It may be called twice.
func (f *Flows) Stop() *Result {
	f.cancel()
	f.running.Wait()
	return f.c.result()
}

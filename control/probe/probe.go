package probe

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"time"

	"sluice.dev/sluice/control/endpointhealth"
	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/internal/heartbeat"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/proxyproto"
)

// attempts is the number of attempts of one check.
const attempts = 4

// MostDescriptors is how many descriptors a check has at most.
const MostDescriptors = attempts

// Prober makes checks. Its results come by one channel.
type Prober struct {
	refused func(netip.Addr) string
	results chan []Finished
	tcp     *connector
	tls     *sessions

	ctx    context.Context
	cancel context.CancelFunc
	group  sync.WaitGroup
}

// Finished is a check that is over.
type Finished struct {
	Start  endpointhealth.Start
	Result endpointhealth.Result
}

// New returns a Prober. refused returns why an address must not be asked, "" if it may be; it is
// called by Start before each check. beat, unless nil, is the heartbeat of the goroutine that
// connects. Close ends the Prober.
func New(refused func(netip.Addr) string, beat *heartbeat.Beat) (*Prober, error) {
	p := &Prober{refused: refused, results: make(chan []Finished, 64), tls: newSessions()}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	var err error
	if p.tcp, err = newConnector(p.deliver); err != nil {
		p.cancel()
		return nil, err
	}
	p.tcp.connected, p.tcp.beat = p.connected, beat
	p.group.Go(p.tcp.run)
	return p, nil
}

// Results returns the channel of results, each element with the results that came at one time. It
// must be read, or checks stop.
func (p *Prober) Results() <-chan []Finished { return p.results }

// Start begins a check. It does not block.
func (p *Prober) Start(s endpointhealth.Start) {
	if p.refused != nil {
		if why := p.refused(s.Target.Addr()); why != "" {
			r := endpointhealth.Result{Skipped: true, Detail: "not checked: " + why}
			p.group.Go(func() { p.finish(s, r) })
			return
		}
	}
	if s.Check.Kind.Proto() == header.ProtoTCP {
		p.tcp.start(s)
		return
	}
	p.group.Go(func() {
		began := time.Now()
		detail, reads, err := p.askDatagram(s, began)
		r := resultOf(detail, err, time.Since(began), s.Check.Timeout)
		r.Spent = endpointhealth.CheckCost(s.Check.Kind) + time.Duration(reads)*readCost
		p.end(s, r)
	})
}

func (p *Prober) askDatagram(s endpointhealth.Start, began time.Time) (detail string, reads int, err error) {
	switch s.Check.Kind {
	case objects.CheckUDP:
		return askUDP(p.ctx, s.Target, &s.Check, began)
	case objects.CheckDNS:
		return askDNS(p.ctx, s.Target, &s.Check, began)
	}
	return "", 0, fmt.Errorf("%v checks are not made here", s.Check.Kind)
}

// connected goes on with a check that has a connection, whose descriptor it takes. It does not
// block.
func (p *Prober) connected(s endpointhealth.Start, fd int, began time.Time) {
	p.group.Go(func() {
		r := endpointhealth.Result{}
		c, release, err := connection(p.ctx, fd, began.Add(s.Check.Timeout))
		if err != nil {
			r = resultOf("", err, 0, s.Check.Timeout)
		} else {
			detail, extra, err := p.ask(c, s, began)
			release()
			r = resultOf(detail, err, time.Since(began), s.Check.Timeout)
			r.Spent = endpointhealth.CheckCost(s.Check.Kind) + extra +
				time.Duration(max(c.reads.Load()-fewReads, 0))*readCost
		}
		p.end(s, r)
	})
}

// ask asks over a connection. extra is the processor time of a TLS handshake that resumed no
// session.
func (p *Prober) ask(
	c *bounded, s endpointhealth.Start, began time.Time,
) (detail string, extra time.Duration, err error) {
	if s.Check.ProxyHeader {
		if _, err := io.WriteString(c, proxyproto.Local); err != nil {
			return "", 0, err
		}
	}
	switch s.Check.Kind {
	case objects.CheckHTTP:
		detail, err = askHTTP(c, "http", s.Target, &s.Check)
	case objects.CheckHTTPS:
		var t *tls.Conn
		t, extra, err = p.tls.handshake(c, s.Namespace, s.Target, &s.Check)
		if err == nil {
			detail, err = askHTTP(t, "https", s.Target, &s.Check)
		}
	case objects.CheckGRPC:
		ctx, cancel := context.WithDeadline(p.ctx, began.Add(s.Check.Timeout))
		defer cancel()
		c.most.Store(maxGRPC)
		detail, err = askGRPC(ctx, c, s.Target, &s.Check)
	default:
		err = fmt.Errorf("%v checks are not made here", s.Check.Kind)
	}
	return detail, extra, err
}

// readCost is the processor time of a read beyond fewReads, which are part of
// endpointhealth.CheckCost (go test -bench Cost ./control/probe).
const (
	readCost = 80 * time.Microsecond
	fewReads = 8
)

// end delivers a result, unless the Prober was closed meanwhile.
func (p *Prober) end(s endpointhealth.Start, r endpointhealth.Result) {
	if p.ctx.Err() == nil {
		p.finish(s, r)
	}
}

func (p *Prober) finish(s endpointhealth.Start, r endpointhealth.Result) {
	p.deliver([]Finished{{s, r}})
}

func (p *Prober) deliver(list []Finished) {
	select {
	case p.results <- list:
	case <-p.ctx.Done():
	}
}

// Close ends all checks. Results that nobody has read are lost.
func (p *Prober) Close() error {
	p.cancel()
	err := p.tcp.close()
	p.group.Wait()
	return err
}

// errNoAnswer is the error of an attempt that ended without an answer.
var errNoAnswer = errors.New("no answer")

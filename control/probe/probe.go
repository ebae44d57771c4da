package probe

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"sluice.dev/sluice/control/endpointhealth"
	"sluice.dev/sluice/control/objects"
)

// attempts are those of one check.
const attempts = 4

// MostDescriptors is how many descriptors a check has at most.
const MostDescriptors = attempts

// Prober makes checks. Its results come by one channel.
type Prober struct {
	refused func(netip.Addr) string
	results chan []Finished
	tcp     *connector
	cleared *http.Transport // HTTP without TLS
	secured *http.Transport
	h2      *http.Transport // HTTP/2 without TLS, for gRPC

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
// called by Start before each check. Close ends the Prober.
func New(refused func(netip.Addr) string) (*Prober, error) {
	p := &Prober{refused: refused, results: make(chan []Finished, 64)}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	var err error
	if p.tcp, err = newConnector(p.deliver); err != nil {
		p.cancel()
		return nil, err
	}
	transport := func() *http.Transport {
		return &http.Transport{
			DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: maxHeader,
			DialContext: dial, TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{},
		}
	}
	p.cleared, p.secured, p.h2 = transport(), transport(), transport()
	p.h2.Protocols = new(http.Protocols)
	p.h2.Protocols.SetUnencryptedHTTP2(true)
	p.h2.TLSNextProto = nil
	p.group.Go(p.tcp.run)
	return p, nil
}

// maxHeader bounds what an endpoint may answer with, in bytes.
const maxHeader = 64 << 10

// dial connects, and resets the connection when it is closed: a check leaves no socket in
// TIME_WAIT.
func dial(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetLinger(0)
	}
	return c, err
}

// Results returns the channel of results, those that came together at a time. It must be read, or
// checks stop.
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
	if s.Check.Kind == objects.CheckTCP {
		p.tcp.start(s)
		return
	}
	p.group.Go(func() {
		began := time.Now()
		detail, err := p.hedge(s)
		if p.ctx.Err() != nil {
			return
		}
		p.finish(s, resultOf(detail, err, time.Since(began), s.Check.Timeout))
	})
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
	for _, t := range []*http.Transport{p.cleared, p.secured, p.h2} {
		t.CloseIdleConnections()
	}
	return err
}

// errNoAnswer is that of an attempt that ended without an answer.
var errNoAnswer = errors.New("no answer")

// hedge makes attempts until one is answered or cannot be made, or the time is up.
func (p *Prober) hedge(s endpointhealth.Start) (detail string, err error) {
	ctx, cancel := context.WithTimeout(p.ctx, s.Check.Timeout)
	defer cancel()
	type outcome struct {
		detail string
		err    error
	}
	done := make(chan outcome, attempts)
	again := time.NewTicker(s.Check.Timeout / attempts)
	defer again.Stop()
	begun := 0
	begin := func() {
		begun++
		p.group.Go(func() {
			detail, err := p.attempt(ctx, s)
			done <- outcome{detail, err}
		})
	}
	begin()
	for ended := 0; ended < attempts; {
		select {
		case o := <-done:
			if local(o.err) || !silent(o.err) {
				return o.detail, o.err
			}
			ended++
		case <-again.C:
			if begun < attempts {
				begin()
			}
		case <-ctx.Done():
			return "", errNoAnswer
		}
	}
	return "", errNoAnswer
}

// attempt asks once.
func (p *Prober) attempt(ctx context.Context, s endpointhealth.Start) (string, error) {
	switch c := &s.Check; c.Kind {
	case objects.CheckHTTP:
		return askHTTP(ctx, p.cleared, "http", s.Target, c)
	case objects.CheckHTTPS:
		return askHTTP(ctx, p.secured, "https", s.Target, c)
	case objects.CheckGRPC:
		return askGRPC(ctx, p.h2, s.Target, c)
	case objects.CheckUDP:
		return askUDP(ctx, s.Target, c)
	case objects.CheckDNS:
		return askDNS(ctx, s.Target, c)
	}
	return "", fmt.Errorf("%v checks are not made here", s.Check.Kind)
}

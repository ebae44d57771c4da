package conformance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"regexp"
	"strings"
	"sync"
	"time"

	"sluice.dev/sluice/test/bed/machine"
)

// probe is packets to send and their expected outcome.
type probe struct {
	how  string // tcp, udp, sctp, syn, http, or one of frames.go
	from string // kind of client; for syn an address
	to   []dest // taken in turn
	n    int    // connections
	as   manner // the part of the answers that counts
	hold bool   // all connections are open at the same time
	keep string // name of flows that stay open: opened by the first probe of the name
	path string // http
	want string
	// unasked is why kube-proxy is not probed.
	unasked string
	// every is the time from one connection of a client to its next.
	every time.Duration
	tags  []uint16 // VLAN identifiers, outer first
	// slow is how long a connection may take to open, by all connections at the same time; zero
	// means patience, by one after another.
	slow time.Duration
}

// connections is how often a probe connects: often enough to meet everybody. One of two
// backends chosen at random is missed once in 2^31 runs, one of three in 300,000.
const connections = 32

// fewConnections is enough to meet everybody if one backend is expected, and of several that take
// turns, as IPVS has them do.
const fewConnections = 8

// emulated reports whether a connection takes so long that the number counts.
var emulated = machine.Slower(1) > 1

var severalBackends = regexp.MustCompile(`b\d.* b\d`)

func (c *Case) probe(p *probe) *Case {
	if p.n == 0 {
		p.n = connections
		if emulated && p.as == who && !severalBackends.MatchString(p.want) {
			p.n = fewConnections
		}
	}
	c.last().probes = append(c.last().probes, p)
	return c
}

func (c *Case) tcp(from, want string, to ...dest) *Case {
	return c.probe(&probe{how: "tcp", from: from, to: to, want: want})
}

func (c *Case) udp(from, want string, to ...dest) *Case {
	return c.probe(&probe{how: "udp", from: from, to: to, want: want})
}

// undefined is a probe that kube-proxy promises nothing about.
func (c *Case) undefined(how, from, want string, to dest) *Case {
	return c.probe(&probe{how: how, from: from, to: []dest{to}, want: want, unasked: whyUndefined})
}

// sticks is a probe that checks only whether one backend got all flows: want is "one from SOURCE"
// or "several from SOURCE".
func (c *Case) sticks(how, from, want string, to ...dest) *Case {
	return c.probe(&probe{how: how, from: from, to: to, want: want, as: whetherOne})
}

// holds is a probe whose connections are open at the same time.
func (c *Case) holds(how, from, want string, to ...dest) *Case {
	return c.probe(&probe{how: how, from: from, to: to, want: want, hold: true})
}

// keeps opens flows, or uses the flows of this name that an earlier step has opened.
func (c *Case) keeps(name, how, from, want string, to dest) *Case {
	return c.probe(&probe{how: how, from: from, to: []dest{to}, want: want, keep: name, n: keptFlows})
}

// keptFlows is how many flows a case keeps. If backends are chosen anew, by chance all of them
// reach their old backend of two in one of 65,000 runs.
const keptFlows = 16

// sctp sends one SCTP INIT and waits for it, and for the answer.
func (c *Case) sctp(from, want string, to dest) *Case {
	return c.probe(&probe{how: "sctp", from: from, to: []dest{to}, want: want, n: 1})
}

// associates begins an SCTP association that stays open, or goes on with it.
func (c *Case) associates(name, from, want string, to dest) *Case {
	return c.probe(&probe{how: "sctp", from: from, to: []dest{to}, want: want, keep: name, n: 1})
}

// ping sends one echo request.
func (c *Case) ping(want string, to dest) *Case {
	return c.probe(&probe{how: "ping", from: outside, to: []dest{to}, want: want, n: 1})
}

// syn sends one TCP SYN from an address that need not be the client's.
func (c *Case) syn(from, want string, to dest) *Case {
	return c.probe(&probe{how: "syn", from: from, to: []dest{to}, want: want, n: 1})
}

func (c *Case) http(from, want string, to dest, path string) *Case {
	return c.probe(&probe{how: "http", from: from, to: []dest{to}, want: want, path: path, n: 1})
}

// String is the probe in the words of the document.
func (p *probe) String() string {
	var to []string
	for _, d := range p.to {
		to = append(to, d.name)
	}
	from := p.from
	if p.how == "syn" {
		from = "the VIP itself" // its number says nothing
	}
	text := fmt.Sprintf("%s %s to %s", p.how, from, strings.Join(to, ", "))
	if p.path != "" {
		text += " " + p.path
	}
	if p.how == tagged+"tcp" || p.how == tagged+"udp" {
		text += ", " + tagNames[len(p.tags)]
		if p.tags[0] == 0 {
			text += " for the priority"
		}
	}
	if p.keep != "" {
		text += ", flow " + p.keep
	}
	return text
}

// prober gives probes to one system. It keeps the flows that stay open.
type prober struct {
	w *world

	mu   sync.Mutex
	kept map[string]*keptFlow // by case and name of flows
	// drops is how many packets the system dropped for a reason.
	drops func(reason string) (uint64, error)
	// Frames are crafted one probe at a time: everybody listens on the same wires.
	crafting sync.Mutex
}

// keptFlow is flows that stay open.
type keptFlow struct {
	sockets []*socket
	sctp    *association
}

func newProber(w *world) *prober { return &prober{w: w, kept: map[string]*keptFlow{}} }

func (r *prober) close() {
	for _, k := range r.kept {
		for _, s := range k.sockets {
			s.close()
		}
	}
}

// do sends the packets of a probe and returns its outcome.
func (r *prober) do(ctx context.Context, c *Case, p *probe) string {
	var answers []answer
	var err error
	switch p.how {
	case "http":
		return r.http(ctx, p)
	case "sctp", "syn", "ping", tagged + "tcp", tagged + "udp", fragments, unreachable, tooBig, late:
		r.crafting.Lock()
		defer r.crafting.Unlock()
		answers, err = r.craft(c, p)
	default:
		switch {
		case p.keep != "":
			answers, err = r.ask(c, p)
		case p.every > 0:
			answers, err = r.connectSlowly(ctx, p)
		case p.slow > 0:
			answers, err = r.connectAtOnce(p)
		default:
			answers, err = r.connect(ctx, p)
		}
	}
	if err != nil {
		return "error: " + err.Error()
	}
	return outcome(answers, p.as, r.w.ofGateway)
}

// connect opens p.n flows, one after another. Silence is waited for once, and the
// fourth refusal is believed.
func (r *prober) connect(ctx context.Context, p *probe) (answers []answer, err error) {
	refused := 0
	var held []*socket
	defer func() {
		for _, s := range held {
			s.close()
		}
	}()
	for i := 0; i < p.n && refused < 4 && ctx.Err() == nil; i++ {
		s, a, err := r.dial(p, i)
		if err != nil {
			return nil, err
		}
		if s != nil {
			a = s.ask()
			if held = append(held, s); !p.hold {
				s.close()
				held = held[:0]
			}
		}
		answers = append(answers, a)
		if a.verdict != "" {
			refused++
		}
		if a.backend != "" {
			refused = -p.n // it answers some connections: go on
		}
		if a.verdict == drop {
			break
		}
	}
	return answers, ctx.Err()
}

// slowClients is how many clients connect at the same time, each p.n times.
const slowClients = 8

// connectSlowly opens p.n flows of each of some clients of a crowd, p.every apart.
func (r *prober) connectSlowly(ctx context.Context, p *probe) (answers []answer, err error) {
	tick := time.NewTicker(p.every)
	defer tick.Stop()
	for range p.n {
		one := *p
		one.n = slowClients
		got, err := r.connectAtOnce(&one)
		if err != nil {
			return nil, err
		}
		answers = append(answers, got...)
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-tick.C:
		}
	}
	return answers, nil
}

// connectAtOnce opens all flows at the same time.
func (r *prober) connectAtOnce(p *probe) ([]answer, error) {
	answers, errs := make([]answer, p.n), make([]error, p.n)
	var running sync.WaitGroup
	for i := range p.n {
		running.Go(func() {
			var s *socket
			if s, answers[i], errs[i] = r.dial(p, i); s != nil {
				answers[i] = s.ask()
				s.close()
			}
		})
	}
	running.Wait()
	return answers, errors.Join(errs...)
}

func (r *prober) dial(p *probe, i int) (s *socket, a answer, err error) {
	to := p.to[i%len(p.to)].to
	host, from := r.w.client(p.from, to.Addr().Is6(), i)
	limit := patience
	if p.slow > 0 {
		limit = p.slow
	}
	err = host.Run(func() (err error) {
		s, a.verdict, err = connect(strings.HasSuffix(p.how, "tcp"), from, to, limit)
		return err
	})
	return s, a, err
}

// ask uses flows that stay open.
func (r *prober) ask(c *Case, p *probe) (answers []answer, err error) {
	key := c.ID() + "/" + p.keep
	r.mu.Lock()
	k := r.kept[key]
	r.mu.Unlock()
	if k == nil {
		k = &keptFlow{}
		for i := range p.n {
			s, a, err := r.dial(p, i)
			if s == nil {
				return []answer{a}, err
			}
			k.sockets = append(k.sockets, s)
		}
		r.mu.Lock()
		r.kept[key] = k
		r.mu.Unlock()
	}
	for _, s := range k.sockets {
		if !s.stream { // that both ends have spoken twice makes a flow live longer
			s.ask()
		}
		a := s.ask()
		answers = append(answers, a)
		if a.verdict == drop {
			break
		}
	}
	return answers, nil
}

// http asks a health server. The outcome is the status and the parts of the rest that do not vary.
func (r *prober) http(ctx context.Context, p *probe) string {
	to := p.to[0].to
	host, from := r.w.client(p.from, to.Addr().Is6(), 0)
	var verdict string
	err := host.Run(func() error {
		s, v, err := connect(true, from, to, patience)
		if s != nil {
			s.close()
		}
		verdict = v
		return err
	})
	if err != nil {
		return "error: " + err.Error()
	}
	if verdict != "" {
		return verdict
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	transport := &http.Transport{DialContext: host.Dial, DisableKeepAlives: true}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+to.String()+p.path, nil)
	if err != nil {
		return "error: " + err.Error()
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return "error: " + err.Error()
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 1<<16))
	if err != nil {
		return "error: " + err.Error()
	}
	return describe(response, body)
}

// addressOf is a literal address, or nothing.
func addressOf(text string) netip.Addr {
	a, _ := netip.ParseAddr(text) // the zero address if it is none
	return a
}

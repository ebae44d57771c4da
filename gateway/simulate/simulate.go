// Package simulate predicts the verdicts of a gateway about the packets of a capture. It runs them
// through a worker (fastpath.Worker), with the snapshot that the compiler makes of manifests
// and a configuration, and with the capture's time as the clock:
//
//	capture ──► select ──► worker ──► verdicts, flows ──┬─► status.SimulateView
//	   clients' packets,   (one for each configuration) │
//	   backends' answers        flow table ─► ports ────┘
//
// Nothing of a host is used: packets come from and go to a link in memory, all addresses are behind
// one neighbour, and endpoints of the node itself are like all others. The gateway has just started
// when the capture begins. The capture is read as a stream, so memory is bounded by the tables of
// the configuration and one entry for each flow that fits into them.
package simulate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/fastpath/capture"
	"sluice.dev/sluice/fastpath/decide"
	"sluice.dev/sluice/gateway/offline"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/reason"
	"sluice.dev/sluice/serve/status"
)

// minMTU and maxMTU bound the MTU: RFC 791 section 3.2, and the longest IP packet.
const minMTU, maxMTU = 68, 1<<16 - 1

// Run simulates a gateway.
func Run(ctx context.Context, q *status.SimulateQuery) (v status.SimulateView, err error) {
	if q.MTU < minMTU || q.MTU > maxMTU {
		return v, fmt.Errorf("the MTU is %d, choose %d to %d", q.MTU, minMTU, maxMTU)
	}
	file, err := openCapture(q.Capture)
	if err != nil {
		return v, err
	}
	defer func() { err = errors.Join(err, file.close()) }()
	s := newSimulation(file, q.MTU)
	defer s.close()
	for _, in := range inputs(q) {
		if err := s.add(ctx, in); err != nil {
			return v, err
		}
	}
	if err := s.run(ctx); err != nil {
		return v, err
	}
	if err := s.check(q); err != nil {
		return v, err
	}
	return s.view(q), nil
}

// inputs returns the files of the gateway, and the files of the gateway that it is compared with.
func inputs(q *status.SimulateQuery) []offline.Input {
	in := offline.Input{Config: q.Config, Manifests: q.Manifests, Node: q.Node}
	if q.Against == "" {
		return []offline.Input{in}
	}
	other := in
	if info, err := os.Stat(q.Against); err == nil && !info.IsDir() {
		other.Config = q.Against
	} else {
		other.Manifests = q.Against
	}
	return []offline.Input{in, other}
}

// simulation is one run over a capture.
type simulation struct {
	file     *captureFile
	gateways []*gateway
	of       [2]accounts // by gateway
	mtu      int

	flows    map[flowKey]*flow
	maxFlows int
	counts   counts

	now    uint64    // time of the gateways, in nanoseconds
	latest time.Time // of the packets

	packet parsed // the current one, which may be in whole
	whole  []byte
}

// counts counts the packets of the file.
type counts struct {
	status.SimulateCapture
	cut       uint64 // packets that the capture truncated
	uncounted uint64 // packets of flows beyond maxFlows
	largest   uint64 // bytes of the largest IP packet of clients
}

// Times of the gateways. A longer pause of the capture counts as maxPause, and time does not go on
// after maxTime: flowtable.Ticks last 13 years.
const (
	start    = time.Hour
	maxPause = 24 * time.Hour
	maxTime  = 10 * 365 * 24 * time.Hour
)

func newSimulation(f *captureFile, mtu int) *simulation {
	return &simulation{file: f, mtu: mtu, flows: map[flowKey]*flow{}, now: uint64(start)}
}

// add makes a gateway from its files.
func (s *simulation) add(ctx context.Context, in offline.Input) error {
	o, err := offline.Load(ctx, in)
	if err != nil {
		return err
	}
	if len(o.Unread) > 0 {
		return unreadError(in.Manifests, o.Unread)
	}
	g, err := newGateway(o, s.mtu, [32]byte{1}, s.now)
	if err != nil {
		return err
	}
	s.use(g)
	return nil
}

// use adds a gateway.
func (s *simulation) use(g *gateway) {
	n := len(s.gateways)
	g.note = func(r *capture.Record) { s.note(n, r) }
	s.gateways = append(s.gateways, g)
	s.of[n] = accounts{numbers: map[backendKey]int32{}, sets: map[setKey]uint64{}}
	s.maxFlows = max(s.maxFlows, g.Config.Flows.IPv4+g.Config.Flows.IPv6)
}

// mostUnread bounds the list of manifests in an error.
const mostUnread = 16

// unreadError lists the manifests that cannot be read: without them the simulated gateway would be
// another one.
func unreadError(dir string, list []status.ProblemView) error {
	var lines []string
	for i := range list[:min(mostUnread, len(list))] {
		p := &list[i]
		words := []string{p.Source}
		for _, w := range []string{p.Object, p.Field, p.Message} {
			if w != "" {
				words = append(words, w)
			}
		}
		lines = append(lines, strings.Join(words, ": "))
	}
	if more := len(list) - len(lines); more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", more))
	}
	return fmt.Errorf("manifests of %s cannot be read, correct them first:\n  %s", dir, strings.Join(lines, "\n  "))
}

func (s *simulation) close() {
	for _, g := range s.gateways {
		g.close()
	}
}

// lookEvery is the number of packets after which run looks whether it must end.
const lookEvery = 4096

// run simulates all packets of the file.
func (s *simulation) run(ctx context.Context) error {
	for {
		if s.counts.Packets%lookEvery == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		c, err := s.file.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if err := s.handle(&c); err != nil {
			return err
		}
	}
	for _, g := range s.gateways { // fragments that wait for their first one are dropped
		g.wait(s.now + uint64(2*config.FragmentWait))
	}
	return nil
}

// tick advances the time to that of a packet. Packets that are older than the one before get its
// time.
func (s *simulation) tick(at time.Time) {
	if s.counts.Packets == 0 {
		s.counts.First, s.latest = at, at
	}
	if pause := min(at.Sub(s.latest), maxPause); pause > 0 {
		s.latest = at
		s.now = min(s.now+uint64(pause), uint64(maxTime))
	}
	s.counts.Last = s.latest
	s.counts.Packets++
}

// handle simulates one packet.
func (s *simulation) handle(c *captured) error {
	s.tick(c.at)
	p, ok := s.restore(c)
	if !ok {
		s.counts.Unusable++
		return nil
	}
	switch s.kindOf(c, p) {
	case fromClient:
		return s.fromClient(p)
	case fromVIP:
		return s.fromVIP(p)
	}
	s.counts.Others++
	return nil
}

// fromVIP gives a backend's answer to the gateways that have its flow.
func (s *simulation) fromVIP(p *parsed) error {
	known := false
	for _, g := range s.gateways {
		ok, err := g.answer(s.now, p.frame, &p.Packet)
		if err != nil {
			return err
		}
		known = known || ok
	}
	if known {
		s.counts.Replies++
	} else {
		s.counts.Others++
	}
	return nil
}

// fromClient gives a client's packet to the gateways. They would have the connections that were
// open when the capture began; as these do not, packets of such connections are left out.
func (s *simulation) fromClient(p *parsed) error {
	var f *flow
	if p.reason == reason.None && isService(&p.Tuple) && p.Fragment != header.LaterFragment {
		f = s.flowOf(keyOf(&p.Tuple))
		switch {
		case f == nil:
			s.counts.uncounted++
		case !f.opened && !s.opens(p):
			s.counts.Earlier++
			return nil
		default:
			f.opened = true
		}
	}
	s.counts.Clients++
	s.counts.largest = max(s.counts.largest, uint64(p.ipBytes()))
	for n, g := range s.gateways {
		if g.denied.Contains(p.Tuple.Src) {
			s.count(n, denied, capture.Drop)
			if f != nil && f.of[n].reason == 0 {
				f.of[n].reason = denied
			}
			continue
		}
		if err := g.feed(s.now, p.frame); err != nil {
			return err
		}
	}
	return nil
}

// opens reports whether a packet may be the first of a flow. With direct return a gateway takes
// over open connections.
func (s *simulation) opens(p *parsed) bool {
	if !p.Tuple.Stateful() || decide.IsSYN(p.TCPFlags) {
		return true
	}
	f := s.frontend(&p.Tuple)
	return f != nil && f.Service.Direct
}

// check returns an error if no packet was simulated.
func (s *simulation) check(q *status.SimulateQuery) error {
	c, dir := &s.counts, q.Manifests
	switch {
	case c.Clients > 0:
		return nil
	case c.Packets == 0:
		return fmt.Errorf("capture: %s has no packet", s.file.name)
	case s.file.ethernet == 0:
		var types []string
		for t := range s.file.links {
			types = append(types, fmt.Sprint(uint16(t)))
		}
		slices.Sort(types)
		return fmt.Errorf("capture: %s has packets of link type %s, and only Ethernet (1) can be simulated: capture "+
			"on one interface (tcpdump -i eth0), not on all of them (-i any)", s.file.name, strings.Join(types, ", "))
	case c.Earlier > 0:
		return fmt.Errorf("capture: %s has only packets of connections that were open when it began, which cannot be "+
			"simulated: capture for longer than a connection lasts", s.file.name)
	case s.file.dropsOnly:
		return fmt.Errorf("capture: %s has only packets where they were dropped: capture without --drop", s.file.name)
	}
	return fmt.Errorf("capture: none of the %d packets of %s is for a frontend of %s: capture where clients' packets "+
		"reach the gateway, and take manifests with the addresses in status.loadBalancer or spec.externalIPs",
		c.Packets, s.file.name, dir)
}

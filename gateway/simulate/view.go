package simulate

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/gateway/seed"
	"sluice.dev/sluice/nat/reason"
	"sluice.dev/sluice/serve/status"
)

// view returns the results.
func (s *simulation) view(q *status.SimulateQuery) status.SimulateView {
	v := status.SimulateView{Capture: s.counts.SimulateCapture, Packets: s.of[0].packets, Services: s.services(),
		MTU: status.SimulateMTU{Bytes: s.mtu, TooBig: s.of[0].tooBig, Fragmented: s.of[0].fragmented,
			Largest: s.counts.largest},
	}
	v.Capture.File = s.file.name
	v.Packets.Uncounted = s.counts.uncounted
	drops := map[cause]*status.SimulateDrop{}
	for c, n := range s.of[0].drops {
		if n > 0 {
			drops[cause(c)] = &status.SimulateDrop{Reason: cause(c).String(), Packets: n}
		}
	}
	if q.Against != "" {
		v.Against = &status.SimulateComparison{Path: q.Against}
	}
	for _, k := range s.inOrder() {
		f := s.flows[k]
		s.addFlow(&v, k, f, drops)
		if v.Against != nil && f.opened {
			s.compare(v.Against, k, f)
		}
	}
	for _, c := range slices.Sorted(maps.Keys(drops)) {
		v.Drops = append(v.Drops, *drops[c])
	}
	slices.SortStableFunc(v.Drops, func(a, b status.SimulateDrop) int {
		return cmp.Or(cmp.Compare(b.Flows, a.Flows), cmp.Compare(b.Packets, a.Packets))
	})
	for _, p := range s.gateways[0].Problems {
		if !p.Warning {
			v.Problems = append(v.Problems, p)
		}
	}
	v.Findings, v.Notes = s.findings(&v), s.notes(&v)
	return v
}

// inOrder returns the flows in the order of their first packets.
func (s *simulation) inOrder() []flowKey {
	list := make([]flowKey, len(s.flows))
	for k, f := range s.flows {
		list[f.number-1] = k
	}
	return list
}

// addFlow adds a flow to the counts by verdict.
func (s *simulation) addFlow(v *status.SimulateView, k flowKey, f *flow, drops map[cause]*status.SimulateDrop) {
	r := &f.of[0]
	switch r.verdict() {
	case status.VerdictForward:
		v.Flows.Forwarded++
	case status.VerdictPass:
		v.Flows.ToKernel++
	case status.VerdictDrop:
		v.Flows.Dropped++
		d := drops[r.reason]
		if d.Flows++; d.Example == nil {
			d.Example = s.example(k, f, false)
		}
	default:
		if !f.opened {
			v.Flows.Earlier++
		}
	}
}

// compare adds a flow to the differences.
func (s *simulation) compare(c *status.SimulateComparison, k flowKey, f *flow) {
	now, was := &f.of[0], &f.of[1]
	change := (*status.SimulateChange)(nil)
	switch here, there := now.backend != 0, was.backend != 0; {
	case here && there && s.socket(0, now) == s.socket(1, was):
		c.Same++
	case here && there && !(s.byHash(0, now) && s.byHash(1, was)):
		c.Chance++
	case here && there:
		change = &c.Moved
	case there:
		change = &c.Lost
	case here:
		change = &c.Gained
	default:
		c.Same++
	}
	if change == nil {
		return
	}
	if change.Flows++; change.Example == nil {
		change.Example = s.example(k, f, true)
	}
}

// byHash reports whether the backend of a result follows from the flow and the table of backends.
func (s *simulation) byHash(n int, r *result) bool {
	svc := s.gateways[n].Snapshot.Service(s.of[n].backends[r.backend-1].service)
	return svc != nil && svc.Scheduler.ByHash()
}

// socket returns the backend of a result.
func (s *simulation) socket(n int, r *result) netip.AddrPort {
	return s.of[n].backends[r.backend-1].socket.AddrPort()
}

// example returns a flow with its results.
func (s *simulation) example(k flowKey, f *flow, both bool) *status.SimulateFlow {
	x := &status.SimulateFlow{Client: k.client.AddrPort(), VIP: k.frontend.AddrPort(),
		Protocol: status.ProtocolName(k.proto), Result: s.resultView(0, k, &f.of[0])}
	if both {
		was := s.resultView(1, k, &f.of[1])
		x.Against = &was
	}
	return x
}

func (s *simulation) resultView(n int, k flowKey, r *result) status.SimulateResult {
	v := status.SimulateResult{Verdict: r.verdict()}
	t := k.tuple()
	if f := s.gateways[n].Snapshot.Frontend(&t); f != nil {
		v.Service = f.Service.FullName()
	}
	switch v.Verdict {
	case status.VerdictForward:
		v.Backend = s.socket(n, r)
	case status.VerdictDrop:
		v.Reason = r.reason.String()
	}
	return v
}

// services returns the Services with flows.
func (s *simulation) services() (list []status.SimulateService) {
	g, a := s.gateways[0], &s.of[0]
	expected := a.expected(g.Snapshot)
	of := map[services.ServiceID]*status.SimulateService{}
	for _, b := range a.backends {
		svc := g.Snapshot.Service(b.service)
		if svc == nil {
			continue
		}
		v := of[b.service]
		if v == nil {
			v = &status.SimulateService{Service: svc.FullName(), Protocol: status.ProtocolName(svc.Proto),
				Scheduler: svc.Scheduler.String()}
			of[b.service] = v
		}
		v.Flows += b.flows
		x := status.SimulateBackend{Address: b.socket.AddrPort(), Flows: b.flows, Expected: expected[b.backendKey],
			PortsPeak: g.ports.peak(b.socket, svc.Proto), PortsLimit: g.limit(!b.socket.Is4())}
		v.Backends = append(v.Backends, x)
	}
	for _, id := range slices.Sorted(maps.Keys(of)) {
		v := of[id]
		for i := range v.Backends {
			b := &v.Backends[i]
			if v.Flows > 0 {
				b.Share, b.Expected = float64(b.Flows)/float64(v.Flows), b.Expected/float64(v.Flows)
			}
		}
		slices.SortFunc(v.Backends, func(a, b status.SimulateBackend) int { return a.Address.Compare(b.Address) })
		list = append(list, *v)
	}
	slices.SortFunc(list, func(a, b status.SimulateService) int {
		return cmp.Or(cmp.Compare(a.Service, b.Service), cmp.Compare(a.Protocol, b.Protocol))
	})
	return list
}

// expected returns the number of flows that each backend would have by its weight. It adds the
// backends without flows to a.
func (a *accounts) expected(s *services.Snapshot) map[backendKey]float64 {
	list := map[backendKey]float64{}
	for k, flows := range a.sets {
		weights := 0
		weight := func(i int) int {
			if k.set.Weights == nil {
				return 1
			}
			return int(k.set.Weights[i])
		}
		for i := range k.set.Backends {
			weights += weight(i)
		}
		for i, ref := range k.set.Backends {
			if b := s.Backend(ref); b != nil {
				key := backendKey{k.service, socketOf(b)}
				a.number(key)
				list[key] += float64(flows) * float64(weight(i)) / float64(max(weights, 1))
			}
		}
	}
	return list
}

// findings returns the reasons for a pipeline to stop. Compared with another gateway, only
// differences count.
func (s *simulation) findings(v *status.SimulateView) (list []string) {
	add := func(n uint64, name string) {
		if n > 0 {
			list = append(list, fmt.Sprintf("%s: %d", name, n))
		}
	}
	const exhausted = cause(reason.SNATPortsExhausted)
	now := &s.of[0]
	if c := v.Against; c != nil {
		was := &s.of[1]
		add(c.Moved.Flows, "flows that go to another backend")
		add(c.Lost.Flows, "flows that are no longer forwarded")
		add(more(now.drops[exhausted], was.drops[exhausted]), "more packets without a free source port")
		add(more(now.tooBig, was.tooBig), "more packets that exceed the MTU")
		return list
	}
	add(v.Flows.Dropped, "flows that are dropped")
	add(v.Flows.ToKernel, "flows that go to the kernel")
	add(now.drops[exhausted], "packets without a free source port")
	add(now.tooBig, "packets that exceed the MTU")
	return list
}

// more returns how much greater a is than b.
func more(a, b uint64) uint64 { return a - min(a, b) }

// notes returns the shortcomings of the capture and of the simulation.
func (s *simulation) notes(v *status.SimulateView) (list []string) {
	add := func(is bool, text string) {
		if is {
			list = append(list, text)
		}
	}
	add(s.file.cut, "the file ends within a packet: its writer was killed, or still writes")
	add(s.counts.cut > 0, fmt.Sprintf("the capture has only the beginning of %d packets: the rest counts as zeros",
		s.counts.cut))
	add(len(s.file.links) > 0, fmt.Sprintf("packets of %d link types other than Ethernet are left out",
		len(s.file.links)))
	add(v.Capture.Replies == 0, "the capture has no answers of backends: connections stay half-open, and end early")
	add(s.counts.uncounted > 0, fmt.Sprintf("there were more than %d flows, as many as the flow tables have: packets "+
		"of others are counted, but not their flows", s.maxFlows))
	add(v.Against != nil && v.Against.Chance > 0, "a scheduler that does not choose by hash sends flows elsewhere in "+
		"each run: such flows are not compared")
	if why := s.gateways[0].NoSeed; why != nil {
		text := "the gateway has another seed of backend selection, so its flows have other backends; shares are alike"
		if !errors.Is(why, seed.ErrNone) {
			text += ": " + why.Error()
		}
		list = append(list, text)
	}
	return list
}

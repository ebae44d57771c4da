// Package statustest is a gateway that does not forward. It has fixed views for the tests of
// everything that shows a gateway (status API, metrics, commands), so that all of them use the same
// one.
package statustest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"sluice.dev/sluice/serve/status"
)

// Gateway implements status.Gateway. Its fields may be replaced before it is used.
type Gateway struct {
	ServiceList []status.ServiceView
	BackendList []status.BackendView
	TimesView   status.AllTimesView
	StatsView   status.StatsView
	PortsList   []status.SourcePortsView
	StatusView  status.StatusView
	EventList   []status.EventView
	DropsView   status.DropsView
	// Applied is closed when WaitApplied may return.
	Applied chan struct{}
	// Capture writes CaptureBytes, and ends with its context, or at once for the reason
	// CaptureEnds.
	CaptureBytes []byte
	CaptureEnds  string
	// Err is returned by the methods that can fail.
	Err error

	mu      sync.Mutex
	flows   []status.FlowView
	drained map[string]bool
	denials []status.DenialView
	pages   int
}

// New returns the sample gateway with two workers, two services and four flows.
func New() *Gateway {
	g := &Gateway{
		ServiceList: sampleServices(), BackendList: sampleBackends(),
		TimesView: sampleTimes(), StatsView: sampleStats(), StatusView: sampleStatus(), PortsList: samplePorts(),
		Applied: make(chan struct{}), flows: sampleFlows(), drained: map[string]bool{},
		denials: sampleDenials(), EventList: sampleEvents(), DropsView: sampleDrops(),
	}
	close(g.Applied)
	return g
}

// Start is when the sample daemon started.
func Start() time.Time { return time.Date(2026, 3, 1, 8, 0, 0, 0, time.UTC) }

// Many replaces the flows by n of one client.
func (g *Gateway) Many(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	one := sampleFlows()[0]
	g.flows = make([]status.FlowView, n)
	for i := range g.flows {
		one.Client = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 40000)
		g.flows[i] = one
	}
}

// EachFlow lets change edit each flow.
func (g *Gateway) EachFlow(change func(i int, v *status.FlowView)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := range g.flows {
		change(i, &g.flows[i])
	}
}

// Services implements status.Gateway.
func (g *Gateway) Services() []status.ServiceView { return g.ServiceList }

// Backends implements status.Gateway.
func (g *Gateway) Backends() []status.BackendView {
	g.mu.Lock()
	defer g.mu.Unlock()
	list := append([]status.BackendView(nil), g.BackendList...)
	for i := range list {
		if g.drained[list[i].Address.String()] {
			list[i].State = "drained"
		}
	}
	return list
}

// Times implements status.Gateway.
func (g *Gateway) Times() status.AllTimesView { return g.TimesView }

// ServiceTimes implements status.Gateway.
func (g *Gateway) ServiceTimes() []status.ServiceTimesView { return g.TimesView.Services }

// Flows implements status.Gateway. The cursor is a position in the list; every third page is empty,
// like a sparse part of a table.
func (g *Gateway) Flows(
	f *status.FlowFilter, cursor uint64, limit int, page []status.FlowView,
) ([]status.FlowView, uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.pages++; g.pages%3 == 2 && cursor != 0 {
		return page, cursor
	}
	for ; cursor < uint64(len(g.flows)); cursor++ {
		if len(page) == limit {
			return page, cursor
		}
		if v := &g.flows[cursor]; f.Match(v) {
			page = append(page, *v)
		}
	}
	return page, 0
}

// DeleteFlows implements status.Gateway.
func (g *Gateway) DeleteFlows(_ context.Context, f *status.FlowFilter) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.Err != nil {
		return 0, g.Err
	}
	var kept []status.FlowView
	for i := range g.flows {
		if !f.Match(&g.flows[i]) {
			kept = append(kept, g.flows[i])
		}
	}
	n := len(g.flows) - len(kept)
	g.flows = kept
	return n, nil
}

// Drain implements status.Gateway.
func (g *Gateway) Drain(e status.Endpoint, on bool) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := 0
	for _, b := range g.BackendList {
		if e.Match(b.Address) {
			g.drained[b.Address.String()] = on
			n++
		}
	}
	return n, g.Err
}

// Deny implements status.Gateway.
func (g *Gateway) Deny(_ context.Context, p netip.Prefix, after time.Duration) (status.DeniedView, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	v := status.DenialView{Client: p, From: status.DeniedByOperator}
	if after > 0 {
		v.Until = Start().Add(after)
	}
	g.denials = append(g.denials, v)
	return status.DeniedView{DenialView: v, Flows: 2, Notes: []string{"a note"}}, g.Err
}

func sampleDenials() []status.DenialView {
	return []status.DenialView{
		{Client: netip.MustParsePrefix("198.51.100.7/32"), Until: Start().Add(time.Hour), From: status.DeniedByOperator,
			Packets: 12345},
		{Client: netip.MustParsePrefix("203.0.113.0/24"), From: status.DeniedByConfiguration},
		{Client: netip.MustParsePrefix("2001:db8:66::/48"), From: status.DeniedByOperator, Packets: 1},
	}
}

// Allow implements status.Gateway.
func (g *Gateway) Allow(_ context.Context, p netip.Prefix) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	before := len(g.denials)
	g.denials = slices.DeleteFunc(g.denials, func(v status.DenialView) bool { return v.Client == p })
	if len(g.denials) == before {
		return errors.New("there is no such entry")
	}
	return g.Err
}

// Denials implements status.Gateway.
func (g *Gateway) Denials() ([]status.DenialView, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.denials), g.Err
}

// Drops implements status.Gateway.
func (g *Gateway) Drops(since time.Time) status.DropsView {
	g.mu.Lock()
	defer g.mu.Unlock()
	v := g.DropsView
	v.Drops = slices.DeleteFunc(slices.Clone(v.Drops), func(d status.DropView) bool { return d.Last.Before(since) })
	return v
}

func sampleDrops() status.DropsView {
	last := Start().AddDate(100, 0, 0) // within any time that a test asks for
	client := netip.MustParseAddr
	return status.DropsView{
		Since: Start(), Until: Start().Add(time.Minute), KernelProgram: map[string]uint64{"denied_dropped": 12346},
		Drops: []status.DropView{
			{Reason: "source_range", Service: "default/web:http", Packets: 12000, Samples: 6000, Last: last,
				Clients: []status.DropClient{{Client: client("198.51.100.7"), Packets: 9000},
					{Client: client("2001:db8:c::7"), Packets: 1800}, {Client: client("198.51.100.8"), Packets: 600}},
				MoreClients: 12},
			{Reason: "no_flow", Packets: 9, Samples: 9, Last: last,
				Clients: []status.DropClient{{Client: client("198.51.100.7"), Packets: 9}}},
			{Reason: "frame_truncated", Packets: 1, Samples: 1, Last: last,
				Clients: []status.DropClient{{Packets: 1}}},
		},
	}
}

// Events implements status.Gateway.
func (g *Gateway) Events(since time.Time) []status.EventView {
	g.mu.Lock()
	defer g.mu.Unlock()
	list := []status.EventView{}
	for _, e := range g.EventList {
		if e.Time.After(since) {
			list = append(list, e)
		}
	}
	return list
}

// Add adds an event.
func (g *Gateway) Add(e status.EventView) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.EventList = append(g.EventList, e)
}

func sampleEvents() []status.EventView {
	return []status.EventView{
		{Time: Start(), Level: "INFO", Message: "forwarding",
			Details: map[string]string{"workers": "2", "took": "12ms"}},
		{Time: Start().Add(time.Minute), Level: "WARN", Message: "interface lost",
			Details: map[string]string{"interface": "eth0", "why": "its link is down"}},
		{Time: Start().Add(time.Hour), Level: "INFO", Message: "no VIP is impaired any more"},
	}
}

// Explain implements status.Gateway: everything is forwarded to the first backend.
func (g *Gateway) Explain(q *status.ExplainQuery) (status.ExplainView, error) {
	backend := g.BackendList[0].Address
	return status.ExplainView{
		From: q.From, To: q.To, Protocol: q.Protocol, Opens: !q.Established, AnyPort: q.AnyPort,
		Verdict: status.VerdictForward, Service: "shop/web:http", Backend: backend, Generation: 7,
		Steps:     []status.ExplainStep{{Name: "endpoints", Text: "2"}, {Name: "verdict", Text: "forward"}},
		Endpoints: []status.ExplainEndpoint{{Address: backend, In: true, Why: "ready", Weight: 1}},
	}, g.Err
}

// Capture implements status.Gateway.
func (g *Gateway) Capture(
	ctx context.Context, _ *status.CaptureQuery, out status.CaptureWriter,
) (v status.CaptureView, err error) {
	if g.Err != nil {
		return v, g.Err
	}
	if _, err := out.Write(g.CaptureBytes); err != nil {
		return v, err
	}
	if err := out.Flush(); err != nil {
		return v, err
	}
	if g.CaptureEnds == "" {
		<-ctx.Done()
	}
	return status.CaptureView{Records: 2, OverRate: 3, Lost: 1, Ended: g.CaptureEnds}, nil
}

// Stats implements status.Gateway.
func (g *Gateway) Stats() status.StatsView { return g.StatsView }

// SourcePorts implements status.Gateway.
func (g *Gateway) SourcePorts() []status.SourcePortsView { return g.PortsList }

// Status implements status.Gateway.
func (g *Gateway) Status() status.StatusView { return g.StatusView }

// WaitApplied implements status.Gateway.
func (g *Gateway) WaitApplied(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return fmt.Errorf("not applied: %w", ctx.Err())
	case <-g.Applied:
		return g.Err
	}
}

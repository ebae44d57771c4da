package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"sluice.dev/sluice/announce/view"
	"sluice.dev/sluice/gateway/cli/top"
	"sluice.dev/sluice/gateway/clients"
	"sluice.dev/sluice/internal/table"
	"sluice.dev/sluice/serve/status"
)

// topScreens lists the screens of top. Each asks the daemon for its list alone.
func topScreens(client *status.Client, announcer string, now func() time.Time) []top.Screen {
	return []top.Screen{
		{Name: "Node", Open: func(string) top.Feed {
			return top.NewFeed(factTable(), now, (&nodeFacts{client: client, now: now}).ask)
		}},
		{Name: "Services", Sort: "bytes-out", Open: func(string) top.Feed {
			return top.NewFeed(serviceTable(), now, func(ctx context.Context) (top.Answer[status.ServiceView], error) {
				list, err := client.Services(ctx)
				return top.Answer[status.ServiceView]{Rows: list}, err
			})
		}, Enter: func(key string) (string, string) {
			name, _, _ := strings.Cut(key, ":")
			return "Backends", name
		}},
		{Name: "Backends", Sort: "conns", Open: func(scope string) top.Feed {
			return top.NewFeed(backendTable(), now, func(ctx context.Context) (top.Answer[status.BackendView], error) {
				list, err := client.Backends(ctx)
				list = slices.DeleteFunc(list, func(v status.BackendView) bool {
					return scope != "" && !selectsService(scope, v.Namespace, v.Service, v.PortName)
				})
				return top.Answer[status.BackendView]{Rows: list}, err
			})
		}, Enter: func(key string) (string, string) {
			_, address, _ := strings.Cut(key, " ")
			return "Flows", "backend " + address
		}},
		{Name: "Clients", Sort: "bytes/s", Open: func(string) top.Feed {
			sums := clients.New(client, now)
			return top.NewFeed(clientTable(), now, func(ctx context.Context) (a top.Answer[clients.Client], err error) {
				a.Rows, a.Note, err = sums.Ask(ctx)
				return a, err
			})
		}, Enter: func(key string) (string, string) { return "Flows", "client " + key }},
		{Name: "Drops", Sort: "packets", Open: func(string) top.Feed {
			return top.NewFeed(sampledTable(defaultSince), now, func(ctx context.Context) (top.Answer[status.DropView],
				error) {
				return recentDrops(ctx, client)
			})
		}},
		{Name: "Workers", Open: func(string) top.Feed {
			return top.NewFeed(liveWorkerTable(), now,
				func(ctx context.Context) (top.Answer[status.WorkerView], error) {
					v, err := client.Stats(ctx)
					return top.Answer[status.WorkerView]{Rows: v.Workers}, err
				})
		}},
		{Name: "Routes", Open: func(string) top.Feed {
			return top.NewFeed(routeTable(), now, func(ctx context.Context) (top.Answer[route], error) {
				return routes(ctx, announcer)
			})
		}},
		{Name: "Flows", Hidden: true, Sort: "bytes", Open: func(scope string) top.Feed {
			t := flowTable(now)
			t.Key = func(v *status.FlowView) string { return v.Protocol + v.Client.String() + v.VIP.String() }
			return top.NewFeed(t, now, func(ctx context.Context) (top.Answer[status.FlowView], error) {
				return someFlows(ctx, client, scope)
			})
		}},
	}
}

// liveWorkerTable is workerTable with the load between two answers.
func liveWorkerTable() *table.Table[status.WorkerView] {
	type view = status.WorkerView
	t := workerTable()
	c := t.Column("load")
	c.Text, c.OfRates = func(v *view) string { return percentText(load(v)) }, true
	t.Columns = append(t.Columns,
		table.Column[view]{Name: "BUSY-NS", Show: table.Wide, Counter: func(v *view) *uint64 { return &v.BusyNanos }},
		table.Column[view]{Name: "IDLE-NS", Show: table.Wide, Counter: func(v *view) *uint64 { return &v.IdleNanos }})
	return t
}

// load returns the share of its time that a worker spends on packets, from the rates of its
// counters.
func load(rates *status.WorkerView) float64 {
	return min(1, float64(rates.BusyNanos)/float64(time.Second))
}

// mostFlows is the number of flows that top shows.
const mostFlows = 1000

// someFlows lists flows of a client or a backend, as scope has it.
func someFlows(ctx context.Context, client *status.Client, scope string) (a top.Answer[status.FlowView], err error) {
	kind, address, _ := strings.Cut(scope, " ")
	e, err := status.ParseEndpoint(address)
	if err != nil {
		return a, err
	}
	f := status.FlowFilter{Client: e}
	if kind == "backend" {
		f = status.FlowFilter{Backend: e}
	}
	err = client.Flows(ctx, f, func(v *status.FlowView) error {
		if len(a.Rows) == mostFlows {
			return errEnough
		}
		a.Rows = append(a.Rows, *v)
		return nil
	})
	if errors.Is(err, errEnough) {
		a.Note, err = fmt.Sprintf("the first %d", mostFlows), nil
	}
	return a, err
}

// route is a VIP at a peer or on an interface, or a peer.
type route struct {
	what, state, to, services, why string
	bad                            bool
}

func routeTable() *table.Table[route] {
	text := func(name string, show table.Show, of func(*route) string) table.Column[route] {
		return table.Column[route]{Name: name, Show: show, Text: of}
	}
	return &table.Table[route]{
		Key:    func(v *route) string { return v.what + " " + v.to },
		Urgent: func(v *route) bool { return v.bad },
		Columns: []table.Column[route]{
			text("WHAT", table.Always, func(v *route) string { return v.what }),
			text("STATE", table.Always, func(v *route) string { return v.state }),
			text("TO", table.Always, func(v *route) string { return v.to }),
			text("SERVICES", table.Wide, func(v *route) string { return v.services }),
			text("WHY", table.Always, func(v *route) string { return v.why }),
		},
	}
}

// routes lists the announcer's peers and VIPs.
func routes(ctx context.Context, socket string) (a top.Answer[route], err error) {
	v, err := view.Ask(ctx, socket)
	if err != nil {
		return a, err
	}
	for i := range v.Peers {
		p := &v.Peers[i]
		a.Rows = append(a.Rows, route{what: "peer " + p.Name, state: strings.ToLower(p.State), to: p.Address,
			why: p.Why, bad: p.Why != ""})
	}
	for i := range v.VIPs {
		for _, l := range v.VIPs[i].To {
			a.Rows = append(a.Rows, route{what: v.VIPs[i].Address.String(), state: string(l.State), to: l.To,
				services: strings.Join(v.VIPs[i].Services, ","), why: l.Why, bad: l.Why != ""})
		}
	}
	a.Note = cmp.Or(v.Waiting, v.Why)
	return a, nil
}

// fact is a line about the node.
type fact struct {
	name, value string
	bad         bool
}

func factTable() *table.Table[fact] {
	return &table.Table[fact]{
		Key:    func(v *fact) string { return v.name + v.value },
		Urgent: func(v *fact) bool { return v.bad },
		Columns: []table.Column[fact]{
			{Name: "WHAT", Text: func(v *fact) string { return v.name }},
			{Name: "NOW", Text: func(v *fact) string { return v.value }},
		},
	}
}

// nodeFacts reads the state of the node.
type nodeFacts struct {
	client *status.Client
	now    func() time.Time
	before status.StatsView
	at     time.Time
}

func (n *nodeFacts) ask(ctx context.Context) (a top.Answer[fact], err error) {
	st, err := n.client.Status(ctx, false)
	if err != nil {
		return a, err
	}
	stats, err := n.client.Stats(ctx)
	if err != nil {
		return a, err
	}
	now := n.now()
	add := func(name, value string, bad bool) { a.Rows = append(a.Rows, fact{name, value, bad}) }
	for _, p := range st.Problems {
		add("problem", problemText(&p), !p.Warning)
	}
	for _, c := range st.Conditions {
		if c.Level != "ok" {
			add(c.Name, c.Level+": "+c.Detail, true)
		}
	}
	if st.Config.Error != "" {
		add("configuration", "the present file is refused: "+st.Config.Error, true)
	}
	ready := yesNo(st.Ready)
	if len(st.NotReady) > 0 {
		ready += ": " + strings.Join(st.NotReady, "; ")
	}
	add("ready", ready, !st.Ready)
	add("applied", yesNo(st.Applied), !st.Applied)
	add("daemon", fmt.Sprintf("%s, pid %d, since %s", st.Version.Version, st.PID, stamp(st.StartedAt)), false)
	add("serving", fmt.Sprintf("%s, %s, %s", plural(st.Snapshot.Services, "service port"),
		plural(st.Snapshot.Frontends, "frontend"), plural(st.Snapshot.Backends, "backend")), false)
	for _, t := range stats.Flows {
		fill := ""
		if t.Capacity > 0 {
			fill = fmt.Sprintf(" (%.1f%%)", 100*float64(t.Used)/float64(t.Capacity))
		}
		add("flows "+t.Family, fmt.Sprintf("%d of %d%s, %d half open", t.Used, t.Capacity, fill, t.HalfOpen), false)
	}
	if !n.at.IsZero() {
		a.Rows = append(a.Rows, workerRates(n.before.Workers, stats.Workers, now.Sub(n.at))...)
	}
	for _, f := range st.Interfaces {
		up := "up"
		if !f.Up {
			up = "DOWN"
		}
		add("interface "+f.Name, fmt.Sprintf("%s, %s, %s", up, f.Mode, plural(len(f.Queues), "queue")), !f.Up)
	}
	if st.Group != nil {
		for _, m := range st.Group.Members {
			add("member "+m.Name, cmp.Or(m.Error, fmt.Sprintf("%d copies, lag %d", m.Copies, m.Lag)), m.Error != "")
		}
	}
	n.before, n.at = stats, now
	return a, nil
}

// workerRates sums what all workers did between two answers.
func workerRates(before, now []status.WorkerView, elapsed time.Duration) []fact {
	var sum status.WorkerView
	loads := 0.0
	rates := liveWorkerTable().Rates(before, now, elapsed)
	for i := range rates {
		w := &rates[i]
		sum.Rx, sum.Tx, sum.Dropped = sum.Rx+w.Rx, sum.Tx+w.Tx, sum.Dropped+w.Dropped
		sum.FlowsCreated += w.FlowsCreated
		loads += load(w)
	}
	number := func(n uint64) string { return strconv.FormatUint(n, 10) + "/s" }
	return []fact{
		{"packets in", number(sum.Rx), false}, {"packets out", number(sum.Tx), false},
		{"new flows", number(sum.FlowsCreated), false}, {"drops", number(sum.Dropped), false},
		{"workers' load", percentText(loads / float64(max(1, len(rates)))), false},
	}
}

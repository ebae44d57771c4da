package explain

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"github.com/gaissmai/bart"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/fastpath/decide"
	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/gateway/offline"
	"sluice.dev/sluice/gateway/steering"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/xdpprog"
)

// Offline answers from manifests and a configuration, for a gateway that has just started with them
// and has no flows, with the same compiler and the same decisions. Empty names have the meaning
// that offline.Input has for them.
func Offline(
	ctx context.Context, configFile, manifests, node string, q *status.ExplainQuery,
) (v status.ExplainView, err error) {
	g, err := offline.Load(ctx, offline.Input{Config: configFile, Manifests: manifests, Node: node})
	if err != nil {
		return v, err
	}
	x, err := New(Config{Hops: onLinkTable()})
	if err != nil {
		return v, err
	}
	defer x.Close()
	t := q.Tuple()
	r, ports := steering.Rules(&g.Compiler.Steer().Open), g.Compiler.Config().SNATPorts
	a := answer{
		query: q, snapshot: g.Snapshot, tuple: t, offline: g,
		match: r.Steers(&t, xdpprog.Settings{
			SNATFirst: ports.First, SNATCount: ports.Count, Unserved: g.Config.UnservedVIPPort != config.UnservedPass,
		}),
	}
	for _, p := range g.Config.Deny {
		if p.Contains(t.Src.Netip()) && (a.denied == nil || p.Bits() > a.denied.Client.Bits()) {
			a.denied = &status.DenialView{Client: p, From: status.DeniedByConfiguration}
		}
	}
	if a.x, err = x.ask(g.Snapshot, t, !q.Established, 0); err != nil {
		return v, err
	}
	v = a.view(g.Problems)
	v.Unread = g.Unread
	return v, nil
}

// onLinkTable returns a table in which every address is on a link, and no neighbour is known.
func onLinkTable() *nexthop.Table {
	var routes bart.Table[nexthop.Route]
	for _, p := range [...]string{"0.0.0.0/0", "::/0"} {
		routes.Insert(netip.MustParsePrefix(p), nexthop.Route{Kind: nexthop.OnLink})
	}
	t := nexthop.NewTable()
	t.Publish(&nexthop.View{Generation: 1, Routes: &routes})
	return t
}

// markUnknown marks a step that depends on the state of a gateway.
func (a *answer) markUnknown(s *status.ExplainStep) {
	x := &a.x
	switch {
	case s.Name == "flow":
		s.Text, s.Unknown = "assuming that no flow has it", true
	case s.Name == "affinity" && x.Frontend.Service.Pins():
		s.Text, s.Unknown = fmt.Sprintf("%d s, assuming that the client is not pinned",
			x.Frontend.Service.AffinitySeconds),
			true
	case s.Name == "limits":
		s.Unknown = true
	case s.Name == "leaves as" && x.Source != decide.SourceClient && !a.offline.Sources[family4or6(x.Tuple.V6)]:
		s.Text, s.Unknown = fmt.Sprintf("the source address of its route, a port to be chosen -> %v",
			addrPort(x.Out.Dst, x.Out.DstPort)), true
	case s.Name == "next hop":
		s.Text, s.Unknown = "assuming that there is a route", true
	case s.Name == "scheduler" && x.Scheduler.ByLoad() && !x.PinInSet:
		s.Text, _, _ = strings.Cut(s.Text, ";")
		s.Text += ", assuming that no backend has connections"
	case s.Name == "scheduler" && a.offline.NoSeed != nil && !x.PinInSet && x.Scheduler.ByHash():
		s.Text, s.Unknown = s.Text+" with an unknown seed", true
	case s.Name == "backend" && a.offline.NoSeed != nil && !x.PinInSet && x.Scheduler.ByHash():
		s.Unknown = true
	}
}

func addrPort(a header.Addr, port uint16) netip.AddrPort { return netip.AddrPortFrom(a.Netip(), port) }

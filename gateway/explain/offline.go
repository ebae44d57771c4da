package explain

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gaissmai/bart"

	"sluice.dev/sluice/allocate/assign"
	"sluice.dev/sluice/config"
	"sluice.dev/sluice/control/compiler"
	"sluice.dev/sluice/control/files"
	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/control/tracker"
	"sluice.dev/sluice/fastpath/decide"
	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/gateway/nodeconfig"
	"sluice.dev/sluice/gateway/seed"
	"sluice.dev/sluice/gateway/steering"
	"sluice.dev/sluice/host/neigh"
	"sluice.dev/sluice/internal/wording"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/xdpprog"
)

// readTimeout bounds the reading of manifests, which takes some seconds for 10,000 Services.
const readTimeout = time.Minute

// offline has the state of an answer without a gateway.
type offline struct {
	sources [2]bool // by family: the configuration names the source address of packets
	// noSeed is why the gateway's seed is unknown; nil if it is known.
	noSeed error
}

// Offline answers from manifests and a configuration, for a gateway that has just started with them
// and has no flows, with the same compiler and the same decisions. If configFile is empty, it uses
// the default configuration; if manifests is empty, the configuration's directory; if node is
// empty, the configuration's name. Of the node's addresses it knows those in the Node object, if
// manifests have it.
func Offline(
	ctx context.Context, configFile, manifests, node string, q *status.ExplainQuery,
) (v status.ExplainView, err error) {
	c := config.Default()
	if configFile != "" {
		if c, err = config.LoadAnyones(configFile); err != nil {
			return v, err
		}
	}
	if manifests == "" {
		manifests = c.Manifests.Directory
	}
	if manifests == "" {
		return v, errors.New("the configuration has no manifests.directory, and only a gateway reads the API " +
			"server: give a directory with --manifests, or leave out --config to ask the gateway")
	}
	named := node
	if node != "" {
		c.NodeName = node
	}
	if node, err = c.Node(); err != nil {
		return v, err
	}
	tracker := tracker.New()
	if err := readOnce(ctx, c, manifests, tracker); err != nil {
		return v, err
	}
	var off offline
	cc := off.compilerConfig(c, configFile, node, tracker.Node(node))
	compiler := compiler.New(cc)
	changes := tracker.Changes()
	snapshot, found, _ := compiler.Compile(changes)
	all := tracker.Locate(found)
	unread := status.ProblemViews(slices.DeleteFunc(slices.Clone(all), readable))
	if len(changes.Services) == 0 && len(unread) == 0 {
		return v, errNoService(manifests)
	}
	if err := checkNode(named, manifests, changes); err != nil {
		return v, err
	}
	x, err := New(Config{Hops: onLinkTable()})
	if err != nil {
		return v, err
	}
	defer x.Close()
	t := q.Tuple()
	r := steering.Rules(&compiler.Steer().Open)
	a := answer{
		query: q, snapshot: snapshot, tuple: t, offline: &off,
		match: r.Steers(&t, xdpprog.Settings{
			SNATFirst: cc.SNATPorts.First, SNATCount: cc.SNATPorts.Count,
			Unserved: c.UnservedVIPPort != config.UnservedPass,
		}),
	}
	for _, p := range c.Deny {
		if p.Contains(t.Src.Netip()) && (a.denied == nil || p.Bits() > a.denied.Client.Bits()) {
			a.denied = &status.DenialView{Client: p, From: status.DeniedByConfiguration}
		}
	}
	if a.x, err = x.ask(snapshot, t, !q.Established, 0); err != nil {
		return v, err
	}
	v = a.view(status.ProblemViews(all))
	v.Unread = unread
	return v, nil
}

// errNoService returns the error for a directory without a Service, for which every answer would be
// that the kernel gets the packet.
func errNoService(dir string) error {
	return fmt.Errorf("there is no Service in %s: put manifests of Services and EndpointSlices into files there that "+
		"end in .yaml, .yml or .json. From a cluster: kubectl get services,endpointslices,nodes -A -o yaml > "+
		"%s", dir, filepath.Join(dir, "cluster.yaml"))
}

// checkNode returns an error if the caller gave a node, and the manifests have Nodes, but neither
// that Node nor an endpoint on it: the answer would be for a node without labels, addresses and
// endpoints. Without Nodes any name may be right.
func checkNode(named, dir string, ch *objects.Changes) error {
	if named == "" || len(ch.Nodes) == 0 {
		return nil
	}
	var names []string
	for i := range ch.Nodes {
		if ch.Nodes[i].ID.Name == named {
			return nil
		}
		names = append(names, ch.Nodes[i].ID.Name)
	}
	for i := range ch.Slices {
		for j := range ch.Slices[i].Now.Endpoints {
			if ch.Slices[i].Now.Node(&ch.Slices[i].Now.Endpoints[j]) == named {
				return nil
			}
		}
	}
	return fmt.Errorf("--node %s: %s has no such Node%s", named, dir, wording.Suggest(named, names))
}

// readable reports whether the object of a problem could be read: the problem is neither about a
// whole file or document, nor about an object that every API server would reject.
func readable(p objects.Problem) bool {
	return p.Severity == objects.Warning || p.Object != (objects.ObjectID{}) && p.Why() != objects.ReasonInvalidObject
}

// readOnce reads a directory of manifests as the daemon does.
func readOnce(ctx context.Context, c *config.Configuration, dir string, tracker *tracker.Tracker) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	log := slog.New(slog.DiscardHandler)
	addresses := assign.New(assign.Config{Log: log, StateDir: c.StateDir}) // owns no addresses, and so writes no file
	addresses.SetPools(c.Pools())
	w := files.New(files.Config{Log: log, Dir: dir, Tracker: tracker, Anyones: true, Addresses: addresses})
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	err := w.Sync(ctx)
	cancel()
	<-done
	if err != nil {
		return fmt.Errorf("read manifests: %w", err)
	}
	return nil
}

// unknownSources stand for the source addresses that routes would choose, by family, if no Node
// object has any: the dummy address of RFC 7600 section 4.8, and an address of the discard prefix
// of RFC 6666.
var unknownSources = [...]netip.Addr{netip.MustParseAddr("192.0.0.8"), netip.MustParseAddr("100::8")}

// compilerConfig returns the daemon's configuration of the compiler, with the addresses of the Node
// object.
func (off *offline) compilerConfig(
	c *config.Configuration, file, node string, info objects.NodeInfo,
) compiler.Config {
	var addresses []neigh.Address
	for _, a := range info.Addresses {
		addresses = append(addresses, neigh.Address{Prefix: netip.PrefixFrom(a, a.BitLen()), Global: true,
			Usable: true})
	}
	for f := range off.sources {
		off.sources[f] = slices.ContainsFunc(c.SNAT.Addresses, func(a netip.Addr) bool { return a.Is6() == (f == 1) })
	}
	var routed []netip.Addr
	for f, unknown := range unknownSources {
		at := slices.IndexFunc(info.Addresses, func(a netip.Addr) bool { return a.Is6() == (f == 1) })
		if at >= 0 {
			unknown = info.Addresses[at]
		}
		routed = append(routed, unknown)
	}
	s, err := seed.Seed{}, seed.ErrNone
	if file != "" {
		s, err = seed.Find(c)
	}
	off.noSeed = err
	cc := nodeconfig.Compiler(c, node, s.Key, addresses, routed, info)
	if i, found := c.Group.Find(node); found {
		for _, a := range slices.Backward(c.Group.Members[i].Sources) { // the first of each family is used first
			if a.Is4() {
				cc.Group4 = header.AddrFrom(a)
			} else {
				cc.Group6 = header.AddrFrom(a)
			}
		}
	}
	return cc
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

// markUnknown marks the steps that depend on the state of a gateway.
func (off *offline) markUnknown(x *decide.Explanation, s *status.ExplainStep) {
	switch {
	case s.Name == "flow":
		s.Text, s.Unknown = "assuming that no flow has it", true
	case s.Name == "affinity" && x.Frontend.Service.AffinitySeconds != 0:
		s.Text, s.Unknown = fmt.Sprintf("%d s, assuming that the client is not pinned",
			x.Frontend.Service.AffinitySeconds),
			true
	case s.Name == "limits":
		s.Unknown = true
	case s.Name == "leaves as" && x.Source != decide.SourceClient && !off.sources[family4or6(x.Tuple.V6)]:
		s.Text, s.Unknown = fmt.Sprintf("the source address of its route, a port to be chosen -> %v",
			addrPort(x.Out.Dst, x.Out.DstPort)), true
	case s.Name == "next hop":
		s.Text, s.Unknown = "assuming that there is a route", true
	case s.Name == "scheduler" && x.Scheduler.ByLoad() && !x.PinInSet:
		s.Text, _, _ = strings.Cut(s.Text, ";")
		s.Text += ", assuming that no backend has connections"
	case s.Name == "scheduler" && off.noSeed != nil && !x.PinInSet && x.Scheduler.ByHash():
		s.Text, s.Unknown = s.Text+" with an unknown seed", true
	case s.Name == "backend" && off.noSeed != nil && !x.PinInSet && x.Scheduler.ByHash():
		s.Unknown = true
	}
}

func addrPort(a header.Addr, port uint16) netip.AddrPort { return netip.AddrPortFrom(a.Netip(), port) }

// Package offline compiles manifests and a configuration to the snapshot that a gateway would
// publish, without a gateway:
//
//	configuration ─┐
//	manifests ─────┴─► tracker ─► compiler ─► services.Snapshot
//
// It uses the daemon's own source and compiler. It answers for a gateway that has just started. It
// knows only the node's addresses that are in a Node object of the manifests.
package offline

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"sluice.dev/sluice/allocate/assign"
	"sluice.dev/sluice/config"
	"sluice.dev/sluice/control/compiler"
	"sluice.dev/sluice/control/files"
	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/control/tracker"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/gateway/nodeconfig"
	"sluice.dev/sluice/gateway/seed"
	"sluice.dev/sluice/host/neigh"
	"sluice.dev/sluice/internal/wording"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/serve/status"
)

// readTimeout bounds the reading of manifests, which takes some seconds for 10,000 Services.
const readTimeout = time.Minute

// Input names the files to read.
type Input struct {
	Config    string // file of the configuration; "": the default values
	Manifests string // directory; "": the configuration's manifests.directory
	Node      string // name of the node; "": the configuration's
}

// Gateway is the result of Load.
type Gateway struct {
	Config   *config.Configuration
	Compiler *compiler.Compiler
	Snapshot *services.Snapshot
	Problems []status.ProblemView // of all objects
	Unread   []status.ProblemView // about manifests that cannot be read, which are left out
	// Sources: by family, the configuration names the source address of packets.
	Sources [2]bool
	// NoSeed is why the gateway's seed is unknown; nil if it is known.
	NoSeed error
}

// Load reads and compiles in.
func Load(ctx context.Context, in Input) (*Gateway, error) {
	g := &Gateway{Config: config.Default()}
	var err error
	if in.Config != "" {
		if g.Config, err = config.LoadAnyOwner(in.Config); err != nil {
			return nil, err
		}
	}
	dir := in.Manifests
	if dir == "" {
		dir = g.Config.Manifests.Directory
	}
	if dir == "" {
		return nil, errors.New("the configuration has no manifests.directory, and only a gateway reads the API " +
			"server: give a directory with --manifests, or leave out --config to ask the gateway")
	}
	if in.Node != "" {
		g.Config.NodeName = in.Node
	}
	node, err := g.Config.Node()
	if err != nil {
		return nil, err
	}
	tracker := tracker.New()
	if err := readOnce(ctx, g.Config, dir, tracker); err != nil {
		return nil, err
	}
	g.Compiler = compiler.New(g.compilerConfig(in.Config, node, tracker.Node(node)))
	changes := tracker.Changes()
	snapshot, found, _ := g.Compiler.Compile(changes)
	all := tracker.Locate(found)
	g.Snapshot, g.Problems = snapshot, status.ProblemViews(all)
	g.Unread = status.ProblemViews(slices.DeleteFunc(slices.Clone(all), readable))
	if len(changes.Services) == 0 && len(g.Unread) == 0 {
		return nil, errNoService(dir)
	}
	return g, checkNode(in.Node, dir, changes)
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
	w := files.New(files.Config{Log: log, Dir: dir, Tracker: tracker, AnyOwner: true, Addresses: addresses})
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
func (g *Gateway) compilerConfig(file, node string, info objects.NodeInfo) compiler.Config {
	c := g.Config
	var addresses []neigh.Address
	for _, a := range info.Addresses {
		addresses = append(addresses, neigh.Address{Prefix: netip.PrefixFrom(a, a.BitLen()), Global: true,
			Usable: true})
	}
	for f := range g.Sources {
		g.Sources[f] = slices.ContainsFunc(c.SNAT.Addresses, func(a netip.Addr) bool { return a.Is6() == (f == 1) })
	}
	var routed []netip.Addr
	for f, unknown := range unknownSources {
		at := slices.IndexFunc(info.Addresses, func(a netip.Addr) bool { return a.Is6() == (f == 1) })
		if at >= 0 {
			unknown = info.Addresses[at]
		} else { // it is the node's, so that it has the source ports of snat.ports
			addresses = append(addresses, neigh.Address{Link: -1, Prefix: netip.PrefixFrom(unknown, unknown.BitLen()),
				Global: true, Usable: true})
		}
		routed = append(routed, unknown)
	}
	s, err := seed.Seed{}, seed.ErrNone
	if file != "" {
		s, err = seed.Find(c)
	}
	g.NoSeed = err
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

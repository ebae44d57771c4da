// Package rules holds the tests about the tree itself.
package rules

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "sluice.dev/sluice/"

// rule forbids packages under From to depend, directly or not, on packages under
// any of Never. Why is printed when it is broken.
type rule struct {
	From  string
	Never []string
	Why   string
	// But are exceptions among what Never covers.
	But []string
}

var (
	contracts = []string{"fastpath/services", "fastpath/stats", "fastpath/nexthop"}
	// programs and outside are the rooms above the packet path: what allocates, locks and talks to
	// networks, and what tests and measures.
	programs = []string{"control", "config", "serve", "host", "gateway", "announce", "allocate", "cmd"}
	outside  = and(programs, "bench", "test")
	// hardware has the packages that know drivers and NICs.
	hardware = []string{"host/nic/frames", "host/nic/netdev", "host/nic/rss", "host/nic/irq"}
)

func and(list []string, more ...string) []string { return append(slices.Clone(list), more...) }

var rules = []rule{
	{From: "nat", Never: and(outside, "fastpath", "flowtable", "xdpprog", "golang.org/x/sys", "k8s.io", "github.com"),
		Why: "rewriting is a pure function of bytes; it builds and tests without Linux or root"},
	{From: "nat/reason", Never: and(outside, "fastpath", "flowtable", "nat", "xdpprog", "golang.org/x/sys",
		"k8s.io", "github.com"),
		Why: "the parser, the worker, the counters and what shows them use its names: it depends on nothing"},
	{From: "flowtable", Never: and(outside, "fastpath", "xdpprog", "k8s.io", "github.com"),
		Why: "the table is memory and arithmetic; it builds and tests without Linux or root"},
	{From: "flowtable/conn", Never: and(outside, "fastpath", "flowtable", "xdpprog", "golang.org/x/sys", "k8s.io",
		"github.com"),
		Why: "the next state follows from the state, the segment and the time; it needs no memory of the table"},
	{From: "fastpath", Never: and(outside, "xdpprog"),
		Why: "a worker must not be able to reach what allocates, locks and talks to the network"},
	{From: "fastpath/decide", Never: []string{"fastpath"}, But: contracts,
		Why: "a decision is made without the packet's frame and without links, so that explaining makes the same one"},
	{From: "fastpath/services", Never: and(outside, "flowtable", "xdpprog", "golang.org/x/sys", "k8s.io", "github.com"),
		But: []string{"github.com/gaissmai/bart"},
		Why: "a contract must not drag in either side"},
	{From: "fastpath/stats", Never: and(outside, "nat", "flowtable", "xdpprog", "golang.org/x/sys", "k8s.io",
		"github.com"), But: []string{"nat/reason"},
		Why: "a contract must not drag in either side"},
	{From: "xdpprog", Never: and(outside, "fastpath", "flowtable"),
		Why: "the kernel program knows packets and maps, not who decides what is in them"},
	{From: "internal", Never: and(outside, "fastpath", "flowtable", "nat", "xdpprog"),
		Why: "helpers of every program know none of them"},

	{From: "control", Never: []string{"fastpath", "config", "serve", "host", "gateway", "announce", "cmd", "xdpprog"},
		But: contracts,
		Why: "the control loop meets the workers in the contracts only, so that it can stall, panic or be tested " +
			"without them; and who configures, shows and runs it is above"},
	{From: "control/maglev", Never: and(outside, "fastpath", "k8s.io", "github.com", "golang.org/x/sys"),
		Why: "a pure function of names, weights, seed and size"},
	{From: "control/objects", Never: and(outside, "k8s.io/client-go"),
		Why: "what an object says follows from the object alone: its rules are read and tested without any other " +
			"part of the control loop"},
	{From: "control/tracker", Never: and(outside, "k8s.io/client-go"), But: []string{"control/objects"},
		Why: "sources write to the tracker and the control loop reads it; it must not know who they are"},
	{From: "control/steer", Never: and(outside, "k8s.io", "github.com/cilium"),
		Why: "the words between the control loop and the kernel program must not drag in either side"},
	{From: "control/compiler", Never: and(outside, "k8s.io/client-go"),
		But: []string{"control/objects", "control/steer", "control/maglev"},
		Why: "the table is a function of objects, configuration and drains; it must not see who reads them, " +
			"publishes it or steers by it"},
	{From: "control/endpointhealth", Never: and(outside, "flowtable", "xdpprog", "github.com/cilium"),
		But: []string{"control/objects", "control/compiler", "control/steer", "control/maglev"},
		Why: "which endpoints are up follows from counters, results and a clock that the caller gives: tests run " +
			"hours of it in a second"},
	{From: "control/probe", Never: and(outside, "fastpath/xsk", "flowtable", "xdpprog"),
		But: []string{"control/endpointhealth", "control/objects", "control/compiler", "control/steer",
			"control/maglev"},
		Why: "a check asks one address and knows nothing of what follows from the answer"},
	{From: "control/loop", Never: and(outside, "k8s.io/client-go", "github.com/cilium", "github.com/vishvananda"),
		But: []string{"control/objects", "control/tracker", "control/steer", "control/compiler", "control/maglev"},
		Why: "the loop meets sources, kernel program and flow table in interfaces only, so that a test can be all of " +
			"them, in a clock of its own"},
	{From: "control/files", Never: []string{"k8s.io/client-go", "control/compiler", "control/loop"},
		Why: "only control/k8s speaks to an API server, a gateway with manifests works without; and a source knows " +
			"the tracker alone"},
	{From: "control/k8s", Never: []string{"control/compiler", "control/loop"},
		Why: "a source writes to the tracker; what becomes of it is not its business"},

	{From: "config", Never: []string{"serve", "gateway", "cmd", "bench", "test", "control/loop", "control/compiler"},
		Why: "the file says how the gateway runs; it is read and checked without one"},
	{From: "config/metallb", Never: and(programs, "k8s.io/client-go", "golang.org/x/sys"),
		But: []string{"announce/kinds", "allocate/pools"},
		Why: "what becomes of MetalLB's objects is said by what reads them in announcer and controller, and by " +
			"nothing else"},
	{From: "host", Never: []string{"serve", "gateway", "announce", "cmd", "bench", "test", "control/loop",
		"control/compiler"}, But: []string{"announce/kinds"},
		Why: "what the machine is and has must not depend on what runs on it"},
	{From: "host/nic/devices", Never: []string{"gateway", "fastpath/xsk"},
		Why: "what a device is and which worker serves which queue follow from kernel and configuration alone"},
	{From: "host/placement", Never: and(programs, "fastpath", "xdpprog"), But: hardware,
		Why: "where workers run follows from the machine and from counters alone"},
	{From: "serve", Never: []string{"config", "host", "gateway", "announce", "allocate", "cmd", "bench", "test",
		"xdpprog"},
		Why: "it shows and answers what the caller passes"},

	{From: "gateway/handover", Never: []string{"gateway", "control", "fastpath", "flowtable", "xdpprog"},
		Why: "who owns what at which message must not depend on what is given, so that a test can be both sides"},
	{From: "gateway/workers", Never: []string{"gateway", "xdpprog"},
		Why: "a worker has links and does not know of sockets' lives; ports open and close while it runs"},
	{From: "gateway/ports", Never: []string{"gateway", "control/compiler", "control/loop"},
		Why: "a port sees workers and kernel program in interfaces of its own, so that a test can replace them"},
	{From: "gateway/steering", Never: []string{"gateway", "fastpath/xsk", "flowtable", "control/compiler",
		"control/loop"},
		Why: "it translates control's sets for xdpprog; it must see neither its callers nor interfaces"},
	{From: "gateway/flows", Never: []string{"gateway", "fastpath/xsk", "xdpprog", "control/loop"},
		But: []string{"gateway/group"},
		Why: "what is done with flows and pins needs no device, no socket and no kernel program"},
	{From: "gateway/flowlog", Never: []string{"gateway", "fastpath/xsk", "xdpprog", "control/loop", "control/compiler"},
		Why: "a line follows from an event and a snapshot, and the search from files alone"},
	{From: "gateway/checks", Never: []string{"gateway", "fastpath/xsk", "flowtable", "xdpprog", "control/loop"},
		Why: "it sees counters, a snapshot and a function to call, so that tests run it without a gateway"},
	{From: "gateway/nodeconfig", Never: []string{"gateway", "flowtable", "control/loop", "host/hostlink"},
		Why: "what the compiler knows of the node is a function of configuration, addresses and Node object"},
	{From: "gateway/explain", Never: []string{"gateway", "control/loop"},
		But: []string{"gateway/steering", "gateway/nodeconfig", "gateway/offline", "gateway/seed"},
		Why: "an answer is made of what the caller passes, so that one without a gateway comes from the same code"},
	{From: "gateway/offline", Never: []string{"gateway", "fastpath/xsk", "control/loop", "control/k8s"},
		But: []string{"gateway/nodeconfig", "gateway/seed"},
		Why: "what a gateway would serve follows from files alone"},
	{From: "gateway/simulate", Never: []string{"gateway", "control/loop", "control/k8s"},
		But: []string{"gateway/captures", "gateway/flows", "gateway/group", "gateway/nodeconfig",
			"gateway/offline", "gateway/seed"},
		Why: "a simulation needs a worker, files and no host: no socket, no device, no kernel program"},

	{From: "gateway/group", Never: and(outside, "fastpath", "flowtable", "xdpprog", "golang.org/x", "k8s.io",
		"github.com"), But: []string{"flowtable/conn"},
		Why: "which copies and ports a gateway keeps follows from messages and times that the caller gives: a model " +
			"explores every order of them"},

	{From: "gateway/replication", Never: and(outside, "fastpath", "xdpprog", "k8s.io", "github.com"),
		But: []string{"gateway/group", "fastpath/copies", "fastpath/stats"},
		Why: "it knows the flow table and the state machines of a group; streams and workers are the caller's"},

	{From: "gateway/peers", Never: and(outside, "fastpath", "flowtable", "xdpprog", "k8s.io"),
		But: []string{"gateway/group", "flowtable/conn"},
		Why: "it carries bytes between gateways, and knows of them the greatest length of a frame"},

	{From: "announce", Never: and(programs, "fastpath", "flowtable", "nat", "xdpprog", "bench", "test",
		"github.com/cilium"), But: []string{"allocate/pools"},
		Why: "the announcer is another process than the gateway, and knows of it what its pulse says"},
	{From: "announce/view", Never: and(programs, "fastpath", "flowtable", "nat", "xdpprog", "k8s.io", "github.com"),
		Why: "the gateway's commands print it: it must not bring the announcer into them"},
	{From: "announce/pulse", Never: and(programs, "fastpath", "flowtable", "nat", "xdpprog", "k8s.io", "github.com"),
		Why: "what a gateway says of itself is between two processes, and must drag neither into the other"},
	{From: "announce/kinds", Never: and(programs, "k8s.io/client-go", "github.com/osrg"),
		But: []string{"allocate/pools"},
		Why: "what an object says follows from the object alone"},
	{From: "announce/file", Never: []string{"k8s.io/client-go", "github.com/osrg"},
		Why: "a machine without Kubernetes needs no client of it; and a source knows no speaker"},
	{From: "announce/layer2/frame", Never: and(programs, "golang.org/x/sys", "k8s.io"),
		Why: "bytes of frames are read and made without a socket"},
	{From: "announce/layer2/hello", Never: and(programs, "golang.org/x/sys", "k8s.io"),
		Why: "bytes of messages are read and made without a socket"},
	{From: "announce/layer2/members", Never: and(programs, "golang.org/x/sys", "k8s.io"),
		But: []string{"announce/layer2/frame", "announce/layer2/hello"},
		Why: "who has a VIP follows from hellos and a clock that the caller gives: tests run hours of it in a second"},

	{From: "allocate", Never: and(programs, "fastpath", "flowtable", "nat", "xdpprog", "bench", "test",
		"github.com/cilium", "github.com/vishvananda"),
		Why: "who gives addresses is another process than who forwards, and runs on any node"},
	{From: "allocate/pools", Never: and(programs, "fastpath", "k8s.io/client-go", "golang.org/x/sys"),
		Why: "which address a Service has follows from objects alone; it must not see who reads and writes them"},
	{From: "allocate/assign", Never: and(programs, "fastpath", "flowtable", "nat", "k8s.io/client-go", "xdpprog"),
		But: []string{"allocate/pools"},
		Why: "the address of a Service in a manifest follows from manifests, pools and a file"},

	{From: "cmd/sluice", Never: []string{"allocate", "cmd/sluice-controller"},
		But: []string{"allocate/pools", "allocate/assign"},
		Why: "a gateway writes no status: what does is another process, with rights of its own"},
	{From: "cmd/sluice", Never: []string{"announce", "github.com/osrg"},
		But: []string{"announce/view", "announce/kinds", "announce/pulse"},
		Why: "a BGP speaker and what it needs are not in the process that has the node's network in its hands"},
	{From: "cmd/sluice", Never: []string{"k8s.io/client-go/kubernetes", "k8s.io/client-go/informers"},
		Why: "the clientset registers every API there is (21 MB of program), informers keep every object twice; " +
			"control/k8s needs three kinds"},
	{From: "cmd/sluice", Never: []string{"bench", "test", "github.com/asavie/xdp",
		"control/k8s/k8stest", "control/controltest"},
		Why: "the laboratory is not in the production binary"},
	{From: "cmd/sluice-controller", Never: and(programs, "fastpath", "flowtable", "nat", "xdpprog", "bench", "test",
		"github.com/cilium", "github.com/vishvananda", "github.com/asavie/xdp"),
		But: []string{"allocate", "config/metallb/metallbflag", "serve/metricsserver", "host/sdnotify"},
		Why: "the controller has rights to write, and a gateway has the network: neither is in the other's program"},
	{From: "cmd/sluice-announcer", Never: and(programs, "fastpath", "flowtable", "nat", "xdpprog", "bench", "test",
		"github.com/cilium", "github.com/asavie/xdp"),
		But: []string{"announce", "allocate/pools", "config/metallb/metallbflag", "serve/metricsserver",
			"host/sdnotify"},
		Why: "the announcer's sessions outlive the gateway's process, whose rights it does not have"},

	{From: "test/bed", Never: []string{"bench", "test"}, But: []string{"bench/results"},
		Why: "what tests stand on knows no test and no measurement; a generator writes its results as the others do"},
	{From: "test/bed/xdp", Never: and(outside, "fastpath", "xdpprog"),
		Why: "it puts any program on any interface, below everything that measures"},
	{From: "test/bed/garbage", Never: and(outside, "fastpath", "flowtable", "nat", "xdpprog"),
		But: []string{"nat/header/headertest"},
		Why: "it judges what they do, with code of its own"},
	{From: "bench/xdpnat", Never: and(outside, "fastpath", "flowtable", "nat", "xdpprog"),
		But: []string{"control/maglev"},
		Why: "a peer shares nothing with what it is compared with, but the algorithm of Maglev tables"},
	{From: "", Never: []string{"github.com/asavie/xdp"}, But: []string{"bench/asavie"},
		Why: "asavie/xdp is the measured baseline, not a way to forward"},
}

type pkg struct {
	ImportPath string
	Deps       []string
	Imports    []string
}

func TestImportDirections(t *testing.T) {
	packages := list(t)
	for _, r := range rules {
		for _, p := range packages {
			path := strings.TrimPrefix(p.ImportPath, module)
			if !under(path, r.From) || under(path, "bench/asavie") {
				continue
			}
			for _, dep := range p.Deps {
				dep = strings.TrimPrefix(dep, module)
				if underAny(dep, r.Never) && !underAny(dep, r.But) && !under(dep, r.From) {
					t.Errorf("%s depends on %s: %s", path, dep, r.Why)
				}
				if r.From == "" && underAny(dep, r.Never) {
					t.Errorf("%s depends on %s: %s", path, dep, r.Why)
				}
			}
		}
	}
}

// TestEveryRuleMatchesAPackage proves that the test above can fail: every rule's From exists.
func TestEveryRuleMatchesAPackage(t *testing.T) {
	packages := list(t)
	for _, r := range rules {
		found := false
		for _, p := range packages {
			found = found || under(strings.TrimPrefix(p.ImportPath, module), r.From)
		}
		if !found {
			t.Errorf("rule about %q matches no package", r.From)
		}
	}
}

func under(path, folder string) bool {
	return folder == "" || path == folder || strings.HasPrefix(path, folder+"/")
}

func underAny(path string, folders []string) bool {
	for _, f := range folders {
		if under(path, f) {
			return true
		}
	}
	return false
}

func list(t *testing.T) (packages []pkg) {
	t.Helper()
	out, err := exec.Command("go", "list", "-json=ImportPath,Deps,Imports", module+"...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return packages
		} else if err != nil {
			t.Fatal(err)
		}
		packages = append(packages, p)
	}
}

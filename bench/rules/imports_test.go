// Package rules holds the tests about the tree itself.
package rules

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
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

var contracts = []string{"fastpath/services", "fastpath/stats", "fastpath/nexthop"}

var rules = []rule{
	{From: "control", Never: []string{"fastpath"}, But: contracts,
		Why: "the control loop meets the workers in the contracts only, so that it can stall, panic or be tested " +
			"without them"},
	{From: "fastpath", Never: []string{"control", "cmd", "xdpprog", "bench"},
		Why: "a worker must not be able to reach what allocates, locks and talks to the network"},
	{From: "fastpath/decide", Never: []string{"fastpath"}, But: contracts,
		Why: "a decision is made without the packet's frame and without links, so that explaining makes the same one"},
	{From: "flowtable", Never: []string{"fastpath", "control", "xdpprog", "k8s.io", "github.com"},
		But: contracts,
		Why: "the table is memory and arithmetic; it builds and tests without Linux or root"},
	{From: "nat", Never: []string{"fastpath", "flowtable", "control", "xdpprog", "golang.org/x/sys", "k8s.io",
		"github.com"},
		But: []string{"fastpath/stats"},
		Why: "rewriting is a pure function of bytes; it builds and tests without Linux or root"},
	{From: "fastpath/services", Never: []string{"flowtable", "control", "xdpprog", "golang.org/x/sys", "k8s.io",
		"github.com"}, But: []string{"github.com/gaissmai/bart"},
		Why: "a contract must not drag in either side"},
	{From: "fastpath/stats", Never: []string{"nat", "flowtable", "control", "xdpprog", "golang.org/x/sys", "k8s.io",
		"github.com"},
		Why: "a contract must not drag in either side"},
	{From: "control/maglev", Never: []string{"fastpath", "control/files", "k8s.io", "github.com", "golang.org/x/sys"},
		Why: "a pure function of names, weights, seed and size"},
	{From: "control/objects", Never: []string{"control", "k8s.io/client-go"},
		Why: "what an object says follows from the object alone: its rules are read and tested without any other " +
			"part of the control loop"},
	{From: "control/tracker", Never: []string{"control", "k8s.io/client-go"}, But: []string{"control/objects"},
		Why: "sources write to the tracker and the control loop reads it; it must not know who they are"},
	{From: "control/steer", Never: []string{"control", "k8s.io", "github.com/cilium"},
		Why: "the words between the control loop and the kernel program must not drag in either side"},
	{From: "control/compiler", Never: []string{"control", "k8s.io/client-go"}, But: []string{"control/objects",
		"control/steer", "control/maglev"},
		Why: "the table is a function of objects, configuration and drains; it must not see who reads them, " +
			"publishes it or steers by it"},
	{From: "control/endpointhealth", Never: []string{"control", "flowtable", "xdpprog", "github.com/cilium"},
		But: []string{"control/objects", "control/compiler", "control/steer", "control/maglev"},
		Why: "which endpoints are up follows from counters, results and a clock that the caller gives: tests run " +
			"hours of it in a second"},
	{From: "control/probe", Never: []string{"control", "fastpath/xsk", "flowtable", "xdpprog"},
		But: []string{"control/endpointhealth", "control/objects", "control/compiler", "control/steer",
			"control/maglev"},
		Why: "a check asks one address and knows nothing of what follows from the answer"},
	{From: "control/pools", Never: []string{"fastpath", "control", "k8s.io/client-go", "golang.org/x/sys"},
		Why: "which address a Service has follows from objects alone; it must not see who reads and writes them"},
	{From: "control/assign", Never: []string{"fastpath", "flowtable", "nat", "control", "k8s.io/client-go", "xdpprog"},
		But: []string{"control/pools"},
		Why: "the address of a Service in a manifest follows from manifests, pools and a file"},
	{From: "control/allocate", Never: []string{"fastpath", "flowtable", "nat", "control", "xdpprog", "bench",
		"github.com/cilium", "github.com/vishvananda"}, But: []string{"control/pools"},
		Why: "who gives addresses is another process than who forwards, and runs on any node"},
	{From: "cmd/sluice-controller", Never: []string{"fastpath", "flowtable", "nat", "xdpprog", "bench", "cmd/sluice",
		"control", "github.com/cilium", "github.com/vishvananda", "github.com/asavie/xdp"},
		But: []string{"control/allocate", "control/pools"},
		Why: "the controller has rights to write, and a gateway has the network: neither is in the other's program"},
	{From: "cmd/sluice", Never: []string{"control/allocate", "cmd/sluice-controller"},
		Why: "a gateway writes no status: what does is another process, with rights of its own"},
	{From: "control/announce/view", Never: []string{"fastpath", "flowtable", "nat", "control", "xdpprog", "k8s.io",
		"github.com"},
		Why: "the gateway's commands print it: it must not bring the announcer into them"},
	{From: "control/announce", Never: []string{"fastpath", "flowtable", "nat", "control", "xdpprog", "bench",
		"github.com/cilium"}, But: []string{"control/pools", "control/pulse"},
		Why: "the announcer is another process than the gateway, and knows of it what its pulse says"},
	{From: "control/announce/kinds", Never: []string{"control", "k8s.io/client-go", "github.com/osrg"},
		But: []string{"control/pools"},
		Why: "what an object says follows from the object alone"},
	{From: "control/announce/file", Never: []string{"k8s.io/client-go", "github.com/osrg"},
		Why: "a machine without Kubernetes needs no client of it; and a source knows no speaker"},
	{From: "control/announce/layer2/frame", Never: []string{"control", "golang.org/x/sys", "k8s.io"},
		Why: "bytes of frames are read and made without a socket"},
	{From: "control/announce/layer2/hello", Never: []string{"control", "golang.org/x/sys", "k8s.io"},
		Why: "bytes of messages are read and made without a socket"},
	{From: "control/announce/layer2/members", Never: []string{"control", "golang.org/x/sys", "k8s.io"},
		But: []string{"control/announce/layer2/frame", "control/announce/layer2/hello"},
		Why: "who has a VIP follows from hellos and a clock that the caller gives: tests run hours of it in a second"},
	{From: "cmd/sluice-announcer", Never: []string{"fastpath", "flowtable", "nat", "xdpprog", "bench", "cmd/sluice",
		"control", "github.com/cilium", "github.com/asavie/xdp"},
		But: []string{"control/announce", "control/pools", "control/pulse"},
		Why: "the announcer's sessions outlive the gateway's process, whose rights it does not have"},
	{From: "control/config/metallb", Never: []string{"control", "k8s.io/client-go", "golang.org/x/sys"},
		But: []string{"control/announce/kinds", "control/pools"},
		Why: "what becomes of MetalLB's objects is said by what reads them in announcer and controller, and by " +
			"nothing else"},
	{From: "cmd/sluice", Never: []string{"control/announce", "github.com/osrg"},
		But: []string{"control/announce/view", "control/announce/kinds"},
		Why: "a BGP speaker and what it needs are not in the process that has the node's network in its hands"},
	{From: "control/pulse", Never: []string{"fastpath", "flowtable", "nat", "control", "xdpprog", "k8s.io",
		"github.com"},
		Why: "what a gateway says of itself is between two processes, and must drag neither into the other"},
	{From: "control/loop", Never: []string{"control", "k8s.io/client-go", "github.com/cilium",
		"github.com/vishvananda"}, But: []string{"control/objects", "control/tracker", "control/steer",
		"control/compiler", "control/maglev"},
		Why: "the loop meets sources, kernel program and flow table in interfaces only, so that a test can be all of " +
			"them, in a clock of its own"},
	{From: "cmd/sluice", Never: []string{"k8s.io/client-go/kubernetes", "k8s.io/client-go/informers"},
		Why: "the clientset registers every API there is (21 MB of program), informers keep every object twice; " +
			"control/k8s needs three kinds"},
	{From: "control/files", Never: []string{"k8s.io/client-go", "control/compiler", "control/loop"},
		Why: "only control/k8s speaks to an API server, a gateway with manifests works without; and a source knows " +
			"the tracker alone"},
	{From: "control/k8s", Never: []string{"control/compiler", "control/loop"},
		Why: "a source writes to the tracker; what becomes of it is not its business"},
	{From: "xdpprog", Never: []string{"fastpath", "flowtable", "control", "bench"}, But: []string{"fastpath/stats"},
		Why: "the kernel program knows packets and maps, not who decides what is in them (nat/header brings the " +
			"reasons' names)"},
	{From: internal + "/devices", Never: []string{internal, "fastpath/xsk"}, But: hardware,
		Why: "what a device is and which worker serves which queue follow from kernel and configuration alone"},
	{From: internal + "/handover", Never: []string{internal, "fastpath", "flowtable", "control", "xdpprog"},
		Why: "who owns what at which message must not depend on what is given, so that a test can be both sides"},
	{From: internal + "/placement", Never: []string{internal, "fastpath", "control", "xdpprog"}, But: hardware,
		Why: "where workers run follows from the machine and from counters alone"},
	{From: internal + "/workers", Never: []string{internal, "xdpprog"},
		But: append([]string{internal + "/devices", internal + "/boottime", internal + "/placement"}, hardware...),
		Why: "a worker has links and does not know of sockets' lives; ports open and close while it runs"},
	{From: internal + "/ports", Never: []string{internal, "control/compiler", "control/loop"},
		But: append([]string{internal + "/devices"}, hardware...),
		Why: "a port sees workers and kernel program in interfaces of its own, so that a test can replace them"},
	{From: internal + "/steering",
		Never: []string{internal, "fastpath/xsk", "flowtable", "control/compiler", "control/loop"},
		Why:   "it translates control's sets for xdpprog; it must see neither its callers nor interfaces"},
	{From: internal + "/flows", Never: []string{internal, "fastpath/xsk", "xdpprog", "control/loop"},
		But: []string{internal + "/boottime"},
		Why: "what is done with flows and pins needs no device, no socket and no kernel program"},
	{From: internal + "/checks", Never: []string{internal, "fastpath/xsk", "flowtable", "xdpprog", "control/loop"},
		Why: "it sees counters, a snapshot and a function to call, so that tests run it without a gateway"},
	{From: internal + "/nodeconfig", Never: []string{internal, "flowtable", "control/loop", "control/hostlink"},
		Why: "what the compiler knows of the node is a function of configuration, addresses and Node object"},
	{From: internal + "/explain", Never: []string{internal, "control/loop"},
		But: []string{internal + "/boottime", internal + "/steering", internal + "/nodeconfig", internal + "/seed"},
		Why: "an answer is made of what the caller passes, so that one without a gateway comes from the same code"},
	{From: "cmd/sluice", Never: []string{"bench", "github.com/asavie/xdp", "github.com/google/gopacket",
		"control/k8s/k8stest", "control/controltest"},
		Why: "the laboratory is not in the production binary"},
	{From: "bench/xdp", Never: []string{"bench", "fastpath", "control", "xdpprog"},
		Why: "it puts any program on any interface, below everything that measures"},
	{From: "bench/xdpnat", Never: []string{"bench", "fastpath", "flowtable", "nat", "control", "xdpprog"},
		But: []string{"control/maglev"},
		Why: "a peer shares nothing with what it is compared with, but the algorithm of Maglev tables"},
	{From: "bench/garbage", Never: []string{"bench", "fastpath", "flowtable", "nat", "control", "xdpprog"},
		But: []string{"nat/header/headertest"},
		Why: "it judges what they do, with code of its own"},
	{From: "", Never: []string{"github.com/asavie/xdp"}, But: []string{"bench/asavie"},
		Why: "asavie/xdp is the measured baseline, not a way to forward"},
}

// internal is where the daemon's package and those beside it are, hardware what of them knows
// drivers and NICs.
const internal = "cmd/sluice/internal"

var hardware = []string{internal + "/frames", internal + "/netdev", internal + "/rss", internal + "/irq"}

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

//go:build root

package upstream

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/test/bed/cluster"
	"sluice.dev/sluice/test/bed/cluster/nodes"
	"sluice.dev/sluice/test/bed/cluster/single"
)

// The variables of a run: a regular expression of the cases, "[arrangement] name", all if it is
// empty; and how many run at a time.
const (
	casesVariable = "SLUICE_CASES"
	atOnce        = "SLUICE_AT_ONCE"
)

// How long things may take. A case waits for many minutes before it fails, and passes in three.
const (
	caseTimeout  = 15 * time.Minute
	emptyTimeout = 3 * time.Minute
)

// pool is where Services of type LoadBalancer get their addresses from (RFC 5737, TEST-NET-2);
// cases use TEST-NET-3 themselves.
var pool = netip.MustParsePrefix("198.51.100.0/24")

// nodeNames are the nodes' by Role.
var nodeNames = [...]string{FirstWorker: "node-a", Gateway: "node-b", LastWorker: "node-c"}

// TestUpstream runs every case that applies to a gateway.
func TestUpstream(t *testing.T) {
	if !cluster.Enabled() {
		t.Skip("needs a cluster and e2e.test, which take many minutes to build: " + cluster.EnableVariable +
			"=1, or make -C test upstream-test")
	}
	if os.Geteuid() != 0 {
		t.Fatal("needs root: namespaces, containers, XDP and AF_XDP")
	}
	pattern, err := regexp.Compile(os.Getenv(casesVariable))
	if err != nil {
		t.Fatalf("%s: %v", casesVariable, err)
	}
	began := time.Now()
	l := start(t)
	t.Logf("the cluster runs after %.0f s", time.Since(began).Seconds())
	checkNames(t, l)
	results := map[string]Result{}
	for _, a := range arrangements {
		chosen := slices.DeleteFunc(slices.Clone(cases), func(c Case) bool {
			return c.In != a ||
				!pattern.MatchString("["+a.ID+"] "+c.Name)
		})
		if len(chosen) == 0 {
			continue
		}
		if err := l.Arrange(t.Context(), a); err != nil {
			t.Fatalf("%s: %v", a.ID, err)
		}
		runAll(t, l, chosen, results)
		if err := l.WaitEmpty(t.Context(), emptyTimeout); err != nil {
			t.Errorf("%s: %v", a.ID, err)
		}
	}
	for _, c := range cases {
		if r, ok := results[c.Name]; ok {
			t.Run(c.Name, func(t *testing.T) { judge(t, &c, &r) })
		}
	}
	t.Logf("%d cases: %.0f s", len(results), time.Since(began).Seconds())
}

// runAll runs the cases of an arrangement: several at a time, and then those that run alone. A case
// that passed and was not counted runs once more, alone.
func runAll(t *testing.T, l *Lab, chosen []Case, results map[string]Result) {
	t.Helper()
	many, err := strconv.Atoi(os.Getenv(atOnce))
	if err != nil {
		many = 3
	}
	var mu sync.Mutex
	one := func(c *Case, alone bool) {
		r, err := l.Run(t.Context(), c, alone, caseTimeout)
		if err != nil {
			r.Passed, r.Message = false, err.Error()
		}
		mu.Lock()
		defer mu.Unlock()
		results[c.Name] = r
		t.Logf("%-7s %4.0f s  %4d flows %6d packets  [%s] %s", r.word(), r.Took.Seconds(), r.Traffic.Flows,
			r.Traffic.ToBackend+r.Traffic.ToClient, c.In.ID, c.Name)
	}
	var g errgroup.Group
	g.SetLimit(many)
	for i := range chosen {
		if !chosen[i].Alone {
			g.Go(func() error { one(&chosen[i], false); return t.Context().Err() })
		}
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	for i := range chosen {
		c := &chosen[i]
		if r := results[c.Name]; c.Alone || r.Passed && !r.Counted(c) {
			one(c, true)
		}
	}
}

// judge holds a case to what the table says of it.
func judge(t *testing.T, c *Case, r *Result) {
	switch {
	case r.Skipped:
		t.Errorf("it skipped itself: %s", r.Message)
	case !r.Passed:
		t.Errorf("%s\n%s", r.Message, tail(r.Log))
	case !r.Counted(c):
		t.Errorf("it passed, and the gateway had no part in it: %d flows, %d packets to backends of its Services in "+
			"%v; meanwhile %d flows, dropped: %v",
			r.Traffic.Flows, r.Traffic.ToBackend, r.Namespaces, r.Created, r.Drops)
	}
}

// start starts the cluster with the gateway in front of it, and what cases need beside it.
func start(t *testing.T) *Lab {
	t.Helper()
	ctx := t.Context()
	programs, err := Build(ctx, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	packages, err := cluster.FetchPackages(ctx, os.Stderr, "the tools of test images", imagePackages...)
	if err != nil {
		t.Fatal(err)
	}
	images, err := Images(programs, packages)
	if err != nil {
		t.Fatal(err)
	}
	c, err := single.Start(ctx, single.Config{
		Workers: 2, Names: []string{nodeNames[Gateway], nodeNames[FirstWorker], nodeNames[LastWorker]},
		DNS: true, Images: images, Progress: os.Stderr,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("close the cluster: %v", err)
		}
	})
	w, err := StartWatch(ctx, c.Client(), pool)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	serveNames(t, c, w)
	install(t, c)
	if err := openGateway(ctx, c); err != nil {
		t.Fatal(err)
	}
	counters := StartCounters(c.Daemon())
	t.Cleanup(counters.Close)
	byRole := [...]*nodes.Node{FirstWorker: c.Workers[0], Gateway: c.Gateway, LastWorker: c.Workers[1]}
	return &Lab{
		Client: c.Client(), Nodes: nodeNames, Suite: suite(t, c, programs), Counters: counters, Log: t.Logf,
		Proxy: func(ctx context.Context, r Role, on bool) error {
			// On the gateway's node Sluice answers health checks, on the same port by default.
			return c.Proxy(ctx, byRole[r], on, "healthzBindAddress: 127.0.0.1:10299\n")
		},
	}
}

// serveNames answers for names on each node, where its pods ask.
func serveNames(t *testing.T, c *single.Cluster, w *Watch) {
	t.Helper()
	names := w.Names()
	t.Cleanup(func() {
		if err := names.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	})
	for _, n := range c.Nodes() {
		conn, err := n.Host().ListenPacket("udp", netip.AddrPortFrom(single.Address(n.Host()), 53).String())
		if err != nil {
			t.Fatal(err)
		}
		names.Serve(conn)
	}
}

// values are for a gateway that also serves what pods of other nodes send to Services by their
// default route: their addresses are known, and translated, as else replies would go by another
// way.
const values = `
  proxy:
    clusterIPs: true
    clusterCIDRs: [` + cluster.PodRange4 + `, "` + cluster.PodRange6 + `"]
    masqueradeAll: true
`

// install installs the chart.
func install(t *testing.T, c *single.Cluster) {
	t.Helper()
	ctx, version := t.Context(), "upstream"
	if err := c.Image(ctx, version, c.Gateway); err != nil {
		t.Fatal(err)
	}
	manifests, err := c.Manifests(ctx, strings.TrimRight(c.Values(version), "\n")+values)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Apply(ctx, manifests); err != nil {
		t.Fatal(err)
	}
	if err := c.Installed(ctx, 3*time.Minute); err != nil {
		t.Fatal(err)
	}
}

// openGateway lets the gateway's node take pods: some cases are about endpoints there.
func openGateway(ctx context.Context, c *single.Cluster) error {
	return single.Eventually(ctx, 10*time.Second, func(ctx context.Context) error {
		n, err := c.Client().CoreV1().Nodes().Get(ctx, c.Gateway.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints,
			func(taint corev1.Taint) bool { return taint.Key == single.GatewayTaint })
		_, err = c.Client().CoreV1().Nodes().Update(ctx, n, metav1.UpdateOptions{})
		return err
	})
}

// suite is e2e.test on the client's host, outside of the cluster. Its logs are kept if the test
// fails.
func suite(t *testing.T, c *single.Cluster, p *Programs) *Suite {
	t.Helper()
	url, err := c.Expose(c.Client0)
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := c.Kubeconfig(c.Admin(), url)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "sluice-upstream-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("what e2e.test wrote is in %s", dir)
			return
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return &Suite{Test: p.Test, Kubectl: p.Kubectl, Kubeconfig: kubeconfig, Client: c.Client0, Dir: dir}
}

// checkNames: every case of the release is in the table, every case of the table in the release,
// and the images are called what they are called there.
func checkNames(t *testing.T, l *Lab) {
	t.Helper()
	names, err := l.Suite.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range compare(names) {
		t.Error(problem)
	}
	images, err := l.Suite.output(t.Context(), "--list-images")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{agnhostName, busyboxName, issueName} {
		if !slices.Contains(strings.Fields(images), name) {
			t.Errorf("the release has no image %s: its images are\n%s", name, images)
		}
	}
}

func (r *Result) word() string {
	switch {
	case r.Passed:
		return "passed"
	case r.Skipped:
		return "skipped"
	}
	return "failed"
}

// tail is the end of a log.
func tail(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	const most = 6 << 10
	return string(text[max(0, len(text)-most):])
}

// imagePackages are what cases run in pods beside agnhost: a shell and tools, curl and nc. apt
// finds what they need. The shell is not busybox's, which takes its own nc before the one that is
// in the path.
var imagePackages = []string{"busybox-static", "dash", "curl", "netcat-openbsd"}

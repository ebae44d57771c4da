//go:build root

package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"sluice.dev/sluice/control/k8s/k8stest"
	"sluice.dev/sluice/test/bed/cluster"
	"sluice.dev/sluice/test/bed/cluster/clustertest"
	"sluice.dev/sluice/test/bed/topo"
)

// The load of TestOutage: connections that live through the outage, Services that are
// read beside the one they go to, and changes each connection would notice.
const (
	outageFlows    = 200
	outageServices = 300
	outageEvery    = 100 * time.Millisecond
)

// outageTime is how long the API server is away.
func outageTime() time.Duration {
	if full() {
		return time.Minute
	}
	return 3 * time.Second
}

// apiSource is an API server that can go away and come back such that the gateway must
// list everything anew.
type apiSource interface {
	start(t *testing.T, l *lab, kubeconfig string, objects []cluster.Object)
	stop(t *testing.T)
	restart(t *testing.T)
	// lists is how often the gateway has listed EndpointSlices since the server started.
	lists(t *testing.T) int
	put(t *testing.T, o cluster.Object)
}

// TestOutage: the API server goes away under load and comes back with everything in
// another order, or with a history too short to watch on from. Objects are the same, so
// the table stays the same, and no flow breaks. Then what changes is served.
func TestOutage(t *testing.T) {
	t.Parallel()
	onBothServers(t, func(t *testing.T) { outage(t, &memorySource{}) },
		func(t *testing.T) { outage(t, &realSource{}) })
}

// onBothServers runs a test with an API server in memory and with a kube-apiserver.
func onBothServers(t *testing.T, memory, real func(*testing.T)) {
	t.Run("in memory", memory)
	t.Run("kube-apiserver", func(t *testing.T) {
		clustertest.Need(t)
		real(t)
	})
}

func outage(t *testing.T, source apiSource) {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	l := newLab(t, labConfig{
		Config:  topo.Config{Queues: 2, Backends: 3},
		options: fmt.Sprintf("kubernetes: {enabled: true, kubeconfig: %s}\n", path),
		prepare: func(l *lab) { source.start(t, l, path, outageObjects(l)) },
	})
	flows, err := l.Clients[0].OpenTCP(l.ctx, topo.FlowLoad{Targets: []netip.AddrPort{at(apiVIP, webPort),
		at(vip4, webPort)}, Flows: outageFlows, Interval: outageEvery})
	if err != nil {
		t.Fatal(err)
	}
	before := l.outageState()
	if n := source.lists(t); n == 0 {
		t.Error("nothing has been listed, and yet the flows are open")
	}
	source.stop(t)
	l.eventually(30*time.Second, "three sources fail", func() bool { return l.outageState().failing == 3 })
	time.Sleep(outageTime()) // this long is what is tested
	if during := l.outageState(); during.generation != before.generation {
		t.Errorf("table %d while the API server was away, %d before", during.generation, before.generation)
	}
	fresh := l.newConnections()
	source.restart(t)
	// client-go waits up to 30 s more, and half as much again, between attempts to connect.
	l.eventually(90*time.Second, "sources that work, and a list", func() bool {
		return l.outageState().failing == 0 &&
			source.lists(t) > 0
	})
	l.applied()
	after := l.outageState()
	if after.generation != before.generation || after.read != before.read {
		t.Errorf("table %d after the list, %d before; revision %d, %d before", after.generation, before.generation,
			after.read, before.read)
	}
	states := flows.States()
	least := slices.MinFunc(states, func(a, b topo.FlowState) int { return int(a.Answers - b.Answers) }).Answers
	if n := flows.Broken(); n > 0 || least < int64(outageTime()/outageEvery/2) {
		t.Errorf("%d of %d flows broke, the quietest had %d answers", n, outageFlows, least)
	}
	flows.Stop()
	t.Logf("%s away: table %d before and after, %d flows, 0 broken, %d new connections meanwhile", outageTime(),
		after.generation, outageFlows, fresh)

	source.put(t, outageSlice(l.Backends[2])) // and what changes is served again
	l.eventually(20*time.Second, "a change", func() bool { return l.outageState().generation > after.generation })
	l.applied()
	r, err := l.Clients[0].HTTP(l.ctx, topo.HTTPLoad{Targets: []netip.AddrPort{at(apiVIP, webPort)}, Requests: 50})
	if err != nil || r.Shares[l.Backends[2].Name] != 50 {
		t.Errorf("50 requests after a change: %v, %+v", err, r)
	}
}

// newConnections are served without the API server, too.
func (l *lab) newConnections() int64 {
	l.t.Helper()
	r, err := l.Clients[0].HTTP(l.ctx, topo.HTTPLoad{Targets: []netip.AddrPort{at(apiVIP, webPort)}, Requests: 200,
		Concurrency: 4})
	if err != nil || r.Failed() > 0 {
		l.t.Errorf("new connections while the API server is away: %v, %+v", err, r)
	}
	return r.Requests
}

type outageState struct {
	failing          int
	generation, read uint64
}

func (l *lab) outageState() (s outageState) {
	l.t.Helper()
	st, err := l.gate.Client.Status(l.ctx, false)
	if err != nil {
		l.t.Fatal(err)
	}
	for _, source := range st.Sources {
		if !strings.HasPrefix(source.Name, "kubernetes:") {
			continue
		}
		s.read = max(s.read, source.Read)
		if strings.Contains(source.Error, "since") && source.Synced {
			s.failing++
		}
	}
	s.generation = st.Snapshot.Published
	return s
}

// outageObjects are a Service on two backends, and many others, whose order can differ.
func outageObjects(l *lab) []cluster.Object {
	list := []cluster.Object{
		apiService("api", "10.96.0.40"), outageSlice(l.Backends[:2]...),
		cluster.NewNode(gatewayNode, "", l.Gateway.Addr4(), l.Gateway.Addr6()),
	}
	for i := range outageServices {
		name := fmt.Sprintf("other-%d", i)
		s := apiService(name, fmt.Sprintf("10.96.%d.%d", 1+i/250, 1+i%250))
		s.Status.LoadBalancer = corev1.LoadBalancerStatus{}
		slice := apiSlice(name, l.Backends[:2]...)
		list = append(list, s, slice)
	}
	return list
}

func outageSlice(hosts ...*topo.Host) *discoveryv1.EndpointSlice {
	return apiSlice("api", hosts...)
}

// memorySource is the server of the unit tests: it lists in any order.
type memorySource struct {
	server *k8stest.Server
	before int // lists before the restart
}

func (m *memorySource) start(t *testing.T, l *lab, kubeconfig string, objects []cluster.Object) {
	m.server = apiServer(t, l.Gateway, kubeconfig)
	for _, o := range objects {
		m.server.Set(o.(runtime.Object))
	}
}

func (m *memorySource) stop(*testing.T) { m.server.Stop() }

func (m *memorySource) restart(t *testing.T) {
	m.before = m.server.Lists("endpointslices")
	m.server.Shuffle = rand.New(rand.NewPCG(1, 2)).Shuffle
	m.server.Expire()
	if err := m.server.Start(); err != nil {
		t.Fatal(err)
	}
}

func (m *memorySource) lists(*testing.T) int { return m.server.Lists("endpointslices") - m.before }

func (m *memorySource) put(_ *testing.T, o cluster.Object) { m.server.Set(o.(runtime.Object)) }

// realSource is kube-apiserver on etcd, whose history is compacted while it is away. The
// requests of the gateway are read from the audit log.
type realSource struct {
	cluster *cluster.Cluster
	audit   string // file
	skip    int    // bytes of it, from before the restart
}

const auditPolicy = `
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseComplete]
rules:
- level: Metadata
  users: ["system:serviceaccount:sluice:gateway"]
  resources: [{group: discovery.k8s.io, resources: [endpointslices]}]
- level: None
`

func (r *realSource) start(t *testing.T, l *lab, kubeconfig string, objects []cluster.Object) {
	dir := t.TempDir()
	policy := filepath.Join(dir, "policy.yaml")
	r.audit = filepath.Join(dir, "audit.log")
	if err := os.WriteFile(policy, []byte(auditPolicy), 0o644); err != nil {
		t.Fatal(err)
	}
	r.cluster = clustertest.Start(l.ctx, t, cluster.Config{Flags: []string{"--audit-policy-file=" + policy,
		"--audit-log-path=" + r.audit}})
	if err := r.cluster.Put(l.ctx, objects...); err != nil {
		t.Fatal(err)
	}
	written, err := r.cluster.Gateway(l.ctx, l.Gateway)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(written, kubeconfig); err != nil {
		t.Fatal(err)
	}
}

func (r *realSource) stop(t *testing.T) {
	if err := r.cluster.StopAPIServer(0); err != nil {
		t.Fatal(err)
	}
	r.skip = len(r.auditLog(t))
}

func (r *realSource) restart(t *testing.T) {
	if err := r.cluster.Compact(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := r.cluster.StartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func (r *realSource) auditLog(t *testing.T) []byte {
	text, err := os.ReadFile(r.audit)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return text
}

// lists counts lists and streamed lists (KEP-3157).
func (r *realSource) lists(t *testing.T) (n int) {
	for line := range bytes.Lines(r.auditLog(t)[r.skip:]) {
		var event struct {
			Verb       string `json:"verb"`
			RequestURI string `json:"requestURI"`
		}
		if json.Unmarshal(line, &event) != nil {
			continue // the last line, while it is written
		}
		if event.Verb == "list" || strings.Contains(event.RequestURI, "sendInitialEvents=true") {
			n++
		}
	}
	return n
}

func (r *realSource) put(t *testing.T, o cluster.Object) {
	if err := r.cluster.Put(t.Context(), o); err != nil {
		t.Fatal(err)
	}
}

//go:build root

package single

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/test/bed/topo"
)

// enableVariable requests a whole cluster, whose programs take minutes to build and to download.
const enableVariable = "SLUICE_NODES"

// VIPs of the Services of the test, of which nobody but the gateway knows, and what the Services
// listen on.
const (
	webVIP4, webVIP6   = "203.0.113.10", "2001:db8::10"
	hereVIP4, hereVIP6 = "203.0.113.11", "2001:db8::11"
	webPort            = 80
	nodePort           = 30080
)

// patience is how long anything may take that a busy machine makes slow. What takes longer does not
// come.
const patience = 5 * time.Minute

// scenario is one cluster that all parts of the test change in turn.
type scenario struct {
	*Cluster
	t         *testing.T
	manifests []byte // as installed last
}

// TestChartOnACluster installs the chart on a cluster of real kubelets, reaches Services from
// outside, updates and removes the gateway. Each part goes on where the one before it ended.
func TestChartOnACluster(t *testing.T) {
	if os.Getenv(enableVariable) != "1" {
		t.Skip("needs nodes, whose programs take minutes to build: " +
			enableVariable + "=1, or make -C test cluster-test")
	}
	c, err := Start(t.Context(), Config{Progress: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeClean(t, c) })
	s := &scenario{Cluster: c}
	for _, part := range []struct {
		name string
		run  func(context.Context)
	}{
		{"Install", s.install},
		{"Workload", s.workload},
		{"Reached", s.reached},
		{"Capabilities", s.capabilities},
		{"Mounts", s.mounts},
		{"RollingUpdate", s.rollingUpdate},
		{"RefusedUpdate", s.refusedUpdate},
		{"Probes", s.probes},
		{"Uninstall", s.uninstall},
		{"UninstallByHand", s.uninstallByHand},
	} {
		ok := t.Run(part.name, func(t *testing.T) {
			s.t = t
			began := time.Now()
			part.run(t.Context())
			t.Logf("%s", time.Since(began).Round(100*time.Millisecond))
		})
		if !ok {
			s.report(t)
			t.FailNow()
		}
	}
}

// closeClean ends the cluster, after which nothing of it may be left.
func closeClean(t *testing.T, c *Cluster) {
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	left, err := c.Net.Leftovers()
	if err != nil {
		t.Error(err)
	}
	for _, pattern := range []string{"/sys/fs/cgroup/*/sluice-node-%d-*", "/dev/shm/sluice-*-%d-*", os.TempDir() +
		"/sluice-single-%d-*"} {
		found, _ := filepath.Glob(fmt.Sprintf(pattern, os.Getpid())) // the patterns are well-formed
		left = append(left, found...)
	}
	if len(left) > 0 {
		t.Errorf("left on the machine: %q", left)
	}
}

// report prints what helps with a failure.
func (s *scenario) report(t *testing.T) {
	ctx := context.Background()
	if list, err := s.Client().CoreV1().Pods("").List(ctx, metav1.ListOptions{}); err == nil {
		for i := range list.Items {
			p := &list.Items[i]
			t.Logf("pod %s/%s on %q: %s %+v", p.Namespace, p.Name, p.Spec.NodeName, p.Status.Phase,
				p.Status.ContainerStatuses)
		}
	}
	if list, err := s.Client().CoreV1().Events("").List(ctx, metav1.ListOptions{}); err == nil {
		for i := range list.Items {
			e := &list.Items[i]
			if e.Type != "Normal" {
				t.Logf("event about %s: %s %s", e.InvolvedObject.Name, e.Reason, e.Message)
			}
		}
	}
	logs, _ := filepath.Glob(s.Gateway.Path("/var/log/pods/*/*/*.log")) // the pattern is well-formed
	for _, f := range logs {
		text, _ := os.ReadFile(f)
		t.Logf("%s:\n%s", f, text[max(0, len(text)-4096):])
	}
	t.Logf("kubelet of the gateway:\n%s", s.Gateway.Log("kubelet"))
}

func (s *scenario) install(ctx context.Context) {
	for _, version := range []string{"a", "b"} {
		s.must(s.Image(ctx, version, s.Gateway))
		s.step("image %s is built from this tree, and imported", version)
	}
	s.apply(ctx, "a")
	s.step("the chart is applied")
	s.must(s.Installed(ctx, patience))
	s.step("the DaemonSet is Ready")
	pod, err := s.GatewayPod(ctx)
	s.must(err)
	s.t.Logf("DaemonSet is Ready; pod %s on node %s runs %s", pod.Name, pod.Spec.NodeName, pod.Spec.Containers[0].Image)
}

// apply installs the chart with an image and more values, or upgrades to them.
func (s *scenario) apply(ctx context.Context, version string, values ...string) {
	s.t.Helper()
	all := s.Values(version)
	for _, v := range values {
		var err error
		all, err = MergeValues(all, v)
		s.must(err)
	}
	var err error
	s.manifests, err = s.Manifests(ctx, all)
	s.must(err)
	s.must(s.Apply(ctx, s.manifests))
}

func (s *scenario) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

const workload = `apiVersion: apps/v1
kind: Deployment
metadata: {name: NAME, namespace: default}
spec:
  replicas: REPLICAS
  selector: {matchLabels: {app: NAME}}
  template:
    metadata: {labels: {app: NAME}}
    spec:
      terminationGracePeriodSeconds: 1
      nodeSelector: {kubernetes.io/hostname: NODE}
      tolerations: [{operator: Exists}]
      dnsPolicy: Default
      containers:
      - name: server
        image: IMAGE
        imagePullPolicy: Never
        args: [$(POD)]
        env: [{name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]
        readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: NAME, namespace: default}
spec:
  type: LoadBalancer
  ipFamilyPolicy: RequireDualStack
  selector: {app: NAME}
  ports:
  - {name: http, port: 80, targetPort: 8080, protocol: TCP, nodePort: NODEPORT}
  - {name: echo, port: 80, targetPort: 8080, protocol: UDP, nodePort: NODEPORT}
`

// workload starts pods on a worker and on the gateway's own node, each behind a Service.
func (s *scenario) workload(ctx context.Context) {
	for _, w := range []struct {
		name, node, replicas, port string
		vips                       []string
	}{
		{"web", "worker0", "3", fmt.Sprint(nodePort), []string{webVIP4, webVIP6}},
		{"here", "gateway", "1", fmt.Sprint(nodePort + 1), []string{hereVIP4, hereVIP6}},
	} {
		text := strings.NewReplacer("NAME", w.name, "REPLICAS", w.replicas, "NODEPORT", w.port, "NODE", w.node, "IMAGE",
			ServerImage).Replace(workload)
		s.must(s.Apply(ctx, []byte(text)))
		s.must(s.SetVIPs(ctx, "default", w.name, w.vips...))
		s.must(Eventually(ctx, patience, func(ctx context.Context) error {
			d, err := s.Client().AppsV1().Deployments("default").Get(ctx, w.name, metav1.GetOptions{})
			if err == nil && d.Status.AvailableReplicas != *d.Spec.Replicas {
				err = fmt.Errorf("Deployment %s: %d of %d pods are available", w.name, d.Status.AvailableReplicas,
					*d.Spec.Replicas)
			}
			return err
		}))
		s.served(ctx, w.name)
	}
}

// served waits until the gateway has a Service's endpoints, of both families.
func (s *scenario) served(ctx context.Context, name string) {
	s.t.Helper()
	d := s.Daemon()
	s.must(Eventually(ctx, patience, func(ctx context.Context) error {
		list, err := d.Services(ctx)
		if err != nil {
			return err
		}
		for i := range list {
			if v := &list[i]; v.Name == name && v.Usable > 0 && len(v.Frontends) > 0 {
				return nil
			}
		}
		return fmt.Errorf("the gateway does not serve %s: %+v", name, list)
	}))
}

// traffic is what the daemon counted for a Service.
func (s *scenario) traffic(ctx context.Context, service string) (t status.Traffic) {
	s.t.Helper()
	d := s.Daemon()
	list, err := d.Services(ctx)
	s.must(err)
	for i := range list {
		if v := &list[i]; v.Name == service {
			t.ToBackend += v.Traffic.ToBackend
			t.ToClient += v.Traffic.ToClient
		}
	}
	return t
}

// counted runs a case, for which the daemon must count packets both ways.
func (s *scenario) counted(ctx context.Context, service, what string, atLeast uint64, run func() string) {
	s.t.Helper()
	before := s.traffic(ctx, service)
	said := run()
	after := s.traffic(ctx, service)
	to, back := after.ToBackend-before.ToBackend, after.ToClient-before.ToClient
	if to < atLeast || back < atLeast {
		s.t.Errorf("%s: the gateway counted %d packets to backends and %d to clients, want %d of each: it was not by "+
			"the gateway", what, to, back, atLeast)
	}
	s.t.Logf("%-28s %s; the gateway counted %d packets to backends, %d to clients", what, said, to, back)
}

// reached asks Services from outside, by each kind of address.
func (s *scenario) reached(ctx context.Context) {
	gateway := s.Net.Gateway
	for _, c := range []struct {
		service, what string
		targets       []netip.AddrPort
		backends      int
	}{
		{"web", "VIP, IPv4", []netip.AddrPort{at(webVIP4, webPort)}, 3},
		{"web", "VIP, IPv6", []netip.AddrPort{at(webVIP6, webPort)}, 3},
		{"web", "node port", []netip.AddrPort{netip.AddrPortFrom(gateway.Addr4(), nodePort),
			netip.AddrPortFrom(gateway.Addr6(), nodePort)}, 3},
		{"here", "VIPs, pod on the gateway", []netip.AddrPort{at(hereVIP4, webPort), at(hereVIP6, webPort)}, 1},
	} {
		s.counted(ctx, c.service, c.what+", TCP", 100, func() string {
			r, err := s.Client0.HTTP(ctx, topo.HTTPLoad{Targets: c.targets, Requests: 100, Concurrency: 4})
			s.must(err)
			if r.Requests != 100 || r.Failed() > 0 || len(r.Shares) != c.backends {
				s.t.Errorf("%s: %d of 100 requests answered by %v, want %d pods: %v", c.what, r.Requests-r.Failed(),
					r.Shares, c.backends, r.Errors)
			}
			return fmt.Sprintf("%d of 100 requests answered by %d pods", r.Requests-r.Failed(), len(r.Shares))
		})
		s.counted(ctx, c.service, c.what+", UDP", 50, func() string { return s.datagrams(ctx, c.targets, 50) })
	}
	s.counted(ctx, "web", "VIP, IPv4, 64 MiB each way", (64<<20)/1500, func() string {
		down, err := s.Client0.Download(ctx, at(webVIP4, webPort), 64<<20)
		s.must(err)
		up, err := s.Client0.Upload(ctx, at(webVIP4, webPort), 64<<20)
		s.must(err)
		return fmt.Sprintf("SHA-256 equal, %s and %s", down.Elapsed.Round(time.Millisecond),
			up.Elapsed.Round(time.Millisecond))
	})
}

// datagrams sends datagrams, each over a flow of its own, and expects all back.
func (s *scenario) datagrams(ctx context.Context, targets []netip.AddrPort, n int) string {
	s.t.Helper()
	flows, err := s.Client0.OpenUDP(ctx, topo.FlowLoad{Targets: targets, Flows: n, Interval: time.Second,
		Timeout: 2 * time.Second})
	s.must(err)
	defer flows.Stop()
	answered := 0
	err = Eventually(ctx, 10*time.Second, func(context.Context) error {
		answered = 0
		for _, f := range flows.States() {
			if f.Answers > 0 {
				answered++
			}
		}
		if answered < n {
			return fmt.Errorf("%d of %d UDP flows answered", answered, n)
		}
		return nil
	})
	if err != nil {
		s.t.Error(err)
	}
	return fmt.Sprintf("%d of %d UDP flows answered", answered, n)
}

// silent sees that nobody answers for the Services' addresses: with this, that they were reached
// before was the gateway's doing.
func (s *scenario) silent(ctx context.Context) {
	s.t.Helper()
	targets := []netip.AddrPort{at(webVIP4, webPort), at(webVIP6, webPort), netip.AddrPortFrom(s.Net.Gateway.Addr4(),
		nodePort), at(hereVIP4, webPort)}
	for _, target := range targets {
		r, err := s.Client0.HTTP(ctx, topo.HTTPLoad{Targets: []netip.AddrPort{target}, Requests: 1,
			Timeout: time.Second})
		s.must(err)
		if r.Requests > r.Failed() {
			s.t.Errorf("%s answers without Sluice", target)
		}
	}
	s.t.Logf("without Sluice none of %v is answered", targets)
}

func at(ip string, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr(ip), port)
}

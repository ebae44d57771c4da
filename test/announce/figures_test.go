//go:build root

package announce

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"

	"sluice.dev/sluice/test/bed/cluster"
	"sluice.dev/sluice/test/bed/cluster/clustertest"
	"sluice.dev/sluice/test/bed/launch"
	"sluice.dev/sluice/test/bed/machine"
	"sluice.dev/sluice/test/bed/observer"
	"sluice.dev/sluice/test/bed/reach"
	"sluice.dev/sluice/test/bed/topo"
)

// onKubernetes is a gateway with the chart's rights on a real API server, with sluice-controller,
// and with BIRD between it and the client.
func onKubernetes(t *testing.T) *reach.Lab {
	t.Helper()
	clustertest.Need(t)
	controller, err := launch.BuildCommand(t.TempDir(), "sluice-controller")
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), machine.Slower(2*time.Minute))
	defer cancel()
	l, err := reach.Start(ctx, reach.Config{Sluice: gateway, Controller: controller, Announcer: announcer,
		Progress: os.Stderr}, reach.Settings{Addresses: "198.18.0.0/20"})
	must(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(l.Logs())
		}
		check(t, l.Close())
	})
	return l
}

// create creates Services, several at a time, with their slices.
func create(t *testing.T, l *reach.Lab, names []string) {
	t.Helper()
	errs := make([]error, len(names))
	workqueue.ParallelizeUntil(t.Context(), 16, len(names), func(i int) {
		s, _ := l.Service(names[i])
		_, errs[i] = l.Cluster.Client().CoreV1().Services(s.Namespace).Create(t.Context(), s, metav1.CreateOptions{})
	})
	must(t, errors.Join(errs...))
}

// slicesOf writes the slices that the EndpointSlice controller would write.
func slicesOf(t *testing.T, l *reach.Lab, names []string) {
	t.Helper()
	var objects []cluster.Object
	for _, name := range names {
		_, slice := l.Service(name)
		objects = append(objects, slice)
	}
	must(t, l.Cluster.Put(t.Context(), objects...))
}

func numbered(prefix string, n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("%s-%04d", prefix, i))
	}
	return names
}

// addressOf returns a Service's address, or an error while it has none.
func addressOf(s *corev1.Service) (netip.Addr, error) {
	if len(s.Status.LoadBalancer.Ingress) == 0 {
		return netip.Addr{}, fmt.Errorf("Service %s has no address yet", s.Name)
	}
	return netip.ParseAddr(s.Status.LoadBalancer.Ingress[0].IP)
}

// attempt bounds one connection to a VIP that may not answer yet: a lost SYN would be sent again
// after a second, and the answer would seem late.
const attempt = 50 * time.Millisecond

// TestFirstAnswer measures how long after a Service is created its address answers a client
// behind the router.
func TestFirstAnswer(t *testing.T) {
	l := onKubernetes(t)
	ctx, cancel := context.WithTimeout(t.Context(), machine.Slower(10*time.Minute))
	defer cancel()
	names := numbered("web", few(200, 20))
	slicesOf(t, l, names)
	services, client := l.Cluster.Client().CoreV1().Services(metav1.NamespaceDefault), l.Net.Clients[0]
	var address, answer []time.Duration
	for _, name := range names {
		begin := time.Now()
		create(t, l, []string{name})
		var vip netip.Addr
		within(t, ctx, name+" has an address", func(ctx context.Context) error {
			s, err := services.Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			vip, err = addressOf(s)
			return err
		})
		address = append(address, time.Since(begin))
		within(t, ctx, name+" answers", func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, attempt)
			defer cancel()
			conn, err := client.Dial(ctx, "tcp", netip.AddrPortFrom(vip, reach.Port).String())
			if err == nil {
				conn.Close()
			}
			return err
		})
		answer = append(answer, time.Since(begin))
	}
	quantiles(t, "address in the status", address)
	if p99 := quantiles(t, "first answer", answer); p99 > machine.Slower(time.Second) {
		t.Errorf("the first answer takes %v at the 99th percentile, want 1 s at most", p99)
	}
}

func within(t *testing.T, ctx context.Context, what string, is func(context.Context) error) {
	t.Helper()
	if err := topo.Until(ctx, machine.Slower(time.Minute), time.Millisecond, is); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// quantiles prints p50, p99 and the maximum, and returns p99.
func quantiles(t *testing.T, what string, took []time.Duration) time.Duration {
	t.Helper()
	slices.Sort(took)
	at := func(percent int) time.Duration { return took[(len(took)*percent+99)/100-1].Round(time.Millisecond) }
	t.Logf("%s, after %d Services were created one after another: p50 %v, p99 %v, at most %v", what, len(took), at(50),
		at(99), at(100))
	return at(99)
}

// TestManyServices measures how long it takes until the router has the routes of many Services that
// are created at once, and all of them answer.
func TestManyServices(t *testing.T) {
	l := onKubernetes(t)
	ctx, cancel := context.WithTimeout(t.Context(), machine.Slower(10*time.Minute))
	defer cancel()
	names := numbered("web", few(1000, 100))
	slicesOf(t, l, names)
	before, err := l.Router.Routes()
	must(t, err)
	without := resident(t, l)
	begin := time.Now()
	create(t, l, names)
	created := time.Since(begin)
	var last time.Duration
	var now []netip.Prefix
	if err := topo.Until(ctx, machine.Slower(5*time.Minute), 10*time.Millisecond, func(context.Context) error {
		var err error
		now, err = l.Router.Routes()
		last = time.Since(begin)
		if n := len(now) - len(before); err == nil && n < len(names) {
			err = fmt.Errorf("%d of %d routes", n, len(names))
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	list, err := l.Cluster.Client().CoreV1().Services(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{})
	must(t, err)
	var targets []netip.AddrPort
	for i := range list.Items {
		if s := &list.Items[i]; s.Spec.Type == corev1.ServiceTypeLoadBalancer {
			vip, err := addressOf(s)
			must(t, err)
			targets = append(targets, netip.AddrPortFrom(vip, reach.Port))
			if !slices.Contains(now, netip.PrefixFrom(vip, vip.BitLen())) {
				t.Errorf("the router has no route to %s, the address of Service %s", vip, s.Name)
			}
		}
	}
	r, err := l.Net.Clients[0].HTTP(ctx, topo.HTTPLoad{Targets: targets, Requests: len(targets), Concurrency: 4})
	must(t, err)
	with := resident(t, l)
	t.Logf("resident memory without Services: %v; with %d: %v", without, len(names), with)
	if with.gateway > mostGateway || with.announcer > mostAnnouncer || with.controller > mostController {
		t.Errorf("resident memory is %v, want %v at most", with, memory{mostGateway, mostAnnouncer, mostController})
	}
	t.Logf("%d Services at once: the API server had created them after %v, the router had all routes after %v",
		len(names), created.Round(time.Millisecond), last.Round(time.Millisecond))
	if len(targets) != len(names) || r.Failed() > 0 {
		t.Errorf("%d VIPs of %d Services: %d do not answer: %v", len(targets), len(names), r.Failed(), r.Errors)
	}
}

// Bounds of resident memory with 1,000 Services and small flow tables, in bytes: a third more than
// measured.
const (
	mostGateway    = 150 << 20
	mostAnnouncer  = 120 << 20
	mostController = 50 << 20
)

// memory returns the resident memory of the three processes, in bytes.
type memory struct{ gateway, announcer, controller uint64 }

func (m memory) String() string {
	return fmt.Sprintf("gateway %d MiB, announcer %d MiB, controller %d MiB", m.gateway>>20, m.announcer>>20,
		m.controller>>20)
}

func resident(t *testing.T, l *reach.Lab) memory {
	t.Helper()
	of := func(pid int) uint64 {
		m, err := observer.ProcessMemory(pid)
		must(t, err)
		return m.Now
	}
	g := l.Gateways[0]
	return memory{of(g.PID()), of(g.Announcer.PID()), of(l.Controller.PID())}
}

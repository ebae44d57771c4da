package allocate_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"sluice.dev/sluice/allocate"
	"sluice.dev/sluice/test/bed/machine"
)

// inOrder follows all Services in the order of their changes, and reports every moment at which two
// have the same address.
type inOrder struct {
	*lab
	has map[string][]string // by Service
	by  map[string]string   // by address
	n   atomic.Int64        // changes of addresses
}

func (l *lab) followInOrder() (stop func()) {
	o := &inOrder{lab: l, has: map[string][]string{}, by: map[string]string{}}
	ctx, cancel := context.WithCancel(l.ctx)
	list, err := l.client.CoreV1().Services(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		l.Fatal(err)
	}
	for i := range list.Items {
		o.see(&list.Items[i], false)
	}
	w, err := l.client.CoreV1().Services(metav1.NamespaceAll).Watch(ctx,
		metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		l.Fatal(err)
	}
	var done sync.WaitGroup
	done.Go(func() {
		for event := range w.ResultChan() {
			s, ok := event.Object.(*corev1.Service)
			if !ok && ctx.Err() != nil {
				return
			}
			if !ok {
				l.Errorf("watch: %+v", event.Object)
				return
			}
			o.see(s, event.Type == watch.Deleted)
		}
	})
	return func() {
		cancel()
		w.Stop()
		done.Wait()
		l.Logf("%d changes of addresses", o.n.Load())
		if o.n.Load() == 0 {
			l.Error("no address was ever given")
		}
	}
}

func (o *inOrder) see(s *corev1.Service, deleted bool) {
	now := addressesOf(s)
	if deleted {
		now = nil
	}
	name := s.Namespace + "/" + s.Name
	if fmt.Sprint(now) == fmt.Sprint(o.has[name]) {
		return
	}
	for _, a := range o.has[name] {
		if o.by[a] == name {
			delete(o.by, a)
		}
	}
	o.has[name] = now
	for _, a := range now {
		o.n.Add(1)
		if other := o.by[a]; other != "" {
			o.Errorf("%s is given to %s while %s has it (version %s)", a, name, other, s.ResourceVersion)
		}
		o.by[a] = name
	}
}

// churned counts the changes of a churn.
type churned struct{ created, deleted atomic.Int64 }

// churn creates and deletes Services and changes their requests until it is stopped. It uses more
// Services than there are addresses.
func (l *lab) churn() (n *churned, stop func()) {
	ctx, cancel := context.WithCancel(l.ctx)
	n = &churned{}
	var done sync.WaitGroup
	api := l.client.CoreV1().Services("default")
	for worker := range 2 {
		done.Go(func() {
			random := rand.New(rand.NewPCG(uint64(worker), 5))
			for ctx.Err() == nil {
				name := fmt.Sprintf("c%d-%d", worker, random.IntN(20))
				s := service(name)
				if n := random.IntN(3); n == 0 {
					s.Annotations["metallb.io/loadBalancerIPs"] = fmt.Sprintf("192.0.2.%d", random.IntN(16))
				}
				_, err := api.Create(ctx, s, metav1.CreateOptions{})
				count := &n.created
				if apierrors.IsAlreadyExists(err) {
					err = api.Delete(ctx, name, metav1.DeleteOptions{})
					count = &n.deleted
				}
				if err == nil {
					count.Add(1)
				}
				if err != nil && ctx.Err() == nil && !apierrors.IsNotFound(err) {
					l.Errorf("churn: %v", err)
					return
				}
				pace(ctx, 10*time.Millisecond)
			}
		})
	}
	return n, func() { cancel(); done.Wait() }
}

// pace bounds the load of a loop.
func pace(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func (l *lab) leader() string {
	l.Helper()
	lease, err := l.client.CoordinationV1().Leases("sluice-system").Get(l.ctx, "sluice-controller", metav1.GetOptions{})
	if err != nil || lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *lease.Spec.HolderIdentity
}

// TestStoppedLeader suspends a leader past its Lease, 20 times under churn, and resumes it while
// another one leads. No address is ever given twice, and the old leader ends.
func TestStoppedLeader(t *testing.T) {
	l := newLab(t)
	binary := build(t)
	l.createPool("main", `{addresses: [192.0.2.0/28]}`)
	start := func() *process { return l.controller(binary, "--lease-duration", "1s") }
	leading := start()
	l.eventually("a leader", func() error {
		if l.leader() == "" {
			return errors.New("nobody leads")
		}
		return nil
	})
	stopWatch := l.followInOrder()
	changes, stopChurn := l.churn()
	rounds, least := 20, int64(1<<62)
	if testing.Short() {
		rounds = 3
	}
	for round := range rounds {
		before := l.leader()
		standby := start()
		pace(l.ctx, time.Duration(rand.IntN(300))*time.Millisecond) // stopped at any moment
		if err := leading.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		created, deleted := changes.created.Load(), changes.deleted.Load()
		l.eventually("another leader", func() error {
			if now := l.leader(); now == before || now == "" {
				return fmt.Errorf("%q leads", now)
			}
			return nil
		})
		l.create(service(fmt.Sprint("after-", round), annotated("metallb.io/loadBalancerIPs", "192.0.2.1")))
		if round%2 == 0 { // resume it while the new one may still be fencing, or long after
			l.eventually("the new leader decides", func() error {
				if len(l.get(fmt.Sprint("after-", round)).Status.Conditions) == 0 {
					return errors.New("not yet")
				}
				return nil
			})
		}
		least = min(least, changes.created.Load()-created, changes.deleted.Load()-deleted)
		if err := leading.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		l.ended(leading)
		if leading.err == nil {
			t.Error("a leader that lost its Lease ended without an error")
		}
		if err := l.client.CoreV1().Services("default").Delete(l.ctx, fmt.Sprint("after-", round),
			metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		leading = standby
	}
	stopChurn()
	stopWatch()
	t.Logf("%d rounds: %d Services created and %d deleted, %d of each at least while a leader was stopped", rounds,
		changes.created.Load(), changes.deleted.Load(), least)
	if least == 0 {
		t.Error("no Service came, or none went, while a leader was stopped")
	}
	l.stop(leading)
}

// gate is the transport of a controller in this process. It sees all requests and can hold them, as
// if the process were suspended.
type gate struct {
	http.RoundTripper
	see func(method, path string, body []byte)
	// hold returns a channel that a request must wait for before it is sent; nil: send it at once.
	// A held request is sent even if its caller has given up, like a request that is already in a
	// socket of a suspended process.
	hold func(method, path string, body []byte) <-chan struct{}
	// answered is called with the status code of each held request.
	answered func(path string, code int)
}

func (g *gate) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
	if g.see != nil {
		g.see(r.Method, r.URL.Path, body)
	}
	if g.hold == nil {
		return g.RoundTripper.RoundTrip(r)
	}
	wait := g.hold(r.Method, r.URL.Path, body)
	if wait == nil {
		return g.RoundTripper.RoundTrip(r)
	}
	<-wait
	answer, err := g.RoundTripper.RoundTrip(r.WithContext(context.WithoutCancel(r.Context())))
	if err == nil {
		g.answered(r.URL.Path, answer.StatusCode)
	}
	return answer, err
}

// inProcess runs a controller in this process, through a gate.
func (l *lab) inProcess(identity string, duration time.Duration, g *gate) (stop func() error) {
	l.Helper()
	config := l.RESTConfig(l.Admin())
	config.WrapTransport = func(inner http.RoundTripper) http.RoundTripper { g.RoundTripper = inner; return g }
	config.ContentConfig = rest.ContentConfig{ContentType: "application/json"} // that the gate can read
	ctx, cancel := context.WithCancel(l.ctx)
	ended := make(chan error, 1)
	go func() {
		ended <- allocate.Run(ctx, allocate.Config{Client: config, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
			Namespace: "sluice-system", Lease: "sluice-controller", Identity: identity, LeaseDuration: duration,
			Class: "sluice.dev/sluice", Default: true})
	}()
	return func() error { cancel(); return <-ended }
}

// TestLateWrite: a leader has decided, and its process is suspended before the request is sent. The
// next leader gives the address to another Service; then the request arrives.
func TestLateWrite(t *testing.T) {
	l := newLab(t)
	l.namespace("a")
	l.namespace("b")
	pool1 := func(namespace string) string {
		return fmt.Sprintf(`{addresses: [192.0.2.1/32], serviceAllocation: {namespaces: [%s]}}`, namespace)
	}
	l.createPool("one", pool1("a"))
	in := func(namespace string) func(*corev1.Service) {
		return func(s *corev1.Service) { s.Namespace = namespace }
	}
	stopped, held := make(chan struct{}), make(chan struct{})
	var isStopped atomic.Bool
	var once sync.Once
	var late atomic.Int64 // status code of the answer to the request
	first := &gate{answered: func(path string, code int) {
		if strings.HasSuffix(path, "/status") {
			late.Store(int64(code))
		}
	}, hold: func(method, path string, body []byte) <-chan struct{} {
		if method == http.MethodPut && strings.HasSuffix(path, "/status") && bytes.Contains(body, []byte("192.0.2.1")) {
			isStopped.Store(true)
			once.Do(func() { close(held) })
		}
		if isStopped.Load() {
			return stopped
		}
		return nil
	}}
	const duration = 2 * time.Second
	stopFirst := l.inProcess("first", duration, first)
	l.eventually("the first one leads", func() error {
		if l.leader() != "first" {
			return errors.New("not yet")
		}
		return nil
	})
	l.create(service("web", in("a")))
	select {
	case <-held:
	case <-time.After(machine.Slower(time.Minute)):
		t.Fatal("the first leader has not decided")
	}

	// The pool now admits other Services only, and the next leader gives the address to one of
	// them.
	o, err := l.dynamic.Resource(poolKind).Get(l.ctx, "one", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	o.Object["spec"] = pool(t, "one", pool1("b")).Object["spec"]
	if _, err := l.dynamic.Resource(poolKind).Update(l.ctx, o, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	l.create(service("web", in("b")))
	var mu sync.Mutex
	var order []string
	second := &gate{see: func(method, path string, body []byte) {
		if method != http.MethodPut || !strings.HasSuffix(path, "/status") {
			return
		}
		what := "mark "
		if bytes.Contains(body, []byte(`"ip":`)) {
			what = "give "
		}
		mu.Lock()
		defer mu.Unlock()
		order = append(order, what+strings.Split(path, "/")[4])
	}}
	stopSecond := l.inProcess("second", duration, second)
	status := func(namespace string) []string {
		s, err := l.client.CoreV1().Services(namespace).Get(l.ctx, "web", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return addressesOf(s)
	}
	l.eventually("the other Service has the address", func() error {
		if has := status("b"); len(has) != 1 {
			return fmt.Errorf("has %v", has)
		}
		return nil
	})
	stopWatch := l.followInOrder()
	close(stopped) // the first leader resumes and sends its request, much too late
	l.eventually("the request is answered", func() error {
		if late.Load() == 0 {
			return errors.New("not yet")
		}
		return nil
	})
	if late.Load() != http.StatusConflict {
		t.Errorf("the request that came late is answered with %d", late.Load())
	}
	if err := stopFirst(); !errors.Is(err, allocate.ErrLeaseLost) && err != nil {
		t.Errorf("the first leader ended with %v", err)
	}
	if a, b := status("a"), status("b"); len(a) != 0 || len(b) != 1 {
		t.Errorf("a/web has %v, b/web has %v", a, b)
	}
	if err := stopSecond(); err != nil {
		t.Error(err)
	}
	stopWatch()
	// Both Services were written before an address was given: no earlier write could succeed.
	marked := map[string]bool{}
	for _, step := range order {
		what, namespace, _ := strings.Cut(step, " ")
		if what == "mark" {
			marked[namespace] = true
			continue
		}
		if !marked["a"] || !marked["b"] {
			t.Errorf("an address is given before all Services were written: %q", order)
		}
		break
	}
}

// TestAPIServerAway: an API server that does not answer for longer than a Lease ends the leader and
// changes nothing else: each Service has the same address when another process leads, and new ones
// get theirs.
func TestAPIServerAway(t *testing.T) {
	l := newLab(t)
	binary := build(t)
	l.createPool("main", `{addresses: [192.0.2.0/24], avoidBuggyIPs: true}`)
	leading := l.controller(binary, "--lease-duration", "2s")
	const n = 50
	var services []*corev1.Service
	for i := range n {
		services = append(services, service(fmt.Sprintf("s%d", i)))
	}
	l.create(services...)
	before := l.allAssigned(n)
	if err := l.Freeze(); err != nil {
		t.Fatal(err)
	}
	frozen := time.Now()
	l.ended(leading)
	// The Lease's two seconds, plus a pending request (writeTimeout of the package).
	if took := time.Since(frozen); took > machine.Slower(15*time.Second) {
		t.Errorf("the leader ended after %v", took)
	}
	if leading.err == nil {
		t.Error("the leader ended without an error")
	}
	if err := l.Thaw(); err != nil {
		t.Fatal(err)
	}
	next := l.controller(binary, "--lease-duration", "2s")
	l.create(service("late"))
	after := l.allAssigned(n + 1)
	for name, address := range before {
		if after[name] != address {
			t.Errorf("Service %s had %s, and has %s", name, address, after[name])
		}
	}
	l.stop(next)
}

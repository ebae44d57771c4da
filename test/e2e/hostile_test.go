//go:build root

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/control/k8s/k8stest"
	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/test/bed/observer"
	"sluice.dev/sluice/test/bed/topo"
)

// What TestHostileTenant writes and holds open.
const (
	hostileServices = 1000
	hostileRate     = 20 // Services a second, each with up to three slices
	hostileSeed     = 20
	honestFlows     = 100
	honestEvery     = 100 * time.Millisecond // between two changes
)

// Bounds of TestHostileTenant, on top of what the gateway holds before.
const (
	hostileChange      = 50 * time.Millisecond
	hostileMemory      = 512 << 20   // checks take up to 220 MB, the namespace's objects and tables the rest
	hostileDescriptors = 8192 + 1000 // of checks, and a health check node port of each Service
	hostileGoroutines  = 10_000
	hostileEvents      = 1.0 // a second, after the first eventsAtOnce
	eventsAtOnce       = 25
	hostileLines       = 30.0 // a second: problems 4, endpoints 10, health check node ports 10, others
)

// hostileTime is how long the tenant writes.
func hostileTime() time.Duration {
	if full() {
		return 10 * time.Minute
	}
	return 40 * time.Second
}

// TestHostileTenant: 1,000 Services of one namespace, with slices and annotations at their
// extremes, are replaced at random, 20 a second. Beside them another tenant's connections stay
// open, and its changes reach its clients as before; what the gateway holds, logs and writes has
// bounds.
func TestHostileTenant(t *testing.T) {
	t.Parallel()
	h := newHonest(t)
	before := h.changes(t, 5*time.Second)
	base := h.holds(t)
	tenant := &hostileTenant{random: rand.New(rand.NewPCG(hostileSeed, 0)), server: h.server, host: h.Backends[2],
		others: h.addresses()}
	for i := range hostileServices {
		tenant.write(i)
	}
	h.eventually(2*time.Minute, "all Services were read", func() bool {
		v, err := h.gate.Client.Status(h.ctx, false)
		return err == nil && v.Applied && slices.ContainsFunc(v.Sources, func(source status.SourceView) bool {
			return source.Objects > hostileServices/2
		})
	})
	ctx, stop := context.WithTimeout(h.ctx, hostileTime())
	defer stop()
	wrote := make(chan struct{})
	go func() { tenant.run(ctx); close(wrote) }()
	var samples []hostileSample
	sampled := make(chan struct{})
	go func() {
		defer close(sampled)
		for topo.Pause(ctx, 2*time.Second) == nil {
			samples = append(samples, h.holds(t))
		}
	}()
	load := h.hammer(at(apiVIP, webPort), 20*time.Millisecond)
	during := h.changes(t, hostileTime())
	fresh := load.stop(t)
	stop()
	<-wrote
	<-sampled
	t.Logf("seed %d: %d objects written; the honest tenant's changes before: %v; during: %v", hostileSeed,
		tenant.writes, before, during)
	last := h.holds(t)
	h.judgeTraffic(t, during, fresh, &base, &last)
	h.judgeResources(t, &base, &last, samples)
}

// run replaces random Services until ctx is done.
func (h *hostileTenant) run(ctx context.Context) {
	const batch = 2
	tick := time.NewTicker(time.Second * batch / hostileRate)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for range batch {
			h.write(h.random.IntN(hostileServices))
		}
	}
}

// honest is a tenant with open connections, which changes a Service of its own all the time.
type honest struct {
	*lab
	server *k8stest.Server
	flows  *topo.Flows
	random *rand.Rand
	at     int       // the backend that its Service has
	late   latencies // of sleeps
}

const honestVIP = "203.0.113.41"

func newHonest(t *testing.T) *honest {
	t.Helper()
	h := &honest{random: rand.New(rand.NewPCG(hostileSeed, 1))}
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	h.lab = newLab(t, labConfig{Config: topo.Config{Queues: 2, Backends: 3}, small: true, quick: true,
		damaging: true, // kernels count packets to addresses that nobody has as errors
		lasts:    hostileTime() + 5*time.Minute,
		options:  fmt.Sprintf("kubernetes: {enabled: true, kubeconfig: %s}\n", kubeconfig),
		prepare: func(l *lab) {
			h.server = apiServer(t, l.Gateway, kubeconfig)
			serveTenant(t, l)
			stay, change := apiService("stay", "10.96.0.40"), apiService("change", "10.96.0.41")
			change.Status.LoadBalancer.Ingress[0].IP = honestVIP
			change.Spec.Ports = append(change.Spec.Ports, corev1.ServicePort{Name: "u", Port: dnsPort,
				Protocol: corev1.ProtocolUDP})
			for _, s := range []*corev1.Service{stay, change} {
				s.CreationTimestamp = metav1.Now()
			}
			h.server.Set(stay, apiSlice("stay", l.Backends[:2]...), change, h.endpoint(l.Backends[0]),
				&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: gatewayNode}})
		},
	})
	var err error
	h.flows, err = h.Clients[0].OpenTCP(h.ctx, topo.FlowLoad{Targets: []netip.AddrPort{at(apiVIP, webPort),
		at(honestVIP, webPort)}, Flows: honestFlows, Interval: 200 * time.Millisecond, Lifetime: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if n := h.flows.Broken(); n > 0 {
		t.Fatalf("%d of %d connections were not opened: %+v", n, honestFlows, h.flows.States()[0])
	}
	if err := prefer(h.gate.PID()); err != nil {
		t.Fatal(err)
	}
	return h
}

// prefer runs the threads of the gateway before this process's: API server, clients and backends
// run on other machines than a gateway's. A thread inherits its priority from the one that makes
// it.
func prefer(pid int) error {
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return err
	}
	for _, task := range tasks {
		tid, err := strconv.Atoi(task.Name())
		if err != nil {
			return err
		}
		if err := unix.Setpriority(unix.PRIO_PROCESS, tid, -10); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("priority of thread %d: %w", tid, err)
		}
	}
	return nil
}

// serveTenant makes the hostile tenant's backend: addresses that are silent, that refuse, and a
// server for TLS.
func serveTenant(t *testing.T, l *lab) {
	t.Helper()
	host := l.Backends[2]
	for _, p := range []netip.Prefix{silentEndpoints, refusingEndpoints} {
		if err := l.Gateway.Route(p, host.Addr4()); err != nil {
			t.Fatal(err)
		}
	}
	if err := host.Route(refusingEndpoints, netip.Addr{}); err != nil {
		t.Fatal(err)
	}
	listener, err := host.Listen("tcp", netip.AddrPortFrom(host.Addr4(), tlsPort).String())
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(nil)
	s.Listener.Close()
	s.Listener = listener
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // most checks do not speak TLS
	s.StartTLS()
	t.Cleanup(s.Close)
}

// addresses are the ones that a hostile tenant would like to have.
func (h *honest) addresses() []string {
	list := []string{apiVIP, honestVIP, vip4, external4, "10.96.0.40", "10.96.0.41"}
	for _, host := range h.hosts() {
		list = append(list, host.Addr4().String(), host.Addr6().String())
	}
	return list
}

// latencies of changes.
type latencies []time.Duration

func (l latencies) quantile(per1000 int) time.Duration {
	sorted := slices.Sorted(slices.Values(l))
	return sorted[min(len(sorted)*per1000/1000, len(sorted)-1)].Round(10 * time.Microsecond)
}

func (l latencies) String() string {
	return fmt.Sprintf("%d, p50 %v, p99 %v, max %v", len(l), l.quantile(500), l.quantile(990), l.quantile(1000))
}

// endpoint is the slice of the Service that changes.
func (h *honest) endpoint(host *topo.Host) *discoveryv1.EndpointSlice {
	s := apiSlice("change", host)
	s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: ptr("u"), Port: s.Ports[0].Port,
		Protocol: ptr(corev1.ProtocolUDP)})
	return s
}

// changes moves the honest tenant's Service from one backend to the other again and again, and
// measures from the write until a datagram is answered by the new one. Each datagram is the first
// of a flow.
func (h *honest) changes(t *testing.T, lasts time.Duration) (l latencies) {
	t.Helper()
	err := h.Clients[0].Run(func() error {
		for end := time.Now().Add(lasts); time.Now().Before(end); {
			h.at = 1 - h.at
			next, answered := h.endpoint(h.Backends[h.at]), make(chan struct{}, 1)
			began := time.Now()
			h.server.Set(next)
			for waits := true; waits; {
				if time.Since(began) > time.Minute {
					return fmt.Errorf("a minute after a change %s does not answer", h.Backends[h.at].Name)
				}
				conn, err := net.Dial("udp", at(honestVIP, dnsPort).String())
				if err != nil {
					return err
				}
				go askOnce(conn, h.Backends[h.at].Name, answered)
				sent := time.Now()
				select {
				case <-answered:
					waits = false
				case <-time.After(time.Millisecond):
					h.late = append(h.late, time.Since(sent)-time.Millisecond)
				}
			}
			l = append(l, time.Since(began))
			time.Sleep(honestEvery/2 + time.Duration(h.random.Int64N(int64(honestEvery))))
		}
		return nil
	})
	if err != nil {
		t.Fatalf("%v\n%s", err, h.gate.Log())
	}
	return l
}

// askOnce sends a datagram, and reports whether a backend answered it.
func askOnce(conn net.Conn, backend string, answered chan struct{}) {
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := io.WriteString(conn, "who?"); err != nil {
		return
	}
	answer := make([]byte, 64)
	if n, err := conn.Read(answer); err == nil && strings.HasPrefix(string(answer[:n]), backend+" ") {
		select {
		case answered <- struct{}{}:
		default: // another one has
		}
	}
}

// hostileSample is what the gateway holds, and what it has written so far.
type hostileSample struct {
	at                      time.Time
	resident                uint64 // bytes
	descriptors, goroutines int
	events, lines           int
	gateway, own            observer.Usage
}

func (h *honest) holds(t *testing.T) (s hostileSample) {
	t.Helper()
	s.at = time.Now()
	var err error
	if s.resident, err = memoryField(fmt.Sprintf("/proc/%d/status", h.gate.PID()), "VmRSS"); err != nil {
		t.Error(err)
	}
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", h.gate.PID()))
	if err != nil {
		t.Error(err)
	}
	text, err := os.ReadFile(h.gate.LogFile())
	if err != nil {
		t.Error(err)
	}
	events, patches := h.server.Events()
	s.descriptors, s.lines, s.events = len(fds), bytes.Count(text, []byte("\n")), len(events)+patches
	if _, body, err := h.healthFrom(h.Gateway, at("127.0.0.1", 9470), "/metrics"); err == nil {
		_, value, _ := strings.Cut(body, "\ngo_goroutines ")
		_, _ = fmt.Sscan(value, &s.goroutines)
	}
	s.gateway, s.own = h.processor(t)
	return s
}

// processor is the processor time of the gateway, and of this process, which is client, backend and
// API server.
func (h *honest) processor(t *testing.T) (gateway, own observer.Usage) {
	t.Helper()
	for pid, u := range map[int]*observer.Usage{h.gate.PID(): &gateway, os.Getpid(): &own} {
		var err error
		if *u, err = observer.ProcessUsage(pid); err != nil && !errors.Is(err, observer.ErrOneProcessor) {
			t.Error(err)
		}
	}
	return gateway, own
}

// judgeTraffic holds the honest tenant's connections and changes to their bounds.
func (h *honest) judgeTraffic(t *testing.T, during latencies, fresh *topo.Result, base, last *hostileSample) {
	t.Helper()
	if n := h.flows.Broken(); n > 0 {
		t.Errorf("%d of %d connections broke", n, honestFlows)
	}
	r := h.flows.Stop()
	if fresh.Failed() > 0 {
		t.Errorf("new connections of the honest tenant: %v, errors %v", fresh, fresh.Errors)
	}
	gateway, own := last.gateway.Sub(base.gateway), last.own.Sub(base.own)
	// A change takes longer by what threads wait for a CPU where others share it, and by what
	// sleepers wake late. Where they wait for longer than they run, the slowest changes are those
	// that others' work delayed, and the median is judged.
	part := float64(gateway.Own+own.Own) / float64(gateway.Own+own.Own+gateway.Waited+own.Waited)
	name, took, late := "p99", during.quantile(990), h.late.quantile(990)
	if part < 0.5 {
		name, took = "p50", during.quantile(500)
	}
	counts, bound := time.Duration(part*float64(took)), hostileChange+2*late
	t.Logf("threads waited for a CPU %.0f %% of the time that they wanted one, and woke %v late (p99): %v (%s) of a "+
		"change counts as %v", 100*(1-part), late, took, name, counts)
	t.Logf("%d answers on open connections, %d on new ones; the gateway took %.0f %% of a CPU", r.Requests,
		fresh.Requests, 100*gateway.Own.Seconds()/last.at.Sub(base.at).Seconds())
	if counts > bound {
		t.Errorf("changes took %v (%s), %v without what threads waited for a CPU; want %v", took, name, counts, bound)
	}
}

// judgeResources holds what the gateway took to its bounds.
func (h *honest) judgeResources(t *testing.T, base, last *hostileSample, samples []hostileSample) {
	t.Helper()
	most := *base
	for _, s := range samples {
		most.resident, most.descriptors = max(most.resident, s.resident), max(most.descriptors, s.descriptors)
		most.goroutines = max(most.goroutines, s.goroutines)
	}
	seconds := last.at.Sub(base.at).Seconds()
	for _, b := range []struct {
		what               string
		before, got, bound float64
	}{
		{"MiB resident", float64(base.resident >> 20), float64(most.resident >> 20), hostileMemory >> 20},
		{"descriptors", float64(base.descriptors), float64(most.descriptors), hostileDescriptors},
		{"goroutines", float64(base.goroutines), float64(most.goroutines), hostileGoroutines},
		{"requests about Events", float64(base.events), float64(last.events), eventsAtOnce + hostileEvents*seconds + 1},
		{"log lines", float64(base.lines), float64(last.lines), hostileLines * seconds},
	} {
		t.Logf("%s: %.0f before, %.0f at most in %.0f s; %.0f more are allowed", b.what, b.before, b.got, seconds,
			b.bound)
		if b.got > b.before+b.bound {
			t.Errorf("%.0f %s, want %.0f at most", b.got, b.what, b.before+b.bound)
		}
	}
}

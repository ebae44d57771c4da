//go:build root

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/test/bed/launch"
	"sluice.dev/sluice/test/bed/topo"
)

const (
	rangeVIP  = "203.0.113.50" // for clients of 192.0.2.0/24, who are not here
	leastVIP  = "203.0.113.51" // least connections
	awayVIP   = "203.0.113.52" // policy Local, and nobody here
	nobodyVIP = "203.0.113.53" // no endpoints
)

// rangeService has source ranges, or a scheduler by connections.
func rangeService(name, vip, more, spec string, hosts ...*topo.Host) string {
	text := "{apiVersion: v1, kind: Service, metadata: {name: " + name + ", annotations: {" + more + "}}, " +
		"spec: {type: LoadBalancer, ipFamilies: [IPv4], ports: [{port: 80}]" + spec +
		"}, status: {loadBalancer: {ingress: [{ip: " + vip + "}]}}}\n---\n" +
		"{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: " + name +
		", labels: {kubernetes.io/service-name: " + name + "}}, " +
		"addressType: IPv4, ports: [{port: 8080}], endpoints: ["
	for _, h := range hosts {
		text += "{addresses: [" + h.Addr4().String() + "]},"
	}
	return text + "]}\n"
}

// TestExplain asks the daemon about connections before they are opened, and then opens
// them: each must get what was said, backend included, and the reason counted that was named.
func TestExplain(t *testing.T) {
	t.Parallel()
	l := newLab(t, labConfig{Config: topo.Config{Queues: 2, Backends: 4}})
	for name, text := range map[string]string{
		"range": rangeService("range", rangeVIP, "", ", loadBalancerSourceRanges: [192.0.2.0/24]", l.Backends...),
		"least": rangeService("least", leastVIP, "sluice.dev/scheduler: wlc", "", l.Backends...),
	} {
		if err := l.gate.Write(name+".yaml", []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	away := launch.Service{Name: "away", Port: webPort, VIPs: []string{awayVIP}, Local: true,
		Endpoints: endpoints(l.Backends...)}
	nobody := launch.Service{Name: "nobody", Port: webPort, VIPs: []string{nobodyVIP}}
	l.apply(away, nobody)
	l.applied()

	told := map[string]int{}
	port := uint16(41000)
	for i, target := range []netip.AddrPort{
		at(vip4, webPort), at(vip6, webPort), at(external4, webPort), netip.AddrPortFrom(l.Gateway.Addr4(),
			webNodePort), at(leastVIP, webPort),
		at(rangeVIP, webPort), at(awayVIP, webPort), at(nobodyVIP, webPort), netip.AddrPortFrom(l.Gateway.Addr4(), 22),
	} {
		times := 20
		if i >= 5 { // not served, and some of it by silence, which takes time to hear
			times = 2
		}
		for range times {
			port++
			told[l.explained(target, port)]++
		}
	}
	t.Log(told)
	for what, n := range map[string]int{
		"forward": 100, "drop source_range": 2, "drop no_local_endpoints": 2, "reject no_endpoints": 2, "pass": 2,
	} {
		if told[what] != n {
			t.Errorf("%d times %s, want %d", told[what], what, n)
		}
	}

	// As people see it, and by the same socket.
	out, err := l.gate.Command(l.ctx, "explain", "--from", l.Clients[0].Addr4().String(), "--to", awayVIP+":80")
	if err != nil || !strings.Contains(out, "10.72.0.100:8080 out: policy Local, and it is not on this node") ||
		!strings.Contains(out, "drop (no_local_endpoints)") {
		t.Errorf("%v\n%s", err, out)
	}
}

// explained asks about a connection from the first client's port to target, opens it,
// compares, and returns the verdict.
func (l *lab) explained(target netip.AddrPort, port uint16) string {
	l.t.Helper()
	from := netip.AddrPortFrom(l.Clients[0].Addr4(), port)
	if target.Addr().Is6() {
		from = netip.AddrPortFrom(l.Clients[0].Addr6(), port)
	}
	said := l.ask(from, target, false)
	verdict := strings.TrimSpace(said.Verdict + " " + said.Reason)
	before := l.counted(said.Reason)
	patience := 10 * time.Second
	if said.Verdict == status.VerdictDrop {
		patience = 500 * time.Millisecond
	}
	c, err := l.dialFrom(from, target, patience)
	if err == nil {
		l.t.Cleanup(func() { c.Close() }) // not before: connections that end are a scheduler's business
	}
	switch said.Verdict {
	case status.VerdictForward:
		if err != nil {
			l.t.Errorf("%v -> %v: said is %s, and %v", from, target, verdict, err)
			break
		}
		if got := l.backendOf(from); got != said.Backend || said.BackendUnknown {
			l.t.Errorf("%v -> %v has %v, said was %v (unknown: %v)", from, target, got, said.Backend,
				said.BackendUnknown)
		}
		// The connection is open now: it is known, and stays where it is.
		now := l.ask(from, target, true)
		if now.Verdict != status.VerdictForward || now.Backend != said.Backend || !strings.Contains(now.Steps[1].Text,
			"from its client") {
			l.t.Errorf("%v -> %v, once it is open: %+v", from, target, now)
		}
	case status.VerdictReject:
		if counted := l.countedSince(said.Reason, before); !errors.Is(err, syscall.ECONNREFUSED) || counted == 0 {
			l.t.Errorf("%v -> %v: said is %s, and %v; counted %d", from, target, verdict, err, counted)
		}
	case status.VerdictDrop:
		counted := l.countedSince(said.Reason, before)
		if !errors.Is(err, context.DeadlineExceeded) && !isTimeout(err) || counted == 0 {
			l.t.Errorf("%v -> %v: said is %s, and %v; counted %d", from, target, verdict, err, counted)
		}
	case status.VerdictPass:
		// The node's own closed port: its kernel answers.
		if !errors.Is(err, syscall.ECONNREFUSED) || l.backendOf(from).IsValid() {
			l.t.Errorf("%v -> %v: said is %s, and %v", from, target, verdict, err)
		}
	}
	return verdict
}

func (l *lab) ask(from, target netip.AddrPort, established bool) status.ExplainView {
	l.t.Helper()
	q, err := status.ParseExplain(from.String(), target.String()+"/TCP", established)
	if err != nil {
		l.t.Fatal(err)
	}
	v, err := l.gate.Client.Explain(l.ctx, &q)
	if err != nil {
		l.t.Fatal(err)
	}
	if len(v.Steps) < 3 {
		text, _ := json.Marshal(v)
		l.t.Fatalf("%s", text)
	}
	return v
}

// counted is how many packets the workers dropped for a reason.
func (l *lab) counted(reason string) uint64 {
	l.t.Helper()
	s, err := l.gate.Client.Stats(l.ctx)
	if err != nil {
		l.t.Fatal(err)
	}
	return sum(&s, func(w *status.WorkerView) uint64 { return w.Drops[reason] })
}

// countedSince returns by how much the number of such packets has grown. It waits a second for the
// first: a worker publishes its counters after the batch, so an answer may arrive before.
func (l *lab) countedSince(reason string, before uint64) (n uint64) {
	l.t.Helper()
	for end := time.Now().Add(time.Second); ; time.Sleep(5 * time.Millisecond) {
		if n = l.counted(reason) - before; n > 0 || time.Now().After(end) {
			return n
		}
	}
}

// dialFrom connects from a port of the first client's.
func (l *lab) dialFrom(from, target netip.AddrPort, patience time.Duration) (c net.Conn, err error) {
	ctx, cancel := context.WithTimeout(l.ctx, patience)
	defer cancel()
	err = l.Clients[0].Run(func() (err error) {
		d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(from), KeepAlive: -1}
		c, err = d.DialContext(ctx, "tcp", target.String())
		return err
	})
	return c, err
}

// backendOf is where the flow of a client's port goes.
func (l *lab) backendOf(from netip.AddrPort) (backend netip.AddrPort) {
	l.t.Helper()
	client, err := status.ParseEndpoint(from.String())
	if err != nil {
		l.t.Fatal(err)
	}
	err = l.gate.Client.Flows(l.ctx, status.FlowFilter{Client: client}, func(f *status.FlowView) error {
		backend = f.Backend
		return nil
	})
	if err != nil {
		l.t.Fatal(err)
	}
	return backend
}

func isTimeout(err error) bool {
	var n net.Error
	return errors.As(err, &n) && n.Timeout()
}

//go:build root

package e2e

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"time"

	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/test/bed/launch"
	"sluice.dev/sluice/test/bed/machine"
	"sluice.dev/sluice/test/bed/topo"
)

// TestUDPFollowsItsFrontend: the load balancer's address, an external IP and a node port go from a
// Service to one of another namespace, and back. Clients keep their sockets: their next datagrams
// reach the other Service's pod, over both families, and no flow is listed for the former one.
func TestUDPFollowsItsFrontend(t *testing.T) {
	t.Parallel()
	const port, nodePort, podPort = 60, 30060, 9060
	const ours, theirs = "default/ours:p", "tenant/theirs:p"
	l := newLab(t, labConfig{Config: topo.Config{Backends: 2, Queues: 2}, small: true})
	for _, h := range l.Backends {
		for _, a := range []netip.Addr{h.Addr4(), h.Addr6()} {
			answers(t, h, netip.AddrPortFrom(a, podPort), h.Name)
		}
	}
	service := func(name, namespace string, pod *topo.Host, has bool) launch.Service {
		s := launch.Service{Name: name, Namespace: namespace, UDP: true, Port: port, Endpoints: []launch.Endpoint{
			{Addr: pod.Addr4(), Port: podPort, Node: pod.Name}, {Addr: pod.Addr6(), Port: podPort, Node: pod.Name}}}
		if has {
			s.VIPs, s.ExternalIPs = []string{"203.0.113.60", "2001:db8:f::60"}, []string{"203.0.113.61"}
			s.NodePort = nodePort
		}
		return s
	}
	give := func(to string) {
		l.apply(service("ours", "", l.Backends[0], to == ours),
			service("theirs", "tenant", l.Backends[1], to == theirs))
		l.applied()
	}
	give(ours)

	targets := []netip.AddrPort{at("203.0.113.60", port), at("2001:db8:f::60", port), at("203.0.113.61", port),
		netip.AddrPortFrom(l.Gateway.Addr4(), nodePort)}
	var conns []net.Conn
	for _, to := range targets {
		c, err := l.Clients[0].Dial(l.ctx, "udp", to.String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		conns = append(conns, c)
	}
	expect := func(when, pod, owner string) {
		t.Helper()
		for i, c := range conns {
			for range 3 {
				if got := question(t, c); got != pod {
					t.Fatalf("%s, %v is answered by %q, want %q", when, targets[i], got, pod)
				}
			}
			listed := 0
			filter := status.FlowFilter{VIP: status.Endpoint{
				Prefix: netip.PrefixFrom(targets[i].Addr(), targets[i].Addr().BitLen()), Port: targets[i].Port()}}
			err := l.gate.Client.Flows(l.ctx, filter, func(f *status.FlowView) error {
				if listed++; f.Service != owner {
					t.Errorf("%s, a flow of %v is %s's, want %s's: %+v", when, targets[i], f.Service, owner, *f)
				}
				return nil
			})
			if err != nil || listed != 1 {
				t.Errorf("%s, %d flows of %v, want 1: %v", when, listed, targets[i], err)
			}
		}
	}
	expect("at first", l.Backends[0].Name, ours)
	give(theirs)
	expect("with the frontends theirs", l.Backends[1].Name, theirs)
	give(ours)
	expect("with the frontends ours again", l.Backends[0].Name, ours)
	give("") // nobody's
	give(theirs)
	expect("with the frontends theirs after they were nobody's", l.Backends[1].Name, theirs)
}

// question sends a datagram, and returns its answer. It asks again where none comes.
func question(t *testing.T, c net.Conn) string {
	t.Helper()
	var answer string
	err := topo.Until(context.Background(), machine.Slower(10*time.Second), 0, func(context.Context) error {
		if _, err := c.Write([]byte("who")); err != nil {
			return err
		}
		b := make([]byte, 512)
		_ = c.SetReadDeadline(time.Now().Add(time.Second))
		n, err := c.Read(b)
		answer = string(b[:n])
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

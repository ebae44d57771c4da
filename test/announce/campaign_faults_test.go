//go:build root

package announce

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"sluice.dev/sluice/test/bed/cluster"
	"sluice.dev/sluice/test/bed/launch"
	"sluice.dev/sluice/test/bed/reach"
)

// faults are the faults of the campaign, in order.
var faults = []fault{
	// Processes, and resources that the machine gives them.
	{what: "process (SIGSTOP)", program: ofGateway, begin: stopped(ofGateway)},
	{what: "process (SIGSTOP)", program: ofAnnouncer, begin: stopped(ofAnnouncer)},
	{what: "process (SIGSTOP)", program: ofController, begin: stopped(ofController)},
	{what: "no descriptors", program: ofGateway, begin: withoutDescriptors(ofGateway)},
	{what: "no descriptors", program: ofAnnouncer, begin: withoutDescriptors(ofAnnouncer)},
	{what: "no descriptors", program: ofController, begin: withoutDescriptors(ofController)},
	{what: "state directory full", program: ofGateway, begin: fullState(ofGateway)},
	{what: "state directory full", program: ofAnnouncer, begin: fullState(ofAnnouncer)},
	{what: "hangs", program: ofAPIServer, begin: frozen, proof: (*campaign).serves, after: 45 * time.Second},
	{what: "gone", program: ofAPIServer, begin: gone, proof: (*campaign).serves, after: 20 * time.Second},

	// Loops of the gateway, by their heartbeats.
	{what: "control loop", program: ofGateway, loop: "control loop", listen: reportWithin},
	{what: "builder of large tables", program: ofGateway, loop: "builder of large tables", trigger: manyEndpoints},
	{what: "list of problems", program: ofGateway, loop: "list of problems", trigger: manyProblems},
	{what: "search for flows", program: ofGateway, loop: "search for flows of closed frontends", trigger: deleted,
		listen: reportWithin},
	{what: "mirror of routes", program: ofGateway, loop: "mirror of routes and neighbours"},
	{what: "reader of routes", program: ofGateway, loop: "reader of routes and neighbours", trigger: newAddress},
	{what: "watch of interfaces", program: ofGateway, loop: "watch of interfaces"},
	{what: "reader of changes of interfaces", program: ofGateway, loop: "reader of changes of interfaces",
		trigger: newInterface},
	{what: "health checks", program: ofGateway, loop: "health checks"},
	{what: "connections of checks", program: ofGateway, loop: "connections of health checks"},
	{what: "reader of manifests", program: ofGateway, loop: "reader of manifests",
		within: 6 * time.Minute}, // it counts as late after 5 minutes
	{what: "readers of objects", program: ofGateway, loop: "reader of * from the API server"},
	{what: "watch of configuration", program: ofGateway, loop: "watch of the configuration", trigger: newConfiguration},
	{what: "watch of certificates", program: ofGateway, loop: "watch of certificates",
		after: time.Minute}, // they are read each minute
	{what: "watch of addresses", program: ofGateway, loop: "watch of the node's addresses", trigger: newAddress},
	{what: "affinity pins", program: ofGateway, loop: "affinity pins", trigger: lostPin},
	{what: "placement of workers", program: ofGateway, loop: "placement of workers"},
	{what: "health check node ports", program: ofGateway, loop: "health check node ports", trigger: newLocal},
	{what: "list of denied clients", program: ofGateway, loop: "list of denied clients", trigger: denied},
	{what: "watch of counters", program: ofGateway, loop: "watch of counters"},
	{what: "heartbeat for the kernel", program: ofGateway, loop: "heartbeat for the kernel program",
		after: 40 * time.Second},
	{what: "exchange of flows", program: ofGateway, loop: "exchange of flows with other gateways"},
	{what: "members of the group", program: ofGateway, loop: "members of the group"},

	// Its other goroutines.
	at(ofGateway, "worker", "fastpath/runner.go", "pace := NewPace(&r.c.Waiting, now)\n\tfor {"),
	at(ofGateway, "pulse", "announce/pulse/server.go", "case <-tick.C:"),
	at(ofGateway, "status", "gateway/daemon/gateway.go", "func (d *Daemon) Status() status.StatusView {"),
	at(ofGateway, "watch for :10256", "serve/health/proxy.go", "case <-tick.C:"),
	at(ofGateway, "Events", "control/k8s/events.go", "list, changed := problems()"),
	at(ofGateway, "log", "internal/logs/writer.go", "w.began = time.Now()\n\tw.mu.Unlock()"),
	reported(at(ofGateway, "write to the flow log", "gateway/flowlog/log.go",
		"l.began = time.Now()\n\t}\n\tl.mu.Unlock()")),
	reported(at(ofGateway, "write to the journal", "internal/journal/journal.go",
		"j.began = time.Now()\n\tj.mu.Unlock()")),

	// The announcer.
	{what: "announcement loop", program: ofAnnouncer, loop: "announcement loop", listen: reportWithin},
	{what: "reader of the pulse", program: ofAnnouncer, loop: "reader of the gateway's pulse"},
	{what: "readers of objects", program: ofAnnouncer, loop: "reader of *.sluice.dev", trigger: newPool},
	{what: "readers of Services and Nodes", program: ofAnnouncer, loop: "reader of [sn]*s"},
	{what: "links of layer 2", program: ofAnnouncer, loop: "link *"},
	{what: "readers of layer 2", program: ofAnnouncer, loop: "reader of * on *", trigger: askARP},
	at(ofAnnouncer, "status", "announce/view/socket.go", "\t\tgo func() {"),
	with(sessionEnds, at(ofAnnouncer, "log", "internal/logs/writer.go", "w.began = time.Now()\n\tw.mu.Unlock()")),

	// The controller.
	{what: "term of the leader", program: ofController, loop: "term of the leader", trigger: newPool},
	{what: "writers", program: ofController, loop: "writer * of Services", listen: reportWithin},
	{what: "election", program: ofController, loop: "election"},
	{what: "reader of Services", program: ofController, loop: "reader of Services"},
	{what: "reader of Namespaces", program: ofController, loop: "reader of Namespaces", trigger: newNamespace},
	{what: "reader of Nodes", program: ofController, loop: "reader of Nodes", trigger: newNode},
	{what: "reader of pools", program: ofController, loop: "reader of *.sluice.dev", trigger: newPool},
}

// at is a goroutine that stops after a text in a source file.
func at(program, what, file, after string) fault {
	return fault{what: what, program: program, stop: launch.Stop{Name: "at " + what, File: file, After: after}}
}

// with returns a fault with a trigger.
func with(trigger func(*campaign) error, f fault) fault { f.trigger = trigger; return f }

// reported returns a fault that must be reported even if everything works.
func reported(f fault) fault { f.report = true; return f }

// pid returns the process of a program.
func (c *campaign) pid(program string) int {
	switch program {
	case ofGateway:
		return c.gate.PID()
	case ofAnnouncer:
		return c.announcer.PID()
	}
	return c.Controller.PID()
}

// stopped suspends a process.
func stopped(program string) func(*campaign) (func() error, error) {
	return func(c *campaign) (func() error, error) {
		pid := c.pid(program)
		return func() error { return unix.Kill(pid, unix.SIGCONT) }, unix.Kill(pid, unix.SIGSTOP)
	}
}

// withoutDescriptors refuses every new file descriptor to a process.
func withoutDescriptors(program string) func(*campaign) (func() error, error) {
	return func(c *campaign) (func() error, error) {
		pid := c.pid(program)
		var before unix.Rlimit
		if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &before); err != nil {
			return nil, err
		}
		none := unix.Rlimit{Cur: 3, Max: before.Max}
		return func() error { return unix.Prlimit(pid, unix.RLIMIT_NOFILE, &before, nil) },
			unix.Prlimit(pid, unix.RLIMIT_NOFILE, &none, nil)
	}
}

// mount mounts a small file system as a program's state directory.
func (c *campaign) mount(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, stateSize); err != nil {
		return fmt.Errorf("mount %s: %w", dir, err)
	}
	c.mounted = append(c.mounted, dir)
	return nil
}

// fullState fills the state directory of a program.
func fullState(program string) func(*campaign) (func() error, error) {
	return func(c *campaign) (func() error, error) {
		dir := map[string]string{ofGateway: c.gate.StateDir(), ofAnnouncer: c.announcer.StateDir()}[program]
		path := filepath.Join(dir, "filler")
		f, err := os.Create(path)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		for block := make([]byte, 1<<20); len(block) > 0; {
			if _, err := f.Write(block); errors.Is(err, unix.ENOSPC) {
				block = block[:len(block)/2]
			} else if err != nil {
				return nil, err
			}
		}
		return func() error { return os.Remove(path) }, nil
	}
}

// frozen suspends the API server: it accepts connections, but answers none.
func frozen(c *campaign) (func() error, error) {
	return c.Cluster.Thaw, c.Cluster.Freeze()
}

// gone ends the API server: connections are refused.
func gone(c *campaign) (func() error, error) {
	return func() error { return c.Cluster.StartAPIServer(c.ctx) }, c.Cluster.StopAPIServer(0)
}

// serves succeeds if the first Service answers new connections.
func (c *campaign) serves() error {
	for range 10 {
		if err := c.answers(c.ctx, c.base); err != nil {
			return err
		}
	}
	return nil
}

// manyEndpoints orders a Service whose table is built beside the control loop.
func manyEndpoints(c *campaign) error {
	_, _, err := c.order(func(_ *corev1.Service, slice *discoveryv1.EndpointSlice) {
		for n := range 500 {
			slice.Endpoints = append(slice.Endpoints, cluster.NewEndpoint("far", cluster.NumberedEndpoint(n)))
		}
	})
	return err
}

// manyProblems orders Services with more problems than the control loop itself lists. It lists all
// by itself before it answers a status that waits, so more are ordered until another goroutine has
// to.
func manyProblems(c *campaign) error {
	for range 5 {
		for range 60 {
			_, _, err := c.order(func(s *corev1.Service, _ *discoveryv1.EndpointSlice) {
				s.Annotations = map[string]string{}
				for n := range 8 {
					s.Annotations[fmt.Sprintf("sluice.dev/unknown-%d", n)] = "true"
				}
			})
			if err != nil {
				return err
			}
		}
		for range 100 {
			if c.stops[ofGateway].Stands() {
				return nil
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	return nil
}

// newLocal creates a Service that has a health check node port.
func newLocal(c *campaign) error {
	_, _, err := c.order(func(s *corev1.Service, _ *discoveryv1.EndpointSlice) {
		s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	})
	return err
}

// deleted deletes a Service that has a flow.
func deleted(c *campaign) error {
	var o *corev1.Service
	if _, err := c.serve(func(s *corev1.Service, _ *discoveryv1.EndpointSlice) { o = s }); err != nil {
		return err
	}
	return c.Cluster.Delete(c.ctx, o)
}

// lostPin removes the endpoint to which a client is pinned.
func lostPin(c *campaign) error {
	var endpoints *discoveryv1.EndpointSlice
	_, err := c.serve(func(s *corev1.Service, slice *discoveryv1.EndpointSlice) {
		s.Spec.SessionAffinity, endpoints = corev1.ServiceAffinityClientIP, slice
	})
	if err != nil {
		return err
	}
	endpoints.Endpoints = nil
	return c.Cluster.Put(c.ctx, endpoints)
}

// newConfiguration changes the gateway's file.
func newConfiguration(c *campaign) error {
	text, err := os.ReadFile(c.gate.ConfigFile())
	if err != nil {
		return err
	}
	return c.gate.WriteConfiguration(string(text) + "# changed\n")
}

// denied denies an address that no client has.
func denied(c *campaign) error {
	_, err := c.gate.Client.Deny(c.ctx, netip.MustParsePrefix("192.0.2.250/32"), time.Hour)
	return err
}

// newAddress gives the node another address.
func newAddress(c *campaign) error {
	c.services++
	a := netip.AddrFrom4([4]byte{192, 0, 2, byte(c.services)})
	return c.host.AddAddresses(c.host.Interfaces[0].Name, netip.PrefixFrom(a, 32))
}

// newPool makes a pool.
func newPool(c *campaign) error {
	c.services++
	return c.Cluster.Apply(c.ctx, fmt.Appendf(nil, "apiVersion: sluice.dev/v1alpha1\nkind: AddressPool\n"+
		"metadata: {name: more-%d}\nspec: {addresses: [198.19.0.%d/32]}\n", c.services, c.services%250))
}

// sessionEnds makes the router restart its session.
func sessionEnds(c *campaign) error {
	_, err := c.Router.Ask(c.ctx, "restart g0")
	return err
}

// newNamespace makes a namespace.
func newNamespace(c *campaign) error {
	return c.Cluster.Apply(c.ctx, []byte("apiVersion: v1\nkind: Namespace\nmetadata: {name: other}\n"))
}

// newNode makes a Node.
func newNode(c *campaign) error {
	return c.Cluster.Put(c.ctx, cluster.NewNode("other", "", netip.MustParseAddr("192.0.2.78")))
}

// newInterface makes a pair of interfaces in the gateway's namespace.
func newInterface(c *campaign) error {
	return c.host.Run(func() error {
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "other"}, PeerName: "end"})
	})
}

// askARP sends an ARP request of the router for an address that no host of the front network has.
func askARP(c *campaign) error {
	a := c.host.Addr4().As4()
	a[3] = 250
	ctx, cancel := context.WithTimeout(c.ctx, time.Second)
	defer cancel()
	nobody := netip.AddrPortFrom(netip.AddrFrom4(a), reach.Port)
	if conn, err := c.Net.Router.Dial(ctx, "tcp", nobody.String()); err == nil {
		conn.Close()
	}
	return nil
}

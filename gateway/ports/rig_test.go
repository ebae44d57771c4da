//go:build root

package ports

import (
	"context"
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/fastpath/xsk/xsktest"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/gateway/workers"
	"sluice.dev/sluice/host/nic/devices"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// addNIC makes a device of so many queues.
func addNIC(t *testing.T, queues int) {
	t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.NumTxQueues, attrs.NumRxQueues = nic, queues, queues
	v := netlink.NewVeth(attrs)
	v.PeerName = "peer0"
	must(t, netlink.LinkAdd(v))
	for _, name := range []string{nic, "peer0"} {
		l, err := netlink.LinkByName(name)
		must(t, err)
		must(t, netlink.LinkSetUp(l))
	}
}

func deleteNIC(t *testing.T) {
	t.Helper()
	l, err := netlink.LinkByName(nic)
	must(t, err)
	must(t, netlink.LinkDel(l))
}

// smallConfig forwards on nic0, with little memory.
func smallConfig() *config.Configuration {
	c := config.Default()
	c.Interfaces = []config.Interface{{Name: nic, Mode: config.ModeAuto, ZeroCopy: config.ZeroCopyAuto}}
	c.Tuning.RingSize = 128
	c.HostLink.Addresses = nil
	return c
}

// rig is ports whose workers run.
type rig struct {
	s       *Set
	workers *workers.Group
	// endWorkers ends the workers and waits for them. The ports must be closed after that.
	endWorkers, cancelWorkers func()
}

// newRig makes ports and workers for the devices as they are, and starts the workers.
func newRig(t *testing.T, c *config.Configuration, k Program) *rig {
	t.Helper()
	found, err := devices.Find(c)
	must(t, err)
	plan, err := devices.NewPlan(found.Devices, c)
	must(t, err)
	table, err := flowtable.NewHeap(flowtable.Config{IPv4Flows: 1024, IPv6Flows: 1024,
		Timeouts: flowtable.DefaultTimeouts()})
	must(t, err)
	log, snapshot := slog.New(slog.DiscardHandler), new(services.Handle)
	snapshot.Store(&services.Snapshot{})
	g, err := workers.New(workers.Config{
		Settings: c, Log: log, Plan: plan, FrameSize: found.Frames.Size,
		Flows: table, Services: snapshot, Hops: nexthop.NewTable(),
	})
	must(t, err)
	s, err := New(Config{Settings: c, Log: log, Found: found, Plan: plan, Workers: g, Program: k})
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	g.Run(ctx, func(err error) { t.Error(err) })
	r := &rig{s: s, workers: g, endWorkers: func() { cancel(); g.Wait() }, cancelWorkers: cancel}
	t.Cleanup(r.endWorkers)
	return r
}

// close closes the ports and frees the workers, which must have ended.
func (r *rig) close(t *testing.T) {
	t.Helper()
	must(t, r.s.Close())
	must(t, r.workers.Close())
}

// TestCloseWithoutWorkers: a port that is closed when nobody waits for the workers
// any more, or when they have ended, leaves no socket behind.
func TestCloseWithoutWorkers(t *testing.T) {
	xsktest.EnterNamespace(t)
	addNIC(t, 2)
	r := newRig(t, smallConfig(), nil)
	p := r.s.ports[0]
	must(t, r.s.bindPort(t.Context(), p))
	before := socketsOf(t)
	r.cancelWorkers()
	for id := range r.workers.Len() {
		for r.workers.Do(t.Context(), id, func(*fastpath.Worker) {}) == nil { // it has not ended yet
		}
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.s.closePort(over, p); err == nil {
		t.Error("closing sockets that are still a worker's is no error")
	}
	r.endWorkers()
	r.close(t)
	if after := socketsOf(t); after != before-2 {
		t.Errorf("%d AF_XDP sockets before, %d after, of 2 that were to be closed", before, after)
	}
}

// socketsOf counts the sockets that this process has open.
func socketsOf(t *testing.T) (n int) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	for _, e := range entries {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && strings.HasPrefix(to, "socket:") {
			n++
		}
	}
	return n
}

package daemon

import (
	"context"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/cmd/sluice/internal/devices"
	"sluice.dev/sluice/control/config"
	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/fastpath/stats"
	"sluice.dev/sluice/flowtable"
)

// isolate moves the test to a network namespace of its own, which ends with its thread.
func isolate(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("needs root: namespaces, AF_XDP")
	}
	runtime.LockOSThread() // never unlocked: the thread, and with it the namespace, dies
	must(t, unix.Unshare(unix.CLONE_NEWNET))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

const nic = "nic0"

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
	c.Frames.PerQueue = 256
	c.Rings = config.Rings{Rx: 64, Tx: 64, Fill: 64, Completion: 64}
	c.HostLink.Enabled = false
	return c
}

// testDatapath makes workers for the device as it is, and starts them. The function
// it returns ends them; the test must close the datapath after that.
func testDatapath(t *testing.T, c *config.Configuration) (d *datapath, endWorkers func()) {
	t.Helper()
	found, err := devices.Find(c)
	must(t, err)
	table, err := flowtable.NewHeap(flowtable.Config{IPv4Flows: 1024, IPv6Flows: 1024, Timeouts: flowtable.DefaultTimeouts()})
	must(t, err)
	d, err = newDatapath(c, slog.New(slog.DiscardHandler), tables{flows: table}, new(services.Handle), nexthop.NewTable(), found, nil)
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	d.run(ctx, func(err error) { t.Error(err) })
	endWorkers = func() { cancel(); d.done.Wait() }
	t.Cleanup(endWorkers)
	return d, endWorkers
}

// TestCloseWithoutWorkers: a port that is closed when nobody waits for the workers
// any more, or when they have ended, leaves no socket behind.
func TestCloseWithoutWorkers(t *testing.T) {
	isolate(t)
	addNIC(t, 2)
	d, endWorkers := testDatapath(t, smallConfig())
	p := d.ports[0]
	must(t, d.bindPort(t.Context(), p))
	before := socketsOf(t)
	endWorkers()
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := d.closePort(over, p); err == nil {
		t.Error("closing sockets that are still a worker's is no error")
	}
	must(t, d.close())
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

// TestStalled: who has not moved for long is told, also who never did.
func TestStalled(t *testing.T) {
	const second = uint64(1e9)
	d := &datapath{startedAt: 100 * second}
	for _, tick := range []uint64{0, 108 * second, 101 * second} {
		w := &worker{block: new(stats.Block)}
		w.block.LoopTick.Store(tick)
		d.workers = append(d.workers, w)
	}
	for _, c := range []struct {
		at   uint64
		want []int
	}{{100, nil}, {105, nil}, {106, []int{0}}, {109, []int{0, 2}}, {114, []int{0, 1, 2}}} {
		if got := d.stalled(c.at * second); !slices.Equal(got, c.want) {
			t.Errorf("at %d s: %v, want %v", c.at, got, c.want)
		}
	}
}

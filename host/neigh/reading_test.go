package neigh

import (
	"errors"
	"fmt"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/fastpath/nexthop"
)

// TestRoutesThatCannotBeRead: a reading that fails in the middle of the routes changes nothing, and
// the next one notices all changes: an interface with another MAC address, a new link, a route.
func TestRoutesThatCannotBeRead(t *testing.T) {
	k := &fakeKernel{top: fakeTopology{links: []netlink.Link{dummy(10, "eth0"), dummy(11, "eth1")},
		routes: []netlink.Route{route("10.0.0.0/8"), route("11.0.0.0/8", dev(11))}}}
	m, err := New(Config{Table: nexthop.NewTable(), Links: []LinkConfig{{"eth0"}}})
	if err != nil {
		t.Fatal(err)
	}
	m.kernel = silentKernel{k}
	m.pace.force()
	if err := m.read(); err != nil {
		t.Fatal(err)
	}
	before, generation := m.devices[10], m.generation
	if err := m.SetLinks([]LinkConfig{{"eth0"}, {"eth1"}}, nil); err != nil {
		t.Fatal(err)
	}
	k.top.links[0].Attrs().HardwareAddr[5]++
	k.failRoutes = netlink.ErrDumpInterrupted
	for range 2 {
		if err := m.read(); !errors.Is(err, netlink.ErrDumpInterrupted) || !m.pace.dirty || !m.pace.forced {
			t.Fatalf("%v; another reading is due: %v, forced: %v", err, m.pace.dirty, m.pace.forced)
		}
	}
	if m.devices[10] != before || m.generation != generation {
		t.Errorf("a failed reading has changed something: %+v", m.devices[10])
	}
	k.failRoutes = nil
	if err := m.read(); err != nil {
		t.Fatal(err)
	}
	if r := m.table.View().Lookup(new(addr("11.0.0.1"))); m.devices[10] == before || m.generation == generation ||
		r.Kind != nexthop.OnLink {
		t.Errorf("eth0 is %+v, the way to 11.0.0.1 %+v", m.devices[10], r)
	}
}

// manyRoutes is a kernel with n routes, which it makes one at a time, like a dump.
type manyRoutes struct {
	silentKernel
	n    int
	held uint64 // bytes of live memory after the last route
}

func (k *manyRoutes) routes(f func(*netlink.Route)) error {
	for i := range k.n {
		r := route(fmt.Sprintf("10.%d.%d.%d/32", i>>16, i>>8&255, i&255), via("192.0.2.1"))
		f(&r)
	}
	k.held = liveBytes()
	return nil
}

func liveBytes() uint64 {
	runtime.GC()
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return s.HeapAlloc
}

// TestReadingKeepsNoRoutes: while it reads the kernel's routes, the mirror keeps only about 100
// bytes for each, at most doubled by its map, and not the 600 bytes of a netlink.Route with its
// addresses.
func TestReadingKeepsNoRoutes(t *testing.T) {
	const n, perRoute = 50_000, 350
	k := &manyRoutes{silentKernel{&fakeKernel{top: fakeTopology{links: []netlink.Link{dummy(10, "eth0")}}}}, n, 0}
	m, err := New(Config{Table: nexthop.NewTable(), Links: []LinkConfig{{"eth0"}}})
	if err != nil {
		t.Fatal(err)
	}
	m.kernel = k
	before := liveBytes()
	if err := m.readTopology(true); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d bytes for each route while they are read", (k.held-before)/n)
	if k.held-before > n*perRoute || m.targets.Size() < n {
		t.Errorf("%d bytes for each of %d routes", (k.held-before)/n, m.targets.Size())
	}
}

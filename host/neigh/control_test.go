package neigh

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/fastpath/nexthop"

	"sluice.dev/sluice/internal/heartbeat"
)

// fakeKernel returns the state that the test sets. With synctest it uses the test's time.
type fakeKernel struct {
	mu    sync.Mutex
	top   fakeTopology
	neigh []netlink.Neigh
	fail  error         // of topology
	hangs chan struct{} // if not nil, topology waits until it is closed
	// failRoutes is the error that routes returns after the routes.
	failRoutes error
	ch         chan []event
	reads      int
	used       map[netip.Addr]int
	onUse      func(netip.Addr) // unless nil, called by use
	refuses    error            // of use
	// verified counts the calls of verify.
	verified map[netip.Addr]int
}

// fakeTopology has the results of topology and routes.
type fakeTopology struct {
	links  []netlink.Link
	addrs  []netlink.Addr
	routes []netlink.Route
}

func (k *fakeKernel) topology() (*topology, error) {
	var hangs chan struct{}
	if k.set(func() { hangs = k.hangs }); hangs != nil {
		<-hangs
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.reads++
	return &topology{k.top.links, k.top.addrs}, k.fail
}

func (k *fakeKernel) routes(f func(*netlink.Route)) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i := range k.top.routes {
		f(&k.top.routes[i])
	}
	return k.failRoutes
}

func (k *fakeKernel) neighbours() ([]netlink.Neigh, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.neigh, nil
}

func (k *fakeKernel) events() <-chan []event {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.ch
}

func (k *fakeKernel) use(_ int, a netip.Addr) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.used[a]++; k.onUse != nil {
		k.onUse(a)
	}
	return k.refuses
}

func (k *fakeKernel) verify(_ int, a netip.Addr) error {
	k.set(func() { k.verified[a]++ })
	return nil
}

func (k *fakeKernel) rules() ([]netlink.Rule, error) { return nil, nil }
func (k *fakeKernel) close()                         {}

// subscription is the fakeKernel with its channel at the time of opening.
type subscription struct {
	*fakeKernel
	ch <-chan []event
}

func (s subscription) events() <-chan []event { return s.ch }

// set changes the kernel's state.
func (k *fakeKernel) set(f func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	f()
}

// asked returns the number of calls of use for a neighbour.
func (k *fakeKernel) asked(a netip.Addr) (n int) {
	k.set(func() { n = k.used[a] })
	return n
}

// read returns how often the topology was read.
func (k *fakeKernel) read() (n int) {
	k.set(func() { n = k.reads })
	return n
}

func neighbourEvent(ip string, state int, mac ...byte) netlink.Neigh {
	return netlink.Neigh{LinkIndex: 10, IP: net.ParseIP(ip), State: state, HardwareAddr: mac}
}

// inBubble runs f with a mirror of a fake kernel with eth0 (index 10) and the
// route 10.0.0.0/8 on it, in a bubble of fake time.
func inBubble(t *testing.T, c Config, f func(m *mirror, k *fakeKernel)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		k := &fakeKernel{ch: make(chan []event), used: make(map[netip.Addr]int),
			verified: make(map[netip.Addr]int)}
		k.top = fakeTopology{links: []netlink.Link{dummy(10, "eth0")}, routes: []netlink.Route{route("10.0.0.0/8")}}
		c.Links, c.Table = []LinkConfig{{"eth0"}}, nexthop.NewTable()
		if c.Logger == nil {
			c.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
		}
		m, err := New(c)
		if err != nil {
			t.Fatal(err)
		}
		m.open = func(*slog.Logger, *heartbeat.Beat) (kernel, error) { return subscription{k, k.events()}, nil }
		done := make(chan error)
		go func() { done <- m.Run(t.Context()) }()
		t.Cleanup(func() { // after the context is done
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
		<-m.Ready()
		synctest.Wait()
		f(&mirror{m, t, c.Table}, k)
	})
}

func (m *mirror) settle(d time.Duration) {
	time.Sleep(d) // fake time
	synctest.Wait()
}

func TestHopHasTheVLANDevicesTags(t *testing.T) {
	inBubble(t, Config{}, func(m *mirror, k *fakeKernel) {
		k.set(func() {
			k.top.links = append(k.top.links, vlan(20, "eth0.100", 10, 100), vlan(21, "eth0.100.200", 20, 200))
		})
		k.set(func() { k.top.routes = append(k.top.routes, route("10.9.0.0/16", via("10.9.0.1"), dev(21))) })
		k.ch <- []event{{kind: topologyChanged}}
		m.settle(time.Second)
		k.ch <- []event{{kind: neighbourChanged, neigh: netlink.Neigh{
			LinkIndex: 21, IP: net.ParseIP("10.9.0.1"), State: netlink.NUD_REACHABLE, HardwareAddr: net.HardwareAddr{2,
				9, 9, 9, 9, 9},
		}}}
		synctest.Wait()
		got := *m.table.Hop(m.lookup("10.9.1.1").Hop)
		want := nexthop.Hop{
			Kind: nexthop.OnLink, Ready: true, Link: 0, VLANs: 2, VLAN: [2]nexthop.Tag{{TPID: 0x8100, TCI: 100},
				{TPID: 0x8100, TCI: 200}}, MTU: 1496,
			DstMAC: [6]byte{2, 9, 9, 9, 9, 9}, SrcMAC: [6]byte{2, 0, 0, 0, 0, 21}, Addr: addr("10.9.0.1"),
		}
		if got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
	})
}

func TestBurstOfEventsIsOneReading(t *testing.T) {
	inBubble(t, Config{}, func(m *mirror, k *fakeKernel) {
		m.settle(time.Second)
		before := k.read()
		for range 1000 {
			k.ch <- []event{{kind: topologyChanged}}
		}
		m.settle(time.Second)
		if got := k.read() - before; got != 1 {
			t.Errorf("%d readings", got)
		}
	})
}

func TestFailedReadingIsRepeated(t *testing.T) {
	inBubble(t, Config{}, func(m *mirror, k *fakeKernel) {
		m.settle(time.Second)
		k.set(func() { k.fail = netlink.ErrDumpInterrupted })
		k.set(func() { k.top.routes = nil })
		k.ch <- []event{{kind: topologyChanged}}
		m.settle(100 * time.Millisecond)
		if r := m.lookup("10.0.0.1"); r.Kind != nexthop.OnLink {
			t.Fatal("an interrupted reading was published")
		}
		k.set(func() { k.fail = nil })
		m.settle(100 * time.Millisecond)
		if r := m.lookup("10.0.0.1"); r != unreachable {
			t.Errorf("not repeated: %+v", r)
		}
	})
}

func TestLostEventsAreRecovered(t *testing.T) {
	for _, tc := range []struct {
		name   string
		notice func(m *mirror, k *fakeKernel)
		lost   uint64
	}{
		{"the kernel reports it", func(_ *mirror, k *fakeKernel) { k.ch <- []event{{kind: eventsLost}} }, 1},
		{"the kernel does not report it", func(m *mirror, _ *fakeKernel) { m.settle(time.Minute) }, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inBubble(t, Config{}, func(m *mirror, k *fakeKernel) {
				m.table.Resolve(addr("10.0.0.7"))
				synctest.Wait()
				k.ch <- []event{{kind: neighbourChanged, neigh: neighbourEvent("10.0.0.7", netlink.NUD_REACHABLE, 2, 7,
					7, 7, 7, 7)}}
				m.settle(2 * time.Second)
				id := m.lookup("10.0.0.7").Hop
				if id == 0 || !m.table.Hop(id).Ready {
					t.Fatal("not resolved")
				}
				k.set(func() {
					k.neigh = []netlink.Neigh{neighbourEvent("10.0.0.7", netlink.NUD_STALE, 2, 8, 8, 8, 8,
						8)}
				})
				k.set(func() { k.top.routes = append(k.top.routes, route("192.0.2.0/24")) })
				tc.notice(m, k)
				m.settle(2 * time.Second)
				if h := m.table.Hop(id); h.DstMAC != [6]byte{2, 8, 8, 8, 8, 8} {
					t.Errorf("neighbour: %+v", h)
				}
				if r := m.lookup("192.0.2.1"); r.Kind != nexthop.OnLink {
					t.Errorf("route: %+v", r)
				}
				if s := m.Status(); s.LostEvents != tc.lost || s.Drift != 1 {
					t.Errorf("status %+v", s)
				}
			})
		})
	}
}

func TestBrokenSubscriptionIsReplaced(t *testing.T) {
	inBubble(t, Config{}, func(m *mirror, k *fakeKernel) {
		old := k.ch
		k.set(func() { k.ch = make(chan []event) })
		k.set(func() { k.top.routes = nil })
		close(old)
		m.settle(3 * time.Second)
		if r := m.lookup("10.0.0.1"); r != unreachable {
			t.Errorf("still the old routes: %+v", r)
		}
		k.set(func() { k.top.routes = []netlink.Route{route("10.0.0.0/8")} })
		k.ch <- []event{{kind: topologyChanged}}
		m.settle(time.Second)
		if r := m.lookup("10.0.0.1"); r.Kind != nexthop.OnLink {
			t.Errorf("the new subscription is not followed: %+v", r)
		}
	})
}

// TestNeighbourStates: the states of a neighbour, and the resulting hop.
func TestNeighbourStates(t *testing.T) {
	mac := []byte{2, 7, 7, 7, 7, 7}
	var log bytes.Buffer
	defer func() {
		lost := strings.Index(log.String(), `"next hop does not answer" address=10.0.0.7 interface=`)
		back := strings.LastIndex(log.String(), `"next hop answers again" address=10.0.0.7 interface=`)
		if lines := strings.Count(log.String(), "next hop"); lines != 2 || lost < 0 || back < lost {
			t.Errorf("the log has:\n%s", log.String())
		}
	}()
	inBubble(t, Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}, func(m *mirror, k *fakeKernel) {
		dst := netip.MustParseAddr("10.0.0.7")
		m.table.Resolve(addr("10.0.0.7"))
		synctest.Wait()
		if k.asked(dst) != 1 {
			t.Fatalf("asked %d times", k.asked(dst))
		}
		for _, tc := range []struct {
			name  string
			e     event
			ready bool
			asked bool // use is called again at once
		}{
			{"incomplete", event{neighbourChanged, neighbourEvent("10.0.0.7", netlink.NUD_INCOMPLETE)}, false, false},
			{"reachable", event{neighbourChanged, neighbourEvent("10.0.0.7", netlink.NUD_REACHABLE, mac...)}, true,
				false},
			{"stale", event{neighbourChanged, neighbourEvent("10.0.0.7", netlink.NUD_STALE, mac...)}, true, false},
			{"delay", event{neighbourChanged, neighbourEvent("10.0.0.7", netlink.NUD_DELAY, mac...)}, true, false},
			{"probe", event{neighbourChanged, neighbourEvent("10.0.0.7", netlink.NUD_PROBE, mac...)}, true, false},
			{"failed", event{neighbourChanged, neighbourEvent("10.0.0.7", netlink.NUD_FAILED)}, false, true},
			{"incomplete again", event{neighbourChanged, neighbourEvent("10.0.0.7", netlink.NUD_INCOMPLETE)}, false,
				false},
			{"permanent", event{neighbourChanged, neighbourEvent("10.0.0.7", netlink.NUD_PERMANENT, mac...)}, true,
				false},
			{"forgotten", event{neighbourGone, neighbourEvent("10.0.0.7", netlink.NUD_STALE, mac...)}, true, true},
			{"incomplete after forgotten", event{neighbourChanged, neighbourEvent("10.0.0.7", netlink.NUD_INCOMPLETE)},
				true, false},
			{"proxy entry", event{neighbourChanged, netlink.Neigh{LinkIndex: 10, IP: net.ParseIP("10.0.0.7"),
				Flags: netlink.NTF_PROXY, State: netlink.NUD_FAILED}}, true, false},
			{"on another interface", event{neighbourChanged, netlink.Neigh{LinkIndex: 11, IP: net.ParseIP("10.0.0.7"),
				State: netlink.NUD_FAILED}}, true, false},
		} {
			before := k.asked(dst)
			k.ch <- []event{tc.e}
			synctest.Wait()
			h := m.table.Hop(m.lookup("10.0.0.7").Hop)
			if got := h != nil && h.Ready; got != tc.ready {
				t.Errorf("%s: ready %v", tc.name, got)
			}
			if got := k.asked(dst) != before; got != tc.asked {
				t.Errorf("%s: asked again %v", tc.name, got)
			}
		}
	})
}

func TestNeighboursInUseAreProbed(t *testing.T) {
	inBubble(t, Config{}, func(m *mirror, k *fakeKernel) {
		dst := netip.MustParseAddr("10.0.0.7")
		k.set(func() { k.neigh = []netlink.Neigh{neighbourEvent("10.0.0.7", netlink.NUD_STALE, 2, 7, 7, 7, 7, 7)} })
		k.ch <- []event{{kind: neighbourChanged, neigh: k.neigh[0]}}
		m.settle(10 * time.Minute)
		if k.asked(dst) != 0 {
			t.Fatalf("probed %d times though no worker requested it", k.asked(dst))
		}
		m.table.Resolve(addr("10.0.0.7"))
		synctest.Wait()
		if r := m.lookup("10.0.0.7"); r.Hop == 0 || !m.table.Hop(r.Hop).Ready {
			t.Errorf("a stale neighbour is usable at once: %+v", r)
		}
		m.settle(10 * time.Minute)
		// 10 min / 30 s; the tick of a second makes an interval 30 or 31 s.
		if n := k.asked(dst); n < 19 || n > 21 {
			t.Errorf("probed %d times in 10 minutes", n)
		}
	})
}

func TestFixedNeighboursAreNotProbed(t *testing.T) {
	inBubble(t, Config{}, func(m *mirror, k *fakeKernel) {
		dst := netip.MustParseAddr("10.0.0.7")
		for _, state := range []int{netlink.NUD_PERMANENT, netlink.NUD_NOARP} {
			entry := neighbourEvent("10.0.0.7", state, 2, 7, 7, 7, 7, 7)
			k.set(func() { k.neigh = []netlink.Neigh{entry} })
			k.ch <- []event{{kind: neighbourChanged, neigh: entry}}
			synctest.Wait()
			m.table.Resolve(addr("10.0.0.7"))
			m.settle(10 * time.Minute)
			if r := m.lookup("10.0.0.7"); r.Hop == 0 || !m.table.Hop(r.Hop).Ready {
				t.Errorf("state %#x: not usable: %+v", state, r)
			}
			if n := k.asked(dst); n > 0 {
				t.Errorf("state %#x: probed %d times", state, n)
			}
		}
		// When it is no longer permanent, it is probed like others.
		entry := neighbourEvent("10.0.0.7", netlink.NUD_STALE, 2, 7, 7, 7, 7, 7)
		k.set(func() { k.neigh = []netlink.Neigh{entry} })
		k.ch <- []event{{kind: neighbourChanged, neigh: entry}}
		m.settle(time.Minute)
		if k.asked(dst) == 0 {
			t.Error("not probed, though not permanent any more")
		}
	})
}

// TestFixedNeighboursUseNoProbes: the number of probes per second is limited, and neighbours that
// need no probes do not use up the limit.
func TestFixedNeighboursUseNoProbes(t *testing.T) {
	inBubble(t, Config{}, func(m *mirror, k *fakeKernel) {
		const fixedOnes = 10 * usesPerTick
		learn := func(ip string, state int) {
			entry := neighbourEvent(ip, state, 2, 7, 7, 7, 7, 7)
			k.set(func() { k.neigh = append(k.neigh, entry) })
			k.ch <- []event{{kind: neighbourChanged, neigh: entry}}
			synctest.Wait()
			m.table.Resolve(addr(ip))
			synctest.Wait()
		}
		for i := range fixedOnes {
			learn(fmt.Sprintf("10.0.%d.%d", 1+i/250, 1+i%250), netlink.NUD_PERMANENT)
		}
		learn("10.0.0.7", netlink.NUD_STALE)
		m.settle(10 * time.Minute)
		// As in TestNeighboursInUseAreProbed.
		if n := k.asked(netip.MustParseAddr("10.0.0.7")); n < 19 || n > 21 {
			t.Errorf("probed %d times in 10 minutes", n)
		}
	})
}

func TestProbesOfDeadDestinationAreLimitedAndEnd(t *testing.T) {
	inBubble(t, Config{}, func(m *mirror, k *fakeKernel) {
		dst := netip.MustParseAddr("10.0.0.7")
		for range 3000 { // 30 seconds of packets
			m.table.Resolve(addr("10.0.0.7"))
			m.settle(10 * time.Millisecond)
		}
		if n := k.asked(dst); n != 5 { // after 0, 4, 12, 20, 28 s
			t.Errorf("asked %d times in 30 s, want 5", n)
		}
		m.settle(6 * time.Minute)
		if s := m.Status(); s.Neighbours != 0 || s.Hops != 0 {
			t.Errorf("not forgotten: %+v", s)
		}
	})
}

// TestFullTable: that the kernel refuses new neighbours is reported, and the request is repeated.
func TestFullTable(t *testing.T) {
	inBubble(t, Config{}, func(m *mirror, k *fakeKernel) {
		dst := netip.MustParseAddr("10.0.0.7")
		for _, tc := range []struct {
			name string
			err  error
			want string // in Status.Full
		}{
			{"another error", fmt.Errorf("resolve: %w", unix.ENETDOWN), ""},
			{"table full", fmt.Errorf("resolve: %w", unix.ENOBUFS), "net.ipv4.neigh.default.gc_thresh3"},
		} {
			k.set(func() { k.refuses = tc.err })
			m.table.ResolveFirst(addr("10.0.0.7"))
			m.settle(2 * time.Second)
			if got := m.Status().Full; !strings.Contains(got, tc.want) || (got == "") != (tc.want == "") {
				t.Errorf("%s: %q", tc.name, got)
			}
		}
		before := k.asked(dst)
		k.set(func() { k.refuses = nil })
		m.settle(2 * time.Second)
		if k.asked(dst) == before {
			t.Error("not requested again")
		}
		if m.settle(time.Minute); m.Status().Full != "" {
			t.Errorf("a minute later: %q", m.Status().Full)
		}
	})
}

// TestUnresolved: the kernel has to ask for an address if it is on a served link and has no entry.
func TestUnresolved(t *testing.T) {
	inBubble(t, Config{}, func(m *mirror, k *fakeKernel) {
		k.set(func() {
			k.top.links = append(k.top.links, dummy(11, "other"))
			k.top.routes = append(k.top.routes, route("10.9.0.0/16", via("10.0.0.1")),
				route("10.11.0.0/16", dev(11)))
		})
		k.ch <- []event{{kind: topologyChanged}}
		m.settle(time.Second)
		for ip, state := range map[string]int{"10.0.0.7": netlink.NUD_STALE, "10.0.0.8": netlink.NUD_INCOMPLETE,
			"10.0.0.9": netlink.NUD_FAILED} {
			k.ch <- []event{{neighbourChanged, neighbourEvent(ip, state, 2, 7, 7, 7, 7, 7)}}
		}
		synctest.Wait()
		for ip, want := range map[string]bool{
			"10.0.0.6":   true,
			"10.0.0.7":   false,
			"10.0.0.8":   true,
			"10.0.0.9":   true,
			"10.9.0.1":   false, // by a gateway
			"10.11.0.1":  false, // on an interface that is not served
			"192.0.2.1":  false, // no route
			"2001:db8::": false,
		} {
			if got := m.Unresolved(netip.MustParseAddr(ip)); got != want {
				t.Errorf("%s: %v, want %v", ip, got, want)
			}
		}
	})
}

func TestRandomDestinationsAreBounded(t *testing.T) {
	inBubble(t, Config{}, func(m *mirror, k *fakeKernel) {
		for i := range 3 * maxPending {
			m.table.Resolve(addr(fmt.Sprintf("10.1.%d.%d", i>>8, i&255)))
			synctest.Wait()
		}
		m.settle(time.Second)
		if s := m.Status(); s.Neighbours > maxPending || s.Hops != 0 {
			t.Errorf("%+v", s)
		}
		k.ch <- []event{{kind: neighbourChanged, neigh: neighbourEvent("10.200.0.1", netlink.NUD_REACHABLE, 2, 1, 1, 1,
			1, 1)}}
		m.table.Resolve(addr("10.200.0.1"))
		synctest.Wait()
		if r := m.lookup("10.200.0.1"); r.Hop == 0 {
			t.Error("an existing neighbour is not resolved")
		}
	})
}

func TestIDsAreReusedOnlyAfterGenerationAndGrace(t *testing.T) {
	now := time.Unix(1000, 0)
	ids := newHopIDs(nexthop.NewTable(), 10*time.Second)
	a, b := hopKey{kind: nexthop.OnLink, mtu: 1}, hopKey{kind: nexthop.OnLink, mtu: 2}
	idA, _ := ids.acquire(a)
	ids.retireAllBut(nil, 7, now)
	for _, tc := range []struct {
		name       string
		generation uint32
		after      time.Duration
		freed      bool
	}{
		{"same generation", 7, time.Hour, false},
		{"too early", 8, 9 * time.Second, false},
		{"both", 8, 10 * time.Second, true},
	} {
		ids.reap(tc.generation, now.Add(tc.after))
		if _, there := ids.byKey[a]; there == tc.freed {
			t.Fatalf("%s: freed %v", tc.name, !there)
		}
	}
	if idB, _ := ids.acquire(b); idB != idA {
		t.Errorf("a freed ID is not used again: %d, %d", idA, idB)
	}
	ids.retireAllBut(nil, 8, now)
	again, _ := ids.acquire(b)
	ids.reap(9, now.Add(time.Hour))
	if again != idA || ids.byKey[b] == nil {
		t.Error("a retired hop that is used again has another ID, or was freed")
	}
}

func TestNeighboursGoWithTheirInterface(t *testing.T) {
	inBubble(t, Config{}, func(m *mirror, k *fakeKernel) {
		k.ch <- []event{{kind: neighbourChanged, neigh: neighbourEvent("10.0.0.7", netlink.NUD_PERMANENT, 2, 7, 7, 7, 7,
			7)}}
		m.table.Resolve(addr("10.0.0.7"))
		m.settle(2 * time.Second)
		if s := m.Status(); s.Neighbours != 1 || s.Hops != 1 {
			t.Fatalf("before: %+v", s)
		}
		k.set(func() { k.top = fakeTopology{} })
		k.ch <- []event{{kind: topologyChanged}}
		m.settle(20 * time.Second)
		if s := m.Status(); s.Neighbours != 0 || s.Hops != 0 {
			t.Errorf("after: %+v", s)
		}
	})
}

func TestWellKnownIDsAreNeverGivenAway(t *testing.T) {
	ids := newHopIDs(nexthop.NewTable(), 0)
	seen := map[nexthop.ID]bool{0: true, nexthop.NoRoute: true, nexthop.ViaKernel: true, nexthop.Tunnel: true}
	for i := range nexthop.MaxHops {
		id, ok := ids.acquire(hopKey{neigh: neighKey{dev: int32(i)}})
		if !ok {
			if i != nexthop.MaxHops-4 {
				t.Errorf("%d IDs", i)
			}
			return
		}
		if seen[id] {
			t.Fatalf("ID %d assigned twice", id)
		}
		seen[id] = true
	}
	t.Error("more IDs than there are")
}

func TestExhaustionIsRecovered(t *testing.T) {
	inBubble(t, Config{}, func(m *mirror, k *fakeKernel) {
		learn := func(i int) {
			ip := fmt.Sprintf("10.%d.%d.%d", 1+i>>16, i>>8&255, i&255)
			k.ch <- []event{{kind: neighbourChanged, neigh: neighbourEvent(ip, netlink.NUD_REACHABLE, 2, 1, 1, 1, 1,
				1)}}
			m.table.Resolve(addr(ip))
			synctest.Wait()
		}
		generation := m.table.View().Generation
		for i := range nexthop.MaxHops {
			learn(i)
		}
		if m.table.View().Generation == generation {
			t.Fatal("no host route was removed")
		}
		m.settle(time.Minute)
		learn(20000)
		if r := m.lookup(fmt.Sprintf("10.1.%d.%d", 20000>>8&255, 20000&255)); r.Hop == 0 {
			t.Error("a new neighbour finds no ID")
		}
	})
}

func TestGenerations(t *testing.T) {
	first := firstGeneration()
	if first == 0 {
		t.Error("zero")
	}
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		t.Fatal(err)
	}
	if later := uint32(ts.Nano() / 1e6); later-first > 1000 {
		t.Errorf("%d is not the boot clock, %d", first, later)
	}
	m, err := New(Config{Table: nexthop.NewTable()})
	if err != nil {
		t.Fatal(err)
	}
	m.generation = 1<<32 - 1
	m.publish()
	if g := m.table.View().Generation; g != 1 {
		t.Errorf("after the largest comes %d", g)
	}
}

func TestPaceOfReadings(t *testing.T) {
	now := time.Unix(1000, 0)
	for _, tc := range []struct {
		name        string
		took, since time.Duration
		want        time.Duration
	}{
		{"fast readings", time.Millisecond, 0, 9 * time.Millisecond},
		{"after a rest", time.Millisecond, time.Second, minReadingGap},
		{"slow readings", 50 * time.Millisecond, 0, 450 * time.Millisecond},
		{"very slow readings", time.Minute, 0, maxReadingGap},
	} {
		p := pace{dirty: true}
		p.done(now, tc.took)
		got, ok := p.arm(now.Add(tc.since))
		if !ok || got != tc.want {
			t.Errorf("%s: %v %v", tc.name, got, ok)
		}
		if _, again := p.arm(now); again {
			t.Errorf("%s: armed twice", tc.name)
		}
	}
}

func TestBadConfigs(t *testing.T) {
	table := nexthop.NewTable()
	for name, c := range map[string]Config{
		"no table":   {},
		"no name":    {Table: table, Links: []LinkConfig{{""}}},
		"name twice": {Table: table, Links: []LinkConfig{{"a"}, {"a"}}},
		"too many":   {Table: table, Links: make([]LinkConfig, 257)},
	} {
		if _, err := New(c); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestRunReportsNetlinkErrors(t *testing.T) {
	m, err := New(Config{Table: nexthop.NewTable()})
	if err != nil {
		t.Fatal(err)
	}
	m.open = func(*slog.Logger, *heartbeat.Beat) (kernel, error) { return nil, unix.EPERM }
	if err := m.Run(t.Context()); !errors.Is(err, unix.EPERM) {
		t.Errorf("got %v", err)
	}
}

// asks returns the number of calls of verify for a neighbour.
func (k *fakeKernel) asks(a string) (n int) {
	k.set(func() { n = k.verified[netip.MustParseAddr(a)] })
	return n
}

// TestUsedNeighbourIsVerified: a neighbour is verified while workers send to it, and not otherwise.
func TestUsedNeighbourIsVerified(t *testing.T) {
	inBubble(t, Config{}, func(m *mirror, k *fakeKernel) {
		hops := map[string]*nexthop.Hop{}
		for i, ip := range []string{"10.0.0.7", "10.0.0.8", "10.0.0.9"} {
			m.table.Resolve(addr(ip))
			synctest.Wait()
			state := netlink.NUD_REACHABLE
			if i == 2 {
				state = netlink.NUD_PERMANENT
			}
			n := neighbourEvent(ip, state, 2, 7, 7, 7, 7, byte(i))
			k.set(func() { k.neigh = append(k.neigh, n) })
			k.ch <- []event{{kind: neighbourChanged, neigh: n}}
			m.settle(time.Second)
			hops[ip] = m.table.Hop(m.lookup(ip).Hop)
		}
		const seconds = 60
		for range seconds {
			hops["10.0.0.7"].Use()
			hops["10.0.0.9"].Use()
			m.settle(time.Second)
		}
		if n := k.asks("10.0.0.7"); n < seconds/5-1 || n > seconds/5+1 {
			t.Errorf("a neighbour in use was asked %d times in a minute, want one time in 5 s", n)
		}
		if unused, permanent := k.asks("10.0.0.8"), k.asks("10.0.0.9"); unused+permanent != 0 {
			t.Errorf("an unused neighbour was verified %d times, a permanent one %d", unused, permanent)
		}
		before := k.asks("10.0.0.7")
		m.settle(time.Minute)
		if n := k.asks("10.0.0.7") - before; n > 1 {
			t.Errorf("asked %d times after the last packet", n)
		}
	})
}

// TestVerificationIsBounded: with more neighbours in use than the budget allows in an interval,
// each is still verified in turn.
func TestVerificationIsBounded(t *testing.T) {
	inBubble(t, Config{}, func(m *mirror, k *fakeKernel) {
		const neighbours, seconds = 4000, 24
		ip := func(i int) string { return fmt.Sprintf("10.0.%d.%d", i/250, i%250+1) }
		var hops []*nexthop.Hop
		for i := range neighbours {
			m.table.ResolveFirst(addr(ip(i)))
			synctest.Wait()
			k.ch <- []event{{kind: neighbourChanged, neigh: neighbourEvent(ip(i), netlink.NUD_REACHABLE, 2, 7, 7, 7,
				byte(i>>8), byte(i))}}
			synctest.Wait()
			hops = append(hops, m.table.Hop(m.lookup(ip(i)).Hop))
		}
		for range seconds {
			for _, h := range hops {
				h.Use()
			}
			m.settle(time.Second)
		}
		total, least := 0, seconds
		for i := range neighbours {
			n := k.asks(ip(i))
			total, least = total+n, min(least, n)
		}
		if total > (seconds+1)*usesPerTick || least < seconds*usesPerTick/neighbours-1 {
			t.Errorf("%d requests in %d s, %d to the least verified one", total, seconds, least)
		}
	})
}

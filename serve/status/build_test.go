package status

import (
	"net/netip"
	"reflect"
	"sync/atomic"
	"testing"
	"time"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/fastpath/stats"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/reason"
)

func addr(s string) header.Addr { return header.AddrFrom(netip.MustParseAddr(s)) }

// world is two workers and a snapshot with one service, three backends, three frontends.
func world(t *testing.T) (*services.Snapshot, []*stats.Block) {
	t.Helper()
	b := services.NewBuilder(nil)
	web := &services.Service{ID: 1, Namespace: "default", Name: "web", PortName: "http", Proto: header.ProtoTCP,
		Port: 80}
	b.SetService(web)
	for i, flags := range []services.BackendFlags{
		services.BackendReady | services.BackendServing,
		services.BackendTerminating | services.BackendServing,
		services.BackendReady | services.BackendServing | services.BackendLocal | services.BackendDrained,
	} {
		b.SetBackend(services.Backend{Addr: addr([]string{"10.1.0.2", "10.1.0.1", "10.1.0.3"}[i]), Port: 8080,
			Proto: header.ProtoTCP, Flags: flags, Ref: services.MakeBackendRef(uint32(i), 1), Service: 1})
	}
	set := &services.EndpointSet{Backends: []services.BackendRef{services.MakeBackendRef(0, 1)},
		Table: []uint16{0, 0, 0}}
	for _, f := range []services.Frontend{
		{Key: services.FrontendKey{Addr: services.AnyIPv4, Port: 30080, Proto: header.ProtoTCP},
			Kind: services.NodePort, Outside: services.Rule{Set: set}},
		{Key: services.FrontendKey{Addr: addr("192.0.2.1"), Port: 80, Proto: header.ProtoTCP},
			Kind: services.LoadBalancer, Outside: services.Rule{Set: set, KeepClient: true}},
		{Key: services.FrontendKey{Addr: services.AnyIPv6, Port: 30080, Proto: header.ProtoTCP},
			Kind:    services.NodePort,
			Outside: services.Rule{Set: &services.EndpointSet{Empty: services.EmptyDrop}}},
	} {
		f.Service = web
		b.SetFrontend(&f)
	}
	blocks := []*stats.Block{{}, {}}
	for _, block := range blocks {
		block.Backends.Ensure(3)
	}
	return b.Build(), blocks
}

func TestServiceViews(t *testing.T) {
	s, blocks := world(t)
	blocks[0].Backends.At(0).ToBackend.Add(3)
	blocks[1].Backends.At(0).ToBackend.Add(4)
	blocks[1].Backends.At(1).ToClientBytes.Add(100)
	got := ServiceViews(s, NewTotals(blocks), nil)
	want := []ServiceView{{
		Namespace: "default", Name: "web", PortName: "http", Protocol: "TCP", Port: 80,
		Frontends: []FrontendView{
			{Address: "192.0.2.1:80", Kind: "LoadBalancer", KeepClient: true, Usable: 1, Slots: 3},
			{Address: "0.0.0.0:30080", Kind: "NodePort", Usable: 1, Slots: 3},
			{Address: "[::]:30080", Kind: "NodePort", Empty: "drop"},
		},
		Scheduler: "maglev", ExternalPolicy: "Cluster", InternalPolicy: "Cluster",
		Backends: 3, Usable: 1, Traffic: Traffic{ToBackend: 7, ToClientBytes: 100},
	}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestBackendViews(t *testing.T) {
	s, blocks := world(t)
	loads := make([]atomic.Int32, 2) // shorter than there are backends: the last has none
	for i := range loads {
		loads[i].Store(int32(i + 10))
	}
	connections := map[string]int32{}
	s.Backends(func(b *services.Backend) bool {
		if i := b.Ref.Index(); int(i) < len(loads) {
			connections[b.Addr.Netip().String()] = int32(i + 10)
		}
		return true
	})
	got := BackendViews(s, NewTotals(blocks), loads, nil, func(a netip.Addr) string { return "via " + a.String() })
	var lines [][3]string
	for _, v := range got {
		lines = append(lines, [3]string{v.Address.String(), v.State, v.NextHop})
		if v.Namespace != "default" || v.Service != "web" || v.Port != 80 || v.Local != (v.State == "drained") ||
			v.Connections != connections[v.Address.Addr().String()] {
			t.Errorf("got %+v", v)
		}
	}
	want := [][3]string{
		{"10.1.0.1:8080", "terminating", "via 10.1.0.1"}, {"10.1.0.2:8080", "ready", "via 10.1.0.2"},
		{"10.1.0.3:8080", "drained", "via 10.1.0.3"},
	}
	if !reflect.DeepEqual(lines, want) {
		t.Errorf("got  %v\nwant %v", lines, want)
	}
}

func TestBackendState(t *testing.T) {
	const r, s, x, d = services.BackendReady, services.BackendServing, services.BackendTerminating,
		services.BackendDrained
	for flags, want := range map[services.BackendFlags]string{
		r | s: "ready", s: "unready", 0: "unready", x | s: "terminating", x: "gone", x | s | r: "terminating",
		d | r | s: "drained", d: "drained",
	} {
		if got := backendState(flags); got != want {
			t.Errorf("flags %b: %s, want %s", flags, got, want)
		}
	}
}

// TestTotals: an index that changes its owner takes no counts along, and a
// service keeps what its departed backends counted.
func TestTotals(t *testing.T) {
	block := &stats.Block{}
	block.Backends.Ensure(1)
	l, nothing := NewTotals([]*stats.Block{block}), services.NewBuilder(nil).Build()
	first, second := services.MakeBackendRef(0, 1), services.MakeBackendRef(0, 2)
	l.Open(first)
	block.Backends.At(0).Flows.Add(10)
	l.Close(first, 7)
	l.Open(second)
	if got := l.Backend(second).Flows; got != 0 {
		t.Errorf("the new owner starts with %d flows", got)
	}
	block.Backends.At(0).Flows.Add(3)
	if got := l.Backend(second).Flows; got != 3 {
		t.Errorf("the new owner has %d flows, want 3", got)
	}
	if got := l.Retired(nothing, 7).Flows; got != 10 {
		t.Errorf("the service kept %d flows, want 10", got)
	}
	l.Close(second, 7)
	if got := l.Retired(nothing, 7).Flows; got != 13 {
		t.Errorf("the service kept %d flows, want 13", got)
	}
	l.Forget(7)
	if got := l.Retired(nothing, 7); got != (Traffic{}) {
		t.Errorf("a forgotten service has %+v", got)
	}
}

// TestTotalsOfALeavingBackend: the counts of a service do not change when one of its backends is
// retired, published as gone, and closed. Workers may add to them in between.
func TestTotalsOfALeavingBackend(t *testing.T) {
	block := &stats.Block{}
	block.Backends.Ensure(2)
	l := NewTotals([]*stats.Block{block})
	leaves, stays := services.MakeBackendRef(0, 1), services.MakeBackendRef(1, 1)
	snapshot := func(refs ...services.BackendRef) *services.Snapshot {
		b := services.NewBuilder(nil)
		b.SetService(&services.Service{ID: 7, Namespace: "shop", Name: "web"})
		for _, r := range refs {
			b.SetBackend(services.Backend{Service: 7, Ref: r})
		}
		return b.Build()
	}
	before, after := snapshot(leaves, stays), snapshot(stays)
	l.Open(leaves)
	l.Open(stays)
	block.Backends.At(0).Flows.Add(10)
	block.Backends.At(1).Flows.Add(4)
	want := uint64(14)
	check := func(when string, s *services.Snapshot) {
		t.Helper()
		if v := ServiceViews(s, l, nil); len(v) != 1 || v[0].Traffic.Flows != want {
			t.Errorf("%s: %+v, want %d flows", when, v, want)
		}
	}
	check("before", before)
	l.Retire(leaves, 7)
	check("not published yet", before)
	check("published", after)
	block.Backends.At(0).Flows.Add(1)
	want++
	check("a worker had the former snapshot", after)

	l.Read(func() {
		s, closed := before, make(chan struct{})
		go func() { l.Close(leaves, 7); close(closed) }()
		time.Sleep(time.Millisecond)
		check("a reader has the former snapshot", s)
		select {
		case <-closed:
			t.Error("closed while it is read")
		default:
			t.Cleanup(func() { <-closed })
		}
	})
	for deadline := time.Now().Add(10 * time.Second); l.Retired(before, 7).Flows == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it is not closed")
		}
	}
	check("closed", after)
}

func TestWorkerOf(t *testing.T) {
	b := &stats.Block{}
	b.Rx.Store(10)
	b.Tx.Store(6)
	b.Drops[reason.NoFlow].Store(3)
	b.Held.Store(1)
	b.LoopTick.Store(1000)
	b.Generation.Store(5)
	b.FramesTotal.Store(8)
	b.FramesFree.Store(7)
	v := WorkerOf(1, 3, b, 1500)
	if v.PulseNanos != 500 || v.Generation != 5 || v.Asleep || v.Dropped != 3 || v.CPU != 3 || v.Worker != 1 {
		t.Errorf("got %+v", v)
	}
	if !reflect.DeepEqual(v.Drops, map[string]uint64{"no_flow": 3}) {
		t.Errorf("drops are %v", v.Drops)
	}
	if want := (PacketLaw{In: 10, Accounted: 10, Holds: true}); v.PacketLaw != want {
		t.Errorf("packet law is %+v", v.PacketLaw)
	}
	if want := (FrameLaw{Total: 8, Free: 7}); v.FrameLaw != want {
		t.Errorf("frame law is %+v", v.FrameLaw)
	}
	b.Generation.Store(stats.Offline)
	b.LoopTick.Store(0)
	if v := WorkerOf(1, 3, b, 1500); !v.Asleep || v.Generation != 0 || v.PulseNanos != -1 {
		t.Errorf("asleep: %+v", v)
	}
}

func TestMatchDoesNotAllocate(t *testing.T) {
	e, err := ParseEndpoint("10.0.0.0/8")
	if err != nil {
		t.Fatal(err)
	}
	f := &FlowFilter{Client: e, Service: "default/web", State: "ESTABLISHED", Protocol: "tcp"}
	v := &FlowView{Client: netip.MustParseAddrPort("10.1.1.1:1"), Service: "default/web:http", State: "established",
		Protocol: "TCP"}
	if !f.Match(v) {
		t.Fatal("no match")
	}
	if n := testing.AllocsPerRun(100, func() { f.Match(v) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestProblemOfNoObject: a file that cannot be parsed names no object, and its problem none.
func TestProblemOfNoObject(t *testing.T) {
	v := ProblemViews([]objects.Problem{{Source: objects.Source{Kind: "manifests", Path: "/m/a.yaml"},
		Message: "no YAML"}})
	if len(v) != 1 || v[0].Object != "" || v[0].Source != "/m/a.yaml" {
		t.Errorf("%+v", v)
	}
}

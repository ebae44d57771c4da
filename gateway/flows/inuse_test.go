package flows

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/control/steer"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/internal/boottime"
	"sluice.dev/sluice/nat/header"
)

// TestInUse: which side of a flow needs which way of an address. Every address is queried with
// every flag.
func TestInUse(t *testing.T) {
	const client, vip, source, backend = "198.51.100.7", "203.0.113.9", "192.0.2.20", "10.0.0.5"
	const all = services.AddrVIP | services.AddrNode | services.AddrSNAT | services.AddrLocal
	toVIP, toSNAT := services.AddrVIP|services.AddrNode, services.AddrSNAT
	of := func(s string) header.Addr { return header.AddrFrom(netip.MustParseAddr(s)) }
	own := func(a string, f services.AddrFlags) steer.OwnAddr { return steer.OwnAddr{Addr: of(a), Flags: f} }
	keep := steer.KeepSource{Addr: of(backend), Port: 8080, Proto: header.ProtoTCP}
	frontend := services.FrontendKey{Addr: of(vip), Port: 30080, Proto: header.ProtoTCP}
	port := steer.NodePort{Proto: header.ProtoTCP, Port: 30080}
	keepUDP, frontendUDP, portUDP := keep, frontend, port
	keepUDP.Proto, frontendUDP.Proto, portUDP.Proto = header.ProtoUDP, header.ProtoUDP, header.ProtoUDP
	keepSCTP, frontendSCTP, portSCTP := keep, frontend, port
	keepSCTP.Proto, frontendSCTP.Proto, portSCTP.Proto = header.ProtoSCTP, header.ProtoSCTP, header.ProtoSCTP
	for _, tc := range []struct {
		name   string
		proto  uint8 // 0: no flow
		source string
		state  string // of its backend
		want   steer.Set
	}{
		{"no flow", 0, "", "", steer.Set{}},
		{"TCP, with any backend", header.ProtoTCP, source, "gone", steer.Set{
			Frontends: []services.FrontendKey{frontend}, NodePorts: []steer.NodePort{port},
			KeepSources: []steer.KeepSource{keep},
			Addrs:       []steer.OwnAddr{own(vip, toVIP), own(source, toSNAT)},
		}},
		{"TCP, one address is both", header.ProtoTCP, vip, "serves", steer.Set{
			Frontends: []services.FrontendKey{frontend}, NodePorts: []steer.NodePort{port},
			KeepSources: []steer.KeepSource{keep},
			Addrs:       []steer.OwnAddr{own(vip, toVIP|toSNAT)},
		}},
		{"SCTP", header.ProtoSCTP, source, "gone", steer.Set{
			Frontends: []services.FrontendKey{frontendSCTP}, NodePorts: []steer.NodePort{portSCTP},
			KeepSources: []steer.KeepSource{keepSCTP},
			Addrs:       []steer.OwnAddr{own(vip, toVIP), own(source, toSNAT)},
		}},
		{"UDP", header.ProtoUDP, source, "serves", steer.Set{
			Frontends: []services.FrontendKey{frontendUDP}, NodePorts: []steer.NodePort{portUDP},
			KeepSources: []steer.KeepSource{keepUDP},
			Addrs:       []steer.OwnAddr{own(vip, toVIP), own(source, toSNAT)},
		}},
		{"UDP, backend gone", header.ProtoUDP, source, "gone", steer.Set{Addrs: []steer.OwnAddr{own(source, toSNAT)}}},
		{"UDP, backend there and not serving", header.ProtoUDP, source, "rests",
			steer.Set{Addrs: []steer.OwnAddr{own(source, toSNAT)}}},
		{"UDP, of an earlier process", header.ProtoUDP, source, "serves, unbound",
			steer.Set{Addrs: []steer.OwnAddr{own(source, toSNAT)}}},
		{"ICMP", header.ProtoICMP, source, "serves", steer.Set{Addrs: []steer.OwnAddr{own(source, toSNAT)}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			table, err := flowtable.NewHeap(flowtable.Config{IPv4Flows: 1024, IPv6Flows: 1024,
				Timeouts: flowtable.DefaultTimeouts()})
			if err != nil {
				t.Fatal(err)
			}
			r, err := NewReader(table, backendThat(tc.state, 5, of(backend)))
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			if tc.proto != 0 {
				create(t, table, tc.state != "serves, unbound", &flowtable.NewFlow{
					Client:  header.Tuple{Src: of(client), SrcPort: 999, Dst: of(vip), DstPort: 30080, Proto: tc.proto},
					Backend: of(backend), BackendPort: 8080, Source: of(tc.source), Service: 1,
					BackendRef: uint32(services.MakeBackendRef(5, 1)),
					Ports:      flowtable.Ports{First: 20000, Count: 1000, Stride: 1},
				})
			}
			got := r.InUse(&steer.Set{
				Frontends: []services.FrontendKey{frontend, frontendUDP, frontendSCTP,
					{Addr: of(vip), Port: 80, Proto: header.ProtoTCP}},
				NodePorts: []steer.NodePort{port, portUDP, portSCTP, {Proto: header.ProtoTCP, Port: 30081}},
				KeepSources: []steer.KeepSource{keep, keepUDP, keepSCTP, {Addr: of(backend), Port: 8081,
					Proto: header.ProtoTCP}},
				Addrs: []steer.OwnAddr{own(vip, all), own(source, all), own(client, all), own(backend, all)},
				Replies: steer.Ports([]steer.NodePort{{Proto: header.ProtoTCP, Port: 20000},
					{Proto: header.ProtoUDP, Port: 20000}, {Proto: header.ProtoSCTP, Port: 20000},
					{V6: true, Proto: tc.proto, Port: 20000}, {Proto: tc.proto, Port: 20001}}),
			})
			var replies []steer.NodePort
			if tc.proto != 0 && tc.proto != header.ProtoICMP {
				replies = []steer.NodePort{{Proto: tc.proto, Port: 20000}}
			}
			if list := got.Replies.List(); !slices.Equal(list, replies) {
				t.Errorf("ports of replies %v, want %v", list, replies)
			}
			if !slices.Equal(got.Frontends, tc.want.Frontends) || !slices.Equal(got.NodePorts, tc.want.NodePorts) ||
				!slices.Equal(got.KeepSources, tc.want.KeepSources) || !slices.Equal(got.Addrs, tc.want.Addrs) {
				t.Errorf("got  %+v\nwant %+v", got, tc.want)
			}
		})
	}
}

// TestFlowsEndAtTheNode: a frontend that closes at an address of the node ends its flows, and so is
// not in use; one at any other address stays for them, and so does one that is served again.
func TestFlowsEndAtTheNode(t *testing.T) {
	of := func(s string) header.Addr { return header.AddrFrom(netip.MustParseAddr(s)) }
	key := func(s string) services.FrontendKey {
		return services.FrontendKey{Addr: of(s), Port: 40000, Proto: header.ProtoTCP}
	}
	node, again, vip := key("192.0.2.1"), key("192.0.2.2"), key("203.0.113.9")
	table, err := flowtable.NewHeap(flowtable.Config{IPv4Flows: 1024, IPv6Flows: 1024,
		Timeouts: flowtable.DefaultTimeouts()})
	if err != nil {
		t.Fatal(err)
	}
	b := services.NewBuilder(nil)
	for _, k := range []services.FrontendKey{node, again} {
		b.SetAddr(k.Addr, services.AddrLocal)
	}
	service := &services.Service{ID: 1, Namespace: "x", Name: "y", Proto: header.ProtoTCP, Port: 40000}
	b.SetService(service)
	b.SetFrontend(&services.Frontend{Key: again, Service: service})
	h := new(services.Handle)
	h.Store(b.Build())
	r, err := NewReader(table, h)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	all := []services.FrontendKey{node, again, vip}
	for _, k := range all {
		create(t, table, true, &flowtable.NewFlow{
			Client:  header.Tuple{Src: of("198.51.100.7"), SrcPort: 6443, Dst: k.Addr, DstPort: k.Port, Proto: k.Proto},
			Backend: of("10.0.0.5"), BackendPort: 8080, Source: of("192.0.2.20"), Service: 1,
			Ports: flowtable.Ports{First: 20000, Count: 1000, Stride: 1},
		})
	}
	got := r.InUse(&steer.Set{Frontends: all})
	got.Sort()
	if want := []services.FrontendKey{again, vip}; !slices.Equal(got.Frontends, want) {
		t.Errorf("in use: %v, want %v", got.Frontends, want)
	}
	var left []header.Addr
	r.all(func(f *flowtable.Info) { left = append(left, f.Client.Dst) })
	if len(left) != 2 || slices.Contains(left, node.Addr) {
		t.Errorf("flows to %v are left, want those to %v and %v", left, again.Addr, vip.Addr)
	}
}

// backendThat is a table with one backend in that state, or without.
func backendThat(state string, index uint32, a header.Addr) *services.Handle {
	b := services.NewBuilder(nil)
	be := services.Backend{Addr: a, Port: 8080, Proto: header.ProtoUDP, Ref: services.MakeBackendRef(index, 1)}
	if strings.HasPrefix(state, "serves") {
		be.Flags = services.BackendServing
	}
	if state != "gone" {
		b.SetBackend(be)
	}
	h := new(services.Handle)
	h.Store(b.Build())
	return h
}

func create(t *testing.T, table *flowtable.Table, bind bool, f *flowtable.NewFlow) {
	t.Helper()
	h, err := table.Register()
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	now := flowtable.Time(boottime.Nanos()) + flowtable.Time(time.Second)
	h.Enter(now)
	defer h.Leave()
	ref, s := h.Create(now, f)
	if s != flowtable.Created {
		t.Fatalf("Create: %v", s)
	}
	if bind {
		h.Flow(ref).BindHops(1, 0, 0)
	}
}

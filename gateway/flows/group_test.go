package flows

import (
	"fmt"
	"maps"
	"net/netip"
	"testing"

	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/flowtable/conn"
	"sluice.dev/sluice/gateway/group"
	"sluice.dev/sluice/internal/boottime"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/serve/status"
)

// TestPageOfGroup: the Group of each flow of a page.
func TestPageOfGroup(t *testing.T) {
	of := func(s string) header.Addr { return header.AddrFrom(netip.MustParseAddr(s)) }
	vip, client, host := of("203.0.113.9"), of("198.51.100.7"), of("169.254.1.1")
	b := services.NewBuilder(nil)
	b.SetFrontend(&services.Frontend{Key: services.FrontendKey{Addr: services.AnyIPv4, Port: 30080,
		Proto: header.ProtoTCP}, Kind: services.NodePort, Service: &services.Service{ID: 4}})
	b.SetAddr(of("10.0.0.1"), services.AddrNode)
	handle := new(services.Handle)
	handle.Store(b.Build())
	table, err := flowtable.NewHeap(flowtable.Config{IPv4Flows: 1024, IPv6Flows: 1024,
		Timeouts: flowtable.DefaultTimeouts(), Group: true})
	must(t, err)
	r, err := NewReader(table, handle)
	must(t, err)
	defer r.Close()
	flow := func(port uint16, dst, source header.Addr, dstPort uint16, tracked bool) *flowtable.NewFlow {
		return &flowtable.NewFlow{
			Client:  header.Tuple{Src: client, SrcPort: port, Dst: dst, DstPort: dstPort, Proto: header.ProtoTCP},
			Backend: of("10.0.0.5"), BackendPort: 8080, Source: source, Tracked: tracked,
			Ports: flowtable.Ports{First: 20000, Count: 1000, Stride: 1},
		}
	}
	own := of("192.0.2.20")
	verdicts := map[uint32]group.Verdict{}
	h, err := table.Register()
	must(t, err)
	defer h.Close()
	now := flowtable.Time(boottime.Nanos())
	h.Enter(now)
	for port, v := range map[uint16]group.Verdict{1: group.Protected, 2: group.Wait, 3: group.NoMember,
		4: group.RefusedByMember} {
		ref, _ := h.Create(now, flow(port, vip, own, 80, true))
		h.Observe(ref, flowtable.ReplySide, flowtable.Segment{Flags: header.TCPSYN | header.TCPACK}, now)
		verdicts[table.Slot(ref)] = v
	}
	h.Create(now, flow(5, vip, own, 80, true))
	h.Create(now, flow(6, of("10.0.0.1"), of("10.0.0.1"), 30080, false))
	h.Create(now, flow(7, vip, client, 80, false))
	h.Create(now, flow(8, vip, host, 80, false))
	h.Create(now, flow(9, vip, of("10.0.0.1"), 80, false))
	_, s := h.Copy(now, 1, &conn.Record{
		Client: header.Tuple{Src: client, SrcPort: 10, Dst: vip, DstPort: 80, Proto: header.ProtoTCP},
		Reply: header.Tuple{Src: of("10.0.0.5"), SrcPort: 8080, Dst: of("192.0.2.30"), DstPort: 20000,
			Proto: header.ProtoTCP}, State: flowtable.Established})
	h.Leave()
	if s != flowtable.Created {
		t.Fatal(s)
	}
	known := true
	got := func() map[uint16]string {
		list, _ := r.Page(&status.FlowFilter{}, 0, 100, nil)
		m := map[uint16]string{}
		for i := range list {
			if (list[i].Owner == "gw-1") != (list[i].Group == "copy") {
				t.Errorf("%+v", list[i])
			}
			m[list[i].Client.Port()] = list[i].Group
		}
		return m
	}
	for port, group := range got() {
		if group != "" {
			t.Errorf("without a group, flow %d is %q", port, group)
		}
	}
	r.Join(&Group{Name: func(owner int) string { return fmt.Sprint("gw-", owner) },
		HostLink: func(a netip.Addr) bool { return a == host.Netip() },
		Verdicts: func(slots []uint32) (list []group.Verdict) {
			for _, slot := range slots {
				if known {
					list = append(list, verdicts[slot])
				}
			}
			return list
		}})
	want := map[uint16]string{1: "protected", 2: "pending", 3: "no_member", 4: "refused", 5: "no_answer",
		6: "node_port", 7: "client_address", 8: "host_link", 9: "no_source", 10: "copy"}
	if m := got(); !maps.Equal(m, want) {
		t.Errorf("flows are %v, want %v", m, want)
	}
	known = false // the streams do not run
	want[1], want[2], want[4] = "no_member", "no_member", "no_member"
	if m := got(); !maps.Equal(m, want) {
		t.Errorf("without streams, flows are %v, want %v", m, want)
	}
	n, err := r.Delete(t.Context(), &status.FlowFilter{})
	if m := got(); n != 9 || err != nil || !maps.Equal(m, map[uint16]string{10: "copy"}) {
		t.Errorf("%d flows are deleted, and %v are left: %v", n, m, err)
	}
	n, err = r.DeleteClients(t.Context(), func(a netip.Addr) bool { return a == client.Netip() })
	if m := got(); n != 0 || err != nil || !maps.Equal(m, map[uint16]string{10: "copy"}) {
		t.Errorf("%d flows of a client are deleted, and %v are left: %v", n, m, err)
	}
}

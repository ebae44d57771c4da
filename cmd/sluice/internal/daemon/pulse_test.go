package daemon

import (
	"net/netip"
	"reflect"
	"testing"

	"sluice.dev/sluice/control/pulse"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
)

// A VIP is listed once, with each of its Services, whose ports together decide whether it is
// usable. Node ports and external IPs are none.
func TestVIPsOf(t *testing.T) {
	t.Parallel()
	b := services.NewBuilder(nil)
	some := &services.EndpointSet{Backends: []services.BackendRef{services.MakeBackendRef(0, 1)}}
	none := &services.EndpointSet{Empty: services.EmptyDrop}
	add := func(id services.ServiceID, name, addr string, port uint16, kind services.FrontendKind, local bool,
		set *services.EndpointSet,
	) {
		s := &services.Service{ID: id, Namespace: "default", Name: name, Proto: header.ProtoTCP, Port: port,
			LocalExternal: local}
		b.SetService(s)
		b.SetFrontend(&services.Frontend{Kind: kind, Service: s, Outside: services.Rule{Set: set},
			Key: services.FrontendKey{Addr: header.AddrFrom(netip.MustParseAddr(addr)), Port: port,
				Proto: header.ProtoTCP}})
	}
	add(1, "web", "192.0.2.9", 80, services.LoadBalancer, true, none)
	add(2, "web", "192.0.2.9", 443, services.LoadBalancer, true, some)
	add(3, "mail", "192.0.2.9", 25, services.LoadBalancer, false, none)
	add(4, "mail", "192.0.2.1", 25, services.LoadBalancer, true, none)
	add(5, "web", "192.0.2.7", 80, services.ExternalIP, false, some)
	add(6, "web", "2001:db8::9", 80, services.LoadBalancer, false, some)
	service := func(name string, local, usable bool) pulse.Service {
		return pulse.Service{Namespace: "default", Name: name, Local: local, Usable: usable}
	}
	want := []pulse.VIP{
		{Address: netip.MustParseAddr("192.0.2.1"), Services: []pulse.Service{service("mail", true, false)}},
		{Address: netip.MustParseAddr("192.0.2.9"), Services: []pulse.Service{service("mail", false, false),
			service("web", true, true)}},
		{Address: netip.MustParseAddr("2001:db8::9"), Services: []pulse.Service{service("web", false, true)}},
	}
	if got := vipsOf(b.Build()); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

package compiler

import (
	"cmp"
	"fmt"
	"net/netip"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
)

// unitKey names a Kubernetes Service.
type unitKey struct{ namespace, name string }

func (k unitKey) compare(o unitKey) int {
	return cmp.Or(cmp.Compare(k.namespace, o.namespace), cmp.Compare(k.name, o.name))
}

// portID identifies a port of a Service and of its slices, by name and protocol (discovery/v1
// EndpointPort).
type portID struct {
	name  string
	proto uint8
}

// String returns a text for messages.
func (p portID) String() string {
	if p.name == "" {
		return "a port without a name (" + objects.ProtocolName(p.proto) + ")"
	}
	return fmt.Sprintf("port %q (%s)", objects.Clip(p.name), objects.ProtocolName(p.proto))
}

// portKey names a service port.
type portKey struct {
	unit unitKey
	portID
}

// place is an endpoint's address and port.
type place struct {
	addr header.Addr
	port uint16
}

// endpointName returns 10.0.0.1:80/TCP or [2001:db8::1]:80/TCP.
func endpointName(a header.Addr, port uint16, proto uint8) string {
	b := netip.AddrPortFrom(a.Netip(), port).AppendTo(make([]byte, 0, 54))
	b = append(b, '/')
	return string(append(b, objects.ProtocolName(proto)...))
}

// frontendName returns a frontend for messages: 192.0.2.1:80/TCP or *:30080/TCP.
func frontendName(k services.FrontendKey) string {
	if k.Addr == services.AnyIPv4 || k.Addr == services.AnyIPv6 {
		return fmt.Sprintf("*:%d/%s", k.Port, objects.ProtocolName(k.Proto))
	}
	return endpointName(k.Addr, k.Port, k.Proto)
}

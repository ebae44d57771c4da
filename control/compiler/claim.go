package compiler

import (
	"cmp"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/control/steer"
	"sluice.dev/sluice/fastpath/services"
)

// claim is a frontend that a Service asks for. If several Services claim one frontend, the oldest
// gets it: so every gateway decides alike, and a new Service cannot take traffic from one that
// works. Services without a creation time, which come from manifests, count as the youngest; among
// Services of the same age the name decides.
type claim struct {
	key  services.FrontendKey
	kind services.FrontendKind
	port int // index in service.ports
}

func compareClaims(a, b claim) int {
	return cmp.Or(steer.CompareKeys(a.key, b.key), cmp.Compare(a.kind, b.kind))
}

func (c *claim) nodePort() bool {
	return c.key.Addr == services.AnyIPv4 || c.key.Addr == services.AnyIPv6
}

func (c *claim) family() int { return objects.Family(!c.key.Addr.Is4()) }

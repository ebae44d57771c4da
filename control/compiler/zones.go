package compiler

import (
	"slices"

	"sluice.dev/sluice/control/objects"
)

// zones are the zones of Nodes.
type zones struct {
	cfg    *settings
	units  *units
	byName map[string]string
	here   string // the zone of the node cfg.NodeName
}

// setNode records a Node's new version; nil if it is deleted. Only the zone of this node matters.
func (z *zones) setNode(id objects.ObjectID, now *objects.Node) {
	if now == nil || now.Zone == "" {
		delete(z.byName, id.Name)
	} else {
		z.byName[id.Name] = now.Zone
	}
	z.update()
}

// update updates the zone of the node that the configuration names. If it changes, units whose
// endpoints have hints become dirty.
func (z *zones) update() {
	zone := z.byName[z.cfg.NodeName]
	if zone == z.here {
		return
	}
	z.here = zone
	for _, u := range z.units.byKey {
		if slices.ContainsFunc(u.slices, func(s *objects.Slice) bool { return s.Hints }) {
			z.units.reread(u.num)
		}
	}
}

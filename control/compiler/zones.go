package compiler

import (
	"slices"

	"sluice.dev/sluice/control/objects"
)

// setNode notes a Node's new version, or nil. Only the zone of this node's own one
// decides anything.
func (r *run) setNode(id objects.ObjectID, now *objects.Node) {
	if now == nil || now.Zone == "" {
		delete(r.zones, id.Name)
	} else {
		r.zones[id.Name] = now.Zone
	}
	r.settleZone()
}

// settleZone takes over the zone of the node that the configuration names. Units
// whose endpoints have hints choose anew by it.
func (r *run) settleZone() {
	zone := r.zones[r.cfg.NodeName]
	if zone == r.zone {
		return
	}
	r.zone = zone
	for _, u := range r.units {
		if slices.ContainsFunc(u.slices, func(s *objects.Slice) bool { return s.Hints }) {
			r.dirty[u] = true
		}
	}
}

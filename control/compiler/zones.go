package compiler

import (
	"slices"

	"sluice.dev/sluice/control/objects"
)

// setNode records a Node's new version, or nil. Only the zone of this node matters.
func (r *run) setNode(id objects.ObjectID, now *objects.Node) {
	if now == nil || now.Zone == "" {
		delete(r.zones, id.Name)
	} else {
		r.zones[id.Name] = now.Zone
	}
	r.settleZone()
}

// settleZone updates the zone of the node that the configuration names. If it changes, units whose
// endpoints have hints become dirty.
func (r *run) settleZone() {
	zone := r.zones[r.cfg.NodeName]
	if zone == r.zone {
		return
	}
	r.zone = zone
	for _, u := range r.units {
		if slices.ContainsFunc(u.slices, func(s *objects.Slice) bool { return s.Hints }) {
			r.reread(u.num)
		}
	}
}

package fastpath

import (
	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/header"
)

// nextHop returns the flow's hop for packets that came from side, and looks it up again while it is
// not known. Zero means: hold the packet. Bind must have been called.
func (w *Worker) nextHop(f *flowtable.Flow, side flowtable.Side, dst *header.Addr) nexthop.ID {
	binding, toBackend, toClient := f.Bound()
	if binding != w.planner.Binding {
		// This is a reply of an endpoint that lost its frontend, or another worker has bound the
		// flow to a newer view. The flow's hops are not valid in this worker's view: look up this
		// packet's hop alone.
		return w.planner.View.Lookup(dst).Hop
	}
	id := &toBackend
	if side == flowtable.ReplySide {
		id = &toClient
	}
	if *id != 0 {
		return nexthop.ID(*id)
	}
	if *id = uint16(w.planner.View.Lookup(dst).Hop); *id != 0 {
		f.BindHops(binding, toBackend, toClient)
	}
	return nexthop.ID(*id)
}

// boundHop returns the hop of an ID, or nil if the flow is not bound to the current view. The
// compiler inlines it.
func (w *Worker) boundHop(binding uint32, id uint16) *nexthop.Hop {
	if binding != w.planner.Binding {
		return nil
	}
	return w.c.Hops.Hop(nexthop.ID(id)) // there is no hop 0
}

package flows

import (
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/gateway/group"
	"sluice.dev/sluice/serve/status"
)

// without returns the FlowView.Group of a flow that other gateways get no copies of now; "" if they
// get copies.
func (g *Group) without(f *flowtable.Info, s *services.Snapshot) string {
	switch {
	case f.CopyOf != 0:
		return status.GroupCopy
	case f.Tracked && flowtable.Answered(f.State):
		return ""
	case f.Tracked:
		return "no_answer"
	case f.Direct:
		return "direct_return"
	case f.Client.Src == f.Reply.Dst:
		return "client_address"
	case g.HostLink(f.Reply.Dst.Netip()):
		return "host_link"
	}
	if front := s.Frontend(&f.Client); front != nil && front.Kind == services.NodePort {
		return "node_port"
	}
	return "no_source"
}

// with sets the Group of the views without one; slots has the slots of their flows.
func (g *Group) with(views []status.FlowView, slots []uint32) {
	verdicts := g.Verdicts(slots)
	for i := range views {
		v := &views[i]
		if v.Group != "" {
			continue
		}
		v.Group = "no_member"
		if len(verdicts) == 0 {
			continue
		}
		switch verdicts[0] {
		case group.Protected:
			v.Group = "protected"
		case group.Wait:
			v.Group = "pending"
		case group.RefusedByMember, group.Yield:
			v.Group = "refused"
		}
		verdicts = verdicts[1:]
	}
}

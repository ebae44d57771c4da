package flows

import (
	"net/netip"

	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/internal/boottime"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/serve/status"
)

// view returns a flow in the form of the status API.
func view(f *flowtable.Info, s *services.Snapshot) status.FlowView {
	port := func(a header.Addr, p uint16) netip.AddrPort { return netip.AddrPortFrom(a.Netip(), p) }
	v := status.FlowView{
		Protocol: status.ProtocolName(f.Client.Proto), State: f.State.String(),
		Client: port(f.Client.Src, f.Client.SrcPort), VIP: port(f.Client.Dst, f.Client.DstPort),
		SNAT: port(f.Reply.Dst, f.Reply.DstPort), Backend: port(f.Reply.Src, f.Reply.SrcPort),
		IdleSeconds: int64(f.Idle.Seconds()), ExpiresSeconds: int64(f.Expires.Seconds()),
	}
	if f.Start != 0 {
		v.Start = boottime.Wall(uint64(f.Start))
	}
	if f.Metered {
		in, out := &f.Traffic[flowtable.ClientSide], &f.Traffic[flowtable.ReplySide]
		v.Traffic = &status.FlowTraffic{ToBackend: in.Packets, ToBackendBytes: in.Bytes, ToClient: out.Packets,
			ToClientBytes: out.Bytes}
	}
	if f.Direct {
		v.Forwarding = "direct"
		if b := s.Backend(services.BackendRef(f.Backend)); b != nil {
			v.Backend = port(b.Addr, b.Port)
		}
	}
	switch {
	case !f.Proxied:
	case f.Client.Proto == header.ProtoUDP:
		v.ProxyHeader = "datagrams"
	case f.HeaderAcked:
		v.ProxyHeader = "acknowledged"
	case f.HeaderSent:
		v.ProxyHeader = "sent"
	default:
		v.ProxyHeader = "waiting"
	}
	svc := s.Service(services.ServiceID(f.Service))
	if f.Binding == 0 { // made by an earlier process, without a packet since
		svc = nil
		if front := s.Frontend(&f.Client); front != nil {
			svc = front.Service
		}
	}
	if svc != nil {
		v.Service = svc.FullName()
	}
	return v
}

// TableViews returns the table by family, and the counters that both families share: they share the
// room under the half-open cap, so a new flow of one family may evict a flow of the other.
func TableViews(c *flowtable.Counts) (list []status.FlowTableView, events map[string]uint64) {
	for f, name := range []string{"ipv4", "ipv6"} {
		list = append(list, status.FlowTableView{
			Family: name, Capacity: c.Capacity[f], Used: c.Live[f],
			HalfOpen: c.ByFamily[f][flowtable.SynSeen] + c.ByFamily[f][flowtable.SynRecv],
			States:   states(c, f), Counters: map[string]uint64{"created": c.Created[f]},
		})
	}
	events = map[string]uint64{}
	for k, n := range c.Shed {
		events["shed_"+flowtable.Shed(k).String()] = n
	}
	for s := flowtable.TableFull; s <= flowtable.PortsExhausted; s++ {
		events["refused_"+s.String()] = c.Refused[s]
	}
	events["ports_taken_udp"], events["ports_taken_connections"] = c.PortsTaken[0], c.PortsTaken[1]
	events["limit_sources_evicted"], events["limit_sources_missed"] = c.SourcesEvicted, c.SourcesMissed
	return list, events
}

// states counts a family's flows by state, without states that have none. It adds up states that
// share a name.
func states(c *flowtable.Counts, family int) map[string]uint64 {
	m := map[string]uint64{}
	for s, n := range c.ByFamily[family] {
		if n > 0 {
			m[flowtable.State(s).String()] += n
		}
	}
	return m
}

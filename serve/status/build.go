package status

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"
	"sync/atomic"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/fastpath/stats"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/reason"
)

// ServiceViews lists a snapshot's services by namespace, name and port, with their totals. open
// returns how many connections of a service port count towards its limits; it may be nil.
func ServiceViews(s *services.Snapshot, l *Totals, open func(services.ServiceID) uint32) []ServiceView {
	list := []ServiceView{}
	at := map[services.ServiceID]int{}
	usable := map[services.BackendRef]bool{} // each backend counts once, for any number of frontends
	sets := map[*services.EndpointSet]bool{}
	view := func(p *services.Service) *ServiceView {
		i, ok := at[p.ID]
		if !ok {
			i = len(list)
			at[p.ID] = i
			list = append(list, ServiceView{
				Namespace: p.Namespace, Name: p.Name, PortName: p.PortName,
				Protocol: ProtocolName(p.Proto), Port: p.Port,
				Frontends: []FrontendView{}, Traffic: l.Retired(s, p.ID),
				Scheduler: p.Scheduler.String(), AffinitySeconds: p.AffinitySeconds,
				ExternalPolicy: policyName(p.LocalExternal), InternalPolicy: policyName(p.LocalInternal),
				ProxyProtocol: proxyProtocolName(p.ProxyProtocol), Forwarding: forwardingName(p),
				Limits:    limitsView(p, open),
				Topology4: topologyName(p.Topology[0]), Topology6: topologyName(p.Topology[1]),
			})
		}
		return &list[i]
	}
	s.Frontends(func(f *services.Frontend) bool {
		v := view(f.Service)
		v.Frontends = append(v.Frontends, frontendView(f))
		for _, set := range [...]*services.EndpointSet{f.Outside.Set, f.Pod.Set} {
			if set == nil || sets[set] {
				continue
			}
			sets[set] = true
			for _, r := range set.Backends {
				usable[r] = true
			}
		}
		return true
	})
	s.Backends(func(b *services.Backend) bool {
		p := s.Service(b.Service)
		if p == nil {
			return true // a removed service's backend, kept for its flows
		}
		v := view(p)
		v.Backends++
		if usable[b.Ref] {
			v.Usable++
		}
		v.Traffic = v.Traffic.plus(l.Backend(b.Ref))
		return true
	})
	for i := range list {
		slices.SortFunc(list[i].Frontends, func(a, b FrontendView) int {
			return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Address, b.Address))
		})
	}
	slices.SortFunc(list, func(a, b ServiceView) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name),
			cmp.Compare(a.Port, b.Port), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.PortName, b.PortName))
	})
	return list
}

// proxyProtocolName returns the version of the PROXY protocol; "" if there is none.
func proxyProtocolName(on bool) string {
	if on {
		return "v2"
	}
	return ""
}

// forwardingName returns direct, routed, or nothing for the usual translation.
func forwardingName(p *services.Service) string {
	switch {
	case p.Direct:
		return "direct"
	case p.Routed:
		return "routed"
	}
	return ""
}

// limitsView returns a service port's limits; nil if it has none.
func limitsView(p *services.Service, open func(services.ServiceID) uint32) *LimitsView {
	if !p.Limits.Any() {
		return nil
	}
	v := &LimitsView{
		SourceConnections: p.Limits.SourceConnections, SourceNewConnections: p.Limits.SourceNewConnections,
		Connections: p.Limits.Connections, NewConnections: p.Limits.NewConnections,
	}
	if open != nil {
		v.Open = open(p.ID)
	}
	return v
}

// maxSourceRanges bounds the listed source ranges: a Service may have tens of thousands, for each
// of thousands of frontends.
const maxSourceRanges = 100

func frontendView(f *services.Frontend) FrontendView {
	rule := ruleView(f.Outside)
	v := FrontendView{Kind: f.Kind.String(), KeepClient: rule.KeepClient, Usable: rule.Usable,
		Slots: rule.Slots, Empty: rule.Empty}
	if f.Service != nil && f.Service.Direct {
		v.KeepClient = true
	}
	if f.Pod != f.Outside && f.Pod.Set != nil {
		pods := ruleView(f.Pod)
		v.Pods = &pods
	}
	ranges := f.Allowed.List()
	v.MoreSourceRanges = max(0, len(ranges)-maxSourceRanges)
	for _, p := range ranges[:len(ranges)-v.MoreSourceRanges] {
		v.SourceRanges = append(v.SourceRanges, p.String())
	}
	port := strconv.Itoa(int(f.Key.Port))
	switch {
	case f.Kind != services.NodePort:
		v.Address = netip.AddrPortFrom(f.Key.Addr.Netip(), f.Key.Port).String()
	case f.Key.Addr == services.AnyIPv4:
		v.Address = "0.0.0.0:" + port
	default:
		v.Address = "[::]:" + port
	}
	return v
}

// States of a backend, as `sluice backends` prints them.
const (
	stateReady       = "ready"
	stateDrained     = "drained"     // by an operator: it gets no new flows
	stateTerminating = "terminating" // being deleted, still serving
	stateGone        = "gone"        // no longer serving; TCP flows live on
	stateUnready     = "unready"
)

func backendState(f services.BackendFlags) string {
	switch {
	case f&services.BackendDrained != 0:
		return stateDrained
	case f&services.BackendServing == 0 && f&services.BackendReady == 0 && f&services.BackendTerminating != 0:
		return stateGone
	case f&services.BackendTerminating != 0:
		return stateTerminating
	case f&services.BackendReady == 0:
		return stateUnready
	}
	return stateReady
}

// BackendViews lists a snapshot's backends by service and address. loads are connections by index
// (flowtable.Table.Loads), health has the results of checks. nextHop describes where packets to an
// address go; it may be nil.
func BackendViews(
	s *services.Snapshot, l *Totals, loads []atomic.Int32, health map[CheckedEndpoint]CheckView,
	nextHop func(netip.Addr) string,
) []BackendView {
	list := []BackendView{}
	eligible := eligibleOf(s)
	s.Backends(func(b *services.Backend) bool {
		v := BackendView{
			Address:  netip.AddrPortFrom(b.Addr.Netip(), b.Port),
			Protocol: ProtocolName(b.Proto),
			State:    backendState(b.Flags),
			Local:    b.Flags&services.BackendLocal != 0,
			Traffic:  l.Backend(b.Ref),
			Weight:   b.Weight, Hints: hints(b.Flags),
		}
		v.NewFlows, v.PodsOnly, v.Why = eligible.of(s.Service(b.Service), b)
		if i := int(b.Ref.Index()); i < len(loads) {
			v.Connections = loads[i].Load()
		}
		if p := s.Service(b.Service); p != nil {
			v.Namespace, v.Service, v.PortName, v.Port = p.Namespace, p.Name, p.PortName, p.Port
			if h, ok := health[CheckedEndpoint{p.Namespace, p.Name, p.PortName, v.Protocol, v.Address}]; ok {
				v.Health = &h
			}
		}
		if nextHop != nil {
			v.NextHop = nextHop(b.Addr.Netip())
		}
		list = append(list, v)
		return true
	})
	slices.SortFunc(list, func(a, b BackendView) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Service, b.Service),
			cmp.Compare(a.Port, b.Port),
			cmp.Compare(a.Protocol, b.Protocol), a.Address.Compare(b.Address))
	})
	return list
}

// WorkerOf reads a worker's block. now is CLOCK_BOOTTIME in nanoseconds, the clock of LoopTick.
func WorkerOf(worker, cpu int, b *stats.Block, now uint64) WorkerView {
	v := WorkerView{
		Worker: worker, CPU: cpu,
		Rx: b.Rx.Load(), RxBytes: b.RxBytes.Load(), Tx: b.Tx.Load(), TxBytes: b.TxBytes.Load(),
		Generated: b.Generated.Load(), Returned: b.Returned.Load(), Held: b.Held.Load(), Dropped: b.Dropped(),
		KernelRx: b.KernelRx.Load(), FlowsCreated: b.FlowsCreated.Load(), FlowsRetried: b.FlowsRetried.Load(),
		EchoReplies: b.EchoReplies.Load(), ProxyHeaders: b.ProxyHeaders.Load(), ICMPLimited: b.ICMPLimited.Load(),
		Resets: b.Resets.Load(), ResetsLimited: b.ResetsLimited.Load(),
		WrongChecksums: b.WrongChecksums.Load(), UnfinishedChecksums: b.UnfinishedChecksums.Load(),
		Batches: b.Batches.Load(), Polls: b.Polls.Load(), BusyNanos: b.BusyNanos.Load(),
		IdleNanos: b.IdleNanos.Load(), Load: b.Load(now),
		Generation: b.Generation.Load(), PulseNanos: -1, Drops: map[string]uint64{},
	}
	if v.Generation == stats.Offline {
		v.Generation, v.Asleep = 0, true
	}
	if tick := b.LoopTick.Load(); tick != 0 {
		v.PulseNanos = max(0, int64(now-tick))
	}
	for i := range b.Drops {
		if n := b.Drops[i].Load(); n > 0 {
			v.Drops[reason.Drop(i).String()] = n
		}
	}
	in, accounted := b.PacketLaw()
	v.PacketLaw = PacketLaw{In: in, Accounted: accounted, Holds: in == accounted}
	total, sum := b.FrameLaw()
	v.FrameLaw = FrameLaw{Total: total, Free: b.FramesFree.Load(), Links: b.FramesLinks.Load(),
		Held: b.FramesHeld.Load(), Holds: total == sum}
	return v
}

// ProtocolName returns the name of an IP protocol in the form of Kubernetes and conntrack.
func ProtocolName(p uint8) string {
	switch p {
	case header.ProtoTCP:
		return "TCP"
	case header.ProtoUDP:
		return "UDP"
	case header.ProtoSCTP:
		return "SCTP"
	case header.ProtoICMP:
		return "ICMP"
	case header.ProtoICMPv6:
		return "ICMPv6"
	}
	return strconv.Itoa(int(p))
}

// ProblemViews returns the problems with objects that the control loop reports.
func ProblemViews(problems []objects.Problem) (list []ProblemView) {
	for _, p := range problems {
		list = append(list, ProblemView{
			Source: p.Source.String(), Object: p.Object.String(), Field: p.Field, Message: p.Message,
			Serving: p.Serving, Warning: p.Severity == objects.Warning,
		})
	}
	return list
}

// Failed returns a condition that stops part of the work.
func Failed(name, detail string) ConditionView {
	return ConditionView{Name: name, Level: "fail", Detail: detail}
}

// OK returns a condition that needs no attention.
func OK(name, detail string) ConditionView {
	return ConditionView{Name: name, Level: "ok", Detail: detail}
}

// Warning returns a condition that an operator should know and that stops nothing.
func Warning(name, detail string) ConditionView {
	return ConditionView{Name: name, Level: "warn", Detail: detail}
}

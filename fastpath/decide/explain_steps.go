package decide

import (
	"fmt"
	"net/netip"
	"strings"

	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat"
	"sluice.dev/sluice/nat/header"
)

// Step is one line of an explanation for people: the name of a check, and its result.
type Step struct{ Name, Text string }

// Steps returns the explanation in the order of the checks. The last step is the verdict.
func (x *Explanation) Steps() []Step {
	steps := []Step{{"flow", x.flowText()}}
	add := func(name, format string, args ...any) {
		steps = append(steps, Step{name, fmt.Sprintf(format, args...)})
	}
	if f := x.Frontend; f != nil {
		add("frontend", "%v %v of %s", f.Kind, end(f.Key.Addr, f.Key.Port), f.Service.FullName())
		add("source ranges", "%s", x.rangesText())
		if x.Rule != nil {
			add("client", "%s", x.clientText())
			add("endpoints", "%s", x.ruleText())
		}
		if x.Rule != nil && !x.Known && f.Service.Limits.Any() {
			add("limits", "%s", x.limitsText())
		}
		if f.Service.ProxyProtocol {
			add("proxy protocol", "v2: a header with the client's address goes first")
		}
		if x.Backend != nil {
			add("affinity", "%s", x.affinityText())
			add("scheduler", "%s", x.schedulerText())
		}
	} else if !x.Known {
		add("frontend", "none has this address, port and protocol")
	}
	switch {
	case x.Backend == nil:
	case x.Direct():
		add("backend", "node %v", x.Backend.Addr)
	default:
		add("backend", "%v", end(x.Backend.Addr, x.Backend.Port))
	}
	if x.Verdict.Action == Queued {
		add("leaves as", "%s", x.outText())
		add("next hop", "%s", x.hopText())
	}
	if x.Grouped && x.Verdict.Action == Queued {
		add("group", "%s", x.groupText())
	}
	add("verdict", "%s", x.verdictText())
	return steps
}

func end(a header.Addr, port uint16) netip.AddrPort { return netip.AddrPortFrom(a.Netip(), port) }

func (x *Explanation) flowText() string {
	if !x.Known {
		return "none"
	}
	from := "from its client"
	if x.Side == flowtable.ReplySide {
		from = "from its backend"
	}
	s := fmt.Sprintf("%v, %v old, %s", x.Flow.State, x.Flow.Age, from)
	switch {
	case x.Flow.Fin:
		s += ", after a FIN of its client"
	case x.Flow.Reset:
		s += ", after an RST"
	}
	switch {
	case x.Flow.HeaderAcked:
		s += ", with a PROXY header that its backend has acknowledged"
	case x.Flow.HeaderSent:
		s += ", with a PROXY header that its backend has not acknowledged"
	case x.Flow.Proxied && x.Flow.Client.Proto == header.ProtoUDP:
		s += ", with a PROXY header in each datagram"
	case x.Flow.Proxied:
		s += ", with a PROXY header after the handshake"
	}
	switch {
	case x.Class == Superseded && x.Moved:
		s += "; its frontend went to another Service, so it is scheduled again"
	case x.Class == BackendGone && x.Moved:
		s += "; its frontend went to another Service"
	case x.Class == Superseded && x.Tuple.Proto == header.ProtoUDP:
		s += "; its endpoint no longer serves, so it is scheduled again"
	case x.Class == Superseded:
		s += "; it is over, so a new one begins"
	case x.Class == BackendGone && x.Flow.Direct:
		s += "; its node is gone, and no other gets its packets"
	case x.Class == BackendGone:
		s += "; the endpoint is gone"
	case x.MayNotBegin:
		s += "; no new connection may begin at its backend, whose answer is dropped (backend_gone); if this is sent " +
			"for the third time, "
		if x.Instead.Action == Queued {
			s += "it goes to another backend"
		} else {
			s += fmt.Sprintf("no other takes it (%v)", x.Instead.Reason)
		}
	case x.Retry:
		s += "; if this is sent for the third time, it goes to another backend"
	}
	return s
}

func (x *Explanation) rangesText() string {
	list := x.Frontend.Allowed.List()
	switch match, ok := x.Frontend.Allowed.Match(x.Tuple.Src); {
	case list == nil:
		return "none"
	case ok:
		return fmt.Sprintf("the client is in %v", match)
	}
	const most = 16
	var names []string
	for _, p := range list[:min(most, len(list))] {
		names = append(names, p.String())
	}
	if more := len(list) - most; more > 0 {
		names = append(names, fmt.Sprintf("and %d others", more))
	}
	if len(names) == 0 {
		return "the client is in none: no range can be read"
	}
	return "the client is in none of " + strings.Join(names, ", ")
}

func (x *Explanation) clientText() string {
	if x.Pod {
		return fmt.Sprintf("a pod, of %v", x.PodRange)
	}
	return "outside of the cluster"
}

func (x *Explanation) ruleText() string {
	n := len(x.Rule.Set.Backends)
	switch {
	case x.Outcome == services.Silence:
		return "the traffic policy excludes all of them"
	case n == 0:
		return "none is usable"
	case x.Frontend.Service.Direct:
		return fmt.Sprintf("of %d nodes, which get the packet as it is (direct return)", n)
	case x.Rule.KeepClient && (x.Backend == nil || x.Source == SourceClient):
		return fmt.Sprintf("%d, and the client's address is kept", n)
	case x.Rule.KeepClient:
		return fmt.Sprintf("%d, and the client's address would be kept, but it is the backend's own", n)
	}
	return fmt.Sprintf("%d, and the client's address is replaced", n)
}

// limitsText lists the limits of the Service, and how much of each is used.
func (x *Explanation) limitsText() string {
	l := &x.Frontend.Service.Limits
	var parts []string
	connections := func(who string, limit uint32, u flowtable.Use) {
		switch {
		case limit == 0:
		case x.Counted:
			parts = append(parts, fmt.Sprintf("%s has %d of %d connections", who, u.Flows, limit))
		default:
			parts = append(parts, fmt.Sprintf("%s may have %d connections", who, limit))
		}
	}
	rate := func(who string, limit uint32, u flowtable.Use) {
		if limit == 0 {
			return
		}
		text := fmt.Sprintf("%s may open %d a second", who, limit)
		if x.Counted && flowtable.Spent(u.Due, limit, x.Now) {
			text += ", and has opened them"
		}
		parts = append(parts, text)
	}
	connections("the source", l.SourceConnections, x.SourceUse)
	rate("the source", l.SourceNewConnections, x.SourceUse)
	connections("the Service", l.Connections, x.ServiceUse)
	rate("all sources together", l.NewConnections, x.ServiceUse)
	return strings.Join(parts, "; ")
}

func (x *Explanation) affinityText() string {
	seconds, pinned := x.Frontend.Service.AffinitySeconds, "pinned"
	if x.Tentative {
		pinned = "tentatively pinned"
	}
	switch {
	case seconds == 0:
		return "none"
	case !x.Frontend.Service.Pins():
		return fmt.Sprintf("%d s; a direct Service pins no client, the hash alone chooses", seconds)
	case x.Pin.Port == 0:
		return fmt.Sprintf("%d s, and the client is not pinned", seconds)
	case !x.PinInSet:
		return fmt.Sprintf(
			"%d s, and the client is %s to %v, which cannot take new flows", seconds, pinned,
			end(x.Pin.Addr, x.Pin.Port),
		)
	}
	return fmt.Sprintf("%d s, and the client is %s to the backend", seconds, pinned)
}

func (x *Explanation) schedulerText() string {
	switch {
	case x.PinInSet:
		return fmt.Sprintf("%v, not asked", x.Scheduler)
	case x.Slot >= 0:
		return fmt.Sprintf("%v, slot %d of %d", x.Scheduler, x.Slot, x.Rule.Set.Slots())
	}
	sampled := ""
	if n := len(x.Loads); n > services.MaxCompared {
		sampled = fmt.Sprintf(" (each new flow compares %d of %d, from a random one on)", services.MaxCompared, n)
	}
	const most = 16 // enough to explain the choice, and shorter than a screen
	var loads []string
	for _, l := range x.Loads[:min(most, len(x.Loads))] {
		loads = append(
			loads, fmt.Sprintf("%v has %d (weight %d)", end(l.Backend.Addr, l.Backend.Port), l.Connections, l.Weight),
		)
	}
	if more := len(x.Loads) - most; more > 0 {
		loads = append(loads, fmt.Sprintf("and %d others", more))
	}
	return fmt.Sprintf("%v%s; of connections, %s", x.Scheduler, sampled, strings.Join(loads, ", "))
}

func (x *Explanation) outText() string {
	if x.Direct() {
		return "it came, in a VXLAN tunnel to the node, which answers the client itself"
	}
	src := end(x.Out.Src, x.Out.SrcPort).String()
	if x.Out.SrcPort == 0 {
		src = fmt.Sprintf("%v, a port to be drawn (%s)", x.Out.Src, sourceText(x.Source))
	}
	return fmt.Sprintf("%s -> %v", src, end(x.Out.Dst, x.Out.DstPort))
}

// groupText returns which copies of the flow other gateways of the group get, or the reason that
// they get none.
func (x *Explanation) groupText() string {
	known := x.Known && x.Class != Superseded
	switch {
	case known && x.Flow.CopyOf != 0:
		return "the flow is a copy of another gateway's flow"
	case known && x.Flow.Tracked && !flowtable.Answered(x.Flow.State):
		return "other gateways get copies of the flow when its backend has answered"
	case known && x.Flow.Tracked, !known && x.Source == SourceGroup:
		return "other gateways get copies of the flow"
	}
	return "not protected: " + x.unprotected()
}

// unprotected returns why other gateways get no copies of a flow.
func (x *Explanation) unprotected() string {
	known := x.Known && x.Class != Superseded
	switch {
	case x.Direct():
		return "direct return has no source address of the group"
	case known && x.Flow.Client.Src == x.Flow.Reply.Dst, !known && x.Source == SourceClient:
		return "the backend gets the client's address, which has no route to the group"
	case known:
		return "the flow has no source address of the group"
	case x.Source == SourceHost:
		return "the backend is reached by the host link, and answers to its address"
	case x.Frontend != nil && x.Frontend.Kind == services.NodePort:
		return "a node port has the node's address, which no other gateway gets packets for"
	}
	return "no source address of the group is open, so the flow gets another one"
}

// sourceText describes the origin of a source address.
func sourceText(s Source) string {
	switch s {
	case SourceHost:
		return "of the host link, because the kernel forwards it"
	case SourceByRoute:
		return "of the interface that it leaves by"
	case SourcePool:
		return "of snat.addresses"
	case SourceGroup:
		return "of this gateway in its group"
	}
	return s.String()
}

func (x *Explanation) hopText() string {
	switch {
	case x.Route.Kind == nexthop.Kernel:
		return "the kernel, by the host link"
	case x.Hop == nil || x.Route.Hop == 0:
		return "not known yet; it is held for up to a second"
	case !x.Hop.Ready:
		return fmt.Sprintf("%v, not resolved yet; it is held for up to a second", x.Hop.Addr)
	}
	return x.Hop.Addr.String()
}

func (x *Explanation) verdictText() string {
	s := x.Verdict.String()
	if x.Notify {
		s += "; the sender gets ICMP " + map[nat.ErrorKind]string{
			nat.PortUnreachable: "port unreachable",
			nat.HostUnreachable: "host unreachable",
			nat.TimeExceeded:    "time exceeded",
		}[x.Error]
	}
	switch {
	case x.Reset:
		s += "; the sender gets an RST"
	case x.Silent:
		s += "; the sender gets no RST, because this gateway does not have all flows of its group"
	}
	return s
}

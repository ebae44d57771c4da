package explain

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"sluice.dev/sluice/fastpath/decide"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/reason"
	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/xdpprog"
)

// Names of steps that are not in decide.Explanation.Steps.
const (
	stepKernel  = "kernel program"
	stepPacket  = "packet"
	stepVerdict = "verdict"
)

// reasonDenied is the name of the kernel program's counter.
const reasonDenied = "denied_dropped"

// isDenied reports whether the kernel program drops the packet because its client is denied.
func (a *answer) isDenied() bool { return a.denied != nil && a.unread == nil && a.match.Client() }

// view builds the answer, in the order in which the packet passes the kernel program, the parser
// and a worker.
func (a *answer) view(problems []status.ProblemView) status.ExplainView {
	q := a.query
	v := status.ExplainView{
		From: q.From, To: q.To, Protocol: q.Protocol, Opens: !q.Established, AnyPort: q.AnyPort,
		Offline: a.offline != nil, Generation: a.x.Generation,
	}
	v.Steps = append(v.Steps, a.kernelStep())
	drop, text := malformed(&a.tuple)
	switch {
	case a.isDenied():
		v.Verdict, v.Reason = status.VerdictDrop, reasonDenied
		v.Steps = append(v.Steps, status.ExplainStep{Name: "client", Text: a.denied.DenialText()},
			status.ExplainStep{Name: stepVerdict, Text: "drop (" + v.Reason + ")"})
	case a.unread == nil && a.match == xdpprog.MatchNone && a.x.Frontend == nil && !a.x.Known:
		v.Verdict = status.VerdictPass
		v.Steps = append(v.Steps, status.ExplainStep{Name: "frontend", Text: a.whyNone()},
			status.ExplainStep{Name: stepVerdict, Text: "to kernel"})
	case drop != reason.None:
		v.Verdict, v.Reason = status.VerdictDrop, drop.String()
		v.Steps = append(v.Steps, status.ExplainStep{Name: stepPacket, Text: text},
			status.ExplainStep{Name: stepVerdict, Text: "drop (" + v.Reason + ")"})
	default:
		a.decided(&v)
	}
	v.Advice = a.advice(&v, drop)
	v.Problems = a.about(v.Service, problems)
	return v
}

// kernelStep reports whether a worker sees the packet.
func (a *answer) kernelStep() status.ExplainStep {
	s := status.ExplainStep{Name: stepKernel, Text: "sends it to a worker, by " + a.match.String()}
	switch {
	case a.unread != nil:
		s.Text, s.Unknown = "cannot be read: "+a.unread.Error(), true
	case a.isDenied():
		s.Text = "drops it: its client is denied"
	case a.match == xdpprog.MatchNone && (a.x.Frontend != nil || a.x.Known):
		s.Text = "leaves it to the kernel: it does not have the rules for the steps below yet"
	case a.match == xdpprog.MatchNone:
		s.Text = "leaves it to the kernel: no rule matches"
	case a.closed:
		s.Text = "is not attached to the interfaces yet; it would send the packet to a worker, by " + a.match.String()
	case a.match == xdpprog.MatchFrontend && a.tuple.Proto != header.ProtoSCTP && a.snapshot.AtNode(&a.tuple):
		s.Text += ", unless a TCP or UDP socket of the node matches: then the kernel gets it"
	}
	return s
}

// malformed returns why the parser drops the packet because no sender may send it; None if it does
// not.
func malformed(t *header.Tuple) (reason.Drop, string) {
	switch {
	case !header.Unicast(&t.Src):
		return reason.MartianSource, fmt.Sprintf("no packet with the source %v is forwarded", t.Src)
	case !header.Unicast(&t.Dst):
		return reason.MartianDestination, fmt.Sprintf("no packet with the destination %v is forwarded", t.Dst)
	case t.Src == t.Dst:
		return reason.LandAttack, "its source is its destination"
	case t.SrcPort == 0 || t.DstPort == 0:
		return reason.PortZero, "port 0 is not valid"
	}
	return reason.None, ""
}

// decided adds the worker's decision.
func (a *answer) decided(v *status.ExplainView) {
	x := &a.x
	switch {
	case a.unread == nil && a.match == xdpprog.MatchNone, x.Verdict.Action == decide.ToKernel:
		v.Verdict = status.VerdictPass
	case x.Verdict.Action == decide.Queued:
		v.Verdict = status.VerdictForward
	case x.Notify || x.Reset:
		v.Verdict, v.Reason = status.VerdictReject, x.Verdict.Reason.String()
	default:
		v.Verdict, v.Reason = status.VerdictDrop, x.Verdict.Reason.String()
	}
	if x.Frontend != nil {
		v.Service = x.Frontend.Service.FullName()
	} else if x.Backend != nil {
		if p := a.snapshot.Service(x.Backend.Service); p != nil {
			v.Service = p.FullName()
		}
	}
	if x.Backend != nil {
		v.Backend = netip.AddrPortFrom(x.Backend.Addr.Netip(), x.Backend.Port)
		v.BackendUnknown = a.uncertain()
	}
	if x.Rule != nil {
		v.Endpoints = a.endpoints()
	}
	for _, s := range x.Steps() {
		v.Steps = append(v.Steps, a.step(s))
	}
	if v.Verdict == status.VerdictPass {
		v.Steps[len(v.Steps)-1].Text = "to kernel"
	}
}

// step returns a step of the worker, with facts from outside the packet path.
func (a *answer) step(s decide.Step) status.ExplainStep {
	out := status.ExplainStep{Name: s.Name, Text: s.Text}
	switch s.Name {
	case "frontend":
		if a.x.Frontend == nil {
			out.Text = a.whyNone()
		}
	case "scheduler", "backend":
		if out.Unknown = a.uncertain(); out.Unknown && s.Name == "backend" {
			out.Text += ", or another that may take it"
		}
	case "next hop":
		switch {
		case a.unanswered.IsValid():
			out.Text = fmt.Sprintf("%v, which does not answer the kernel (`ip neigh` has it as FAILED or "+
				"INCOMPLETE); the packet is held for up to a second", a.unanswered)
		case a.hop != "":
			out.Text += " on " + a.hop
		}
	case "group":
		without := a.group != nil && !slices.ContainsFunc(a.group.Members, func(m status.GroupMemberView) bool {
			return m.HasOurFlows
		})
		if x := &a.x; without && (x.Flow.Tracked || x.Source == decide.SourceGroup) {
			out.Text += ", but none is in step now, so it is not protected"
		}
	case stepVerdict:
		if a.unanswered.IsValid() && a.x.Verdict.Action == decide.Queued {
			out.Text += fmt.Sprintf(" if %v answers, else drop (%v)", a.unanswered, reason.NeighbourPending)
		}
	}
	if a.offline != nil {
		a.markUnknown(&out)
	}
	return out
}

// uncertain reports whether another backend of the set may take the flow.
func (a *answer) uncertain() bool {
	x := &a.x
	if x.Rule == nil || len(x.Rule.Set.Backends) < 2 || x.PinInSet {
		return false
	}
	if x.Scheduler == services.Random {
		return true
	}
	turns := x.Scheduler == services.RoundRobin || x.Scheduler == services.WeightedRoundRobin
	return a.offline != nil && (turns || x.Scheduler.ByLoad() || x.Frontend.Service.Pins())
}

// endpoints lists the endpoints of the packet's family, whether they may take it, and why.
func (a *answer) endpoints() (list []status.ExplainEndpoint) {
	x := &a.x
	svc := x.Frontend.Service
	// Pods get all endpoints under externalTrafficPolicy Local (k8s.io/kubernetes
	// pkg/proxy/nftables/proxier.go, the short circuit of pods to external addresses).
	local := svc.LocalExternal && !svc.Direct && !x.Pod
	if x.Frontend.Kind == services.ClusterIP {
		local = svc.LocalInternal
	}
	for _, ref := range svc.Backends {
		b := a.snapshot.Backend(ref)
		if b == nil || b.Addr.Is4() == a.tuple.V6 && !svc.Direct {
			continue
		}
		e := status.ExplainEndpoint{Address: netip.AddrPortFrom(b.Addr.Netip(), b.Port), Weight: b.Weight}
		if e.In = slices.Contains(x.Rule.Set.Backends, ref); e.In {
			e.Why = included(svc.Topology[family4or6(a.tuple.V6)], b, local)
		} else if e.Why = status.Excluded(svc, b, local); e.Why == "" {
			e.Why = "it has more endpoints than one service port can have"
		}
		list = append(list, e)
	}
	return list
}

func family4or6(v6 bool) int {
	if v6 {
		return 1
	}
	return 0
}

// included returns why an endpoint is in its set.
func included(t services.Topology, b *services.Backend, local bool) string {
	switch {
	case b.Flags&services.BackendReady == 0 && local:
		return "terminating, but no endpoint of this node is ready"
	case b.Flags&services.BackendReady == 0:
		return "terminating, but no endpoint is ready"
	case local:
		return "ready, and on this node"
	case t == services.TopologyNode:
		return "ready, and its hints are for this node"
	case t == services.TopologyZone:
		return "ready, and its hints are for this node's zone"
	}
	return "ready"
}

// whyNone returns why no Service has the packet's destination.
func (a *answer) whyNone() string {
	t := &a.tuple
	end := fmt.Sprintf("%d/%s", t.DstPort, status.ProtocolName(t.Proto))
	switch flags := a.snapshot.Owned(t.Dst); {
	case flags == 0 && a.offline != nil:
		return fmt.Sprintf("none: %v is no address of a served Service (the node's addresses are not "+
			"known offline)", t.Dst)
	case flags == 0:
		return fmt.Sprintf("none: %v is no address of a served Service, and none of this node", t.Dst)
	case flags&services.AddrVIP != 0:
		return fmt.Sprintf("none: %v is served, but not %s; it has %s", t.Dst, end, a.portsOf(t.Dst))
	case flags&services.AddrSNAT != 0 && a.snapshot.SourcePorts(t.Dst).Contains(t.DstPort):
		return "none: its destination is a source port of this gateway, as of a reply, and no flow has it"
	case flags&services.AddrNode != 0:
		return fmt.Sprintf("none: %v is an address of this node, and %s is no node port", t.Dst, end)
	}
	return fmt.Sprintf("none: %v is an address of this node without node ports (nodeAddresses of the "+
		"configuration)", t.Dst)
}

// portsOf lists some of the ports that an address serves.
func (a *answer) portsOf(addr header.Addr) string {
	var keys []services.FrontendKey
	a.snapshot.Frontends(func(f *services.Frontend) bool {
		if f.Key.Addr == addr {
			keys = append(keys, f.Key)
		}
		return true
	})
	slices.SortFunc(keys, func(a, b services.FrontendKey) int {
		return cmp.Or(cmp.Compare(a.Port, b.Port), cmp.Compare(a.Proto, b.Proto))
	})
	const most = 8
	var names []string
	for _, k := range keys[:min(most, len(keys))] {
		names = append(names, fmt.Sprintf("%d/%s", k.Port, status.ProtocolName(k.Proto)))
	}
	if more := len(keys) - most; more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	if len(names) == 0 {
		return "none, because other Services have them"
	}
	return strings.Join(names, ", ")
}

// mostProblems bounds the number of problems in an answer.
const mostProblems = 10

// about returns the problems of a Service, and those that name the packet's destination. If no
// Service has the destination, an offline answer includes all rejected objects, because one may be
// the reason.
func (a *answer) about(service string, problems []status.ProblemView) (list []status.ProblemView) {
	service, _, _ = strings.Cut(service, ":")
	all := a.offline != nil && a.x.Frontend == nil && a.match != xdpprog.MatchReply
	for _, p := range problems {
		if all && !p.Warning || service != "" && p.Object == "Service "+service || names(p.Message, a.query.To.Addr()) {
			list = append(list, p)
		}
	}
	return list[:min(mostProblems, len(list))]
}

// names reports whether a message contains an address, with or without a port.
func names(message string, addr netip.Addr) bool {
	words := strings.FieldsFunc(message, func(r rune) bool {
		return !strings.ContainsRune("0123456789abcdefABCDEF.:",
			r)
	})
	return slices.ContainsFunc(words, func(w string) bool {
		w = strings.TrimRight(w, ".:")
		if ap, err := netip.ParseAddrPort(w); err == nil {
			return ap.Addr() == addr
		}
		a, err := netip.ParseAddr(w)
		return err == nil && a == addr
	})
}

package flows

import (
	"context"

	"sluice.dev/sluice/control/steer"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/header"
)

// InUse implements loop.Flows: frontends stay steered until the flows that were opened through them
// have ended, and so do the sources of their replies. A UDP flow ends with its endpoint (fastpath),
// not with the frontend: kube-proxy, too, keeps the conntrack entries (k8s.io/kubernetes
// pkg/proxy/conntrack/cleanup.go checks only the endpoint). If the endpoint no longer serves, the
// client's next packet goes to the kernel at once. For ICMP queries only the destination of the
// answers counts.
//
// A frontend at an address of the node does not stay steered: its flows end with it, so that the
// gateway keeps no packets that are for the node itself.
func (r *Reader) InUse(set *steer.Set) (used steer.Set) {
	frontends := make(map[services.FrontendKey]bool, len(set.Frontends))
	for _, k := range set.Frontends {
		frontends[k] = false
	}
	ports := make(map[steer.NodePort]bool, len(set.NodePorts))
	for _, p := range set.NodePorts {
		ports[p] = false
	}
	sources := make(map[steer.KeepSource]bool, len(set.KeepSources))
	for _, s := range set.KeepSources {
		sources[s] = false
	}
	addrs := make(map[header.Addr]services.AddrFlags, len(set.Addrs))
	for _, a := range set.Addrs {
		addrs[a.Addr] = 0
	}
	var replies steer.PortSet
	snapshot := r.services.Load()
	ending := func(f *flowtable.Info) bool {
		k := services.FrontendKey{Addr: f.Client.Dst, Port: f.Client.DstPort, Proto: f.Client.Proto}
		_, asked := frontends[k]
		return asked && atNode(snapshot, k)
	}
	n := 0
	r.all(func(f *flowtable.Info) {
		if ending(f) {
			n++
			return
		}
		dst, src := &f.Client, &f.Reply
		markAddr(addrs, src.Dst, services.AddrSNAT)
		if src.Dst != dst.Src { // it has a source port of the gateway
			replies.Add(steer.NodePort{V6: src.V6, Proto: src.Proto, Port: src.DstPort})
		}
		if !dst.Stateful() && !(dst.Proto == header.ProtoUDP && serves(snapshot, f)) {
			return
		}
		mark(frontends, services.FrontendKey{Addr: dst.Dst, Port: dst.DstPort, Proto: dst.Proto})
		mark(ports, steer.NodePort{V6: dst.V6, Proto: dst.Proto, Port: dst.DstPort})
		mark(sources, steer.KeepSource{Addr: src.Src, Port: src.SrcPort, Proto: src.Proto})
		markAddr(addrs, dst.Dst, services.AddrVIP|services.AddrNode)
	})
	if n > 0 {
		// It fails only if the daemon is ending.
		_, _ = r.delete(context.Background(), flowtable.EndDeleted, deletePatience, ending)
	}
	used.Frontends, used.NodePorts, used.KeepSources = marked(frontends), marked(ports), marked(sources)
	used.Replies = set.Replies.In(&replies)
	for _, a := range set.Addrs {
		if a.Flags &= addrs[a.Addr]; a.Flags != 0 {
			used.Addrs = append(used.Addrs, a)
		}
	}
	return used
}

// atNode reports whether a key is at an address of the node and no longer a frontend.
func atNode(s *services.Snapshot, k services.FrontendKey) bool {
	if s == nil || s.Owned(k.Addr)&(services.AddrNode|services.AddrLocal) == 0 {
		return false
	}
	_, served := s.FrontendByKey(k)
	return !served
}

// serves reports whether the backend of a flow still serves, as the workers see it. A flow of an
// earlier process that has had no packet since has no backend if its frontend is gone.
func serves(s *services.Snapshot, f *flowtable.Info) bool {
	if s == nil {
		return true // before the first table no backend is known to be gone
	}
	b := s.Backend(services.BackendRef(f.Backend))
	return f.Binding != 0 && b != nil && b.Flags&services.BackendServing != 0
}

func mark[K comparable](set map[K]bool, k K) {
	if _, asked := set[k]; asked {
		set[k] = true
	}
}

func markAddr(addrs map[header.Addr]services.AddrFlags, a header.Addr, flags services.AddrFlags) {
	if was, asked := addrs[a]; asked {
		addrs[a] = was | flags
	}
}

func marked[K comparable](set map[K]bool) (keys []K) {
	for k, used := range set {
		if used {
			keys = append(keys, k)
		}
	}
	return keys
}

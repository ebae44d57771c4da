package daemon

import (
	"context"
	"errors"
	"net/netip"
	"sync"

	"sluice.dev/sluice/cmd/sluice/internal/boottime"
	"sluice.dev/sluice/control/config"
	"sluice.dev/sluice/control/status"
	"sluice.dev/sluice/control/steer"
	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/header"
)

func flowConfig(c *config.Configuration) flowtable.Config {
	t := c.Flows.Timeouts
	var timeouts flowtable.Timeouts
	timeouts.SynSeen, timeouts.SynAckSeen = t.SynSent.D(), t.SynReceived.D()
	timeouts.Established, timeouts.Fin, timeouts.LastAck = t.Established.D(), t.FinWait.D(), t.LastAck.D()
	timeouts.TimeWaitClient, timeouts.TimeWaitBackend = t.TimeWaitClient.D(), t.TimeWaitBackend.D()
	timeouts.Reset, timeouts.ResetEstablished, timeouts.UDPIdle = t.Reset.D(), t.ResetEstablished.D(), t.UDPIdle.D()
	timeouts.UDPUnreplied, timeouts.UDPReplied, timeouts.ICMP = t.UDPUnreplied.D(), t.UDPReplied.D(), t.ICMP.D()
	return flowtable.Config{
		IPv4Flows: uint32(c.Flows.IPv4), IPv6Flows: uint32(c.Flows.IPv6), Timeouts: timeouts,
		HalfOpen: max(1, uint32(float64(c.Flows.IPv4+c.Flows.IPv6)*c.Flows.HalfOpenShare)),
	}
}

// flowReader is the control side's way into the flow table: a participant of its
// own, online only while a slice is copied.
type flowReader struct {
	mu     sync.Mutex // one participant, several callers
	handle *flowtable.Handle
	slice  [256]flowtable.Info
	closed bool // the table's memory may be gone
	// services says which backends there are. It is set before InUse or adopt is called.
	services *services.Handle
}

var errFlowsClosed = errors.New("the daemon is ending: flows can no longer be read")

func newFlowReader(t *flowtable.Table) (*flowReader, error) {
	h, err := t.Register()
	if err != nil {
		return nil, err
	}
	return &flowReader{handle: h}, nil
}

func (r *flowReader) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.handle.Close()
	r.closed = true
}

// each calls f for the flows of one slice from cursor on, and returns where to go
// on; 0 is the end. f must not keep the Info.
func (r *flowReader) each(cursor uint64, f func(*flowtable.Info)) (next uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return 0
	}
	next, n := r.handle.Dump(cursor, r.slice[:], flowtable.Time(boottime.Nanos()))
	for i := range r.slice[:n] {
		f(&r.slice[i])
	}
	return next
}

// all calls f for every flow, with a pause for other callers after each slice.
func (r *flowReader) all(f func(*flowtable.Info)) {
	for cursor := r.each(0, f); cursor != 0; {
		cursor = r.each(cursor, f)
	}
}

// delete ends the flows that match.
func (r *flowReader) delete(ctx context.Context, match func(*flowtable.Info) bool) (n int, err error) {
	var refs []flowtable.Ref
	for cursor, first := uint64(0), true; first || cursor != 0; first = false {
		if ctx.Err() != nil {
			return n, ctx.Err()
		}
		r.mu.Lock()
		if r.closed {
			r.mu.Unlock()
			return n, errFlowsClosed
		}
		now := flowtable.Time(boottime.Nanos())
		// Online from the reading to the deleting: a record that was read is not
		// given to another flow meanwhile.
		r.handle.Enter(now)
		next, found := r.handle.Dump(cursor, r.slice[:], now)
		refs = refs[:0]
		for i := range r.slice[:found] {
			if match(&r.slice[i]) {
				refs = append(refs, r.slice[i].Ref)
			}
		}
		for _, ref := range refs {
			r.handle.Delete(ref)
		}
		r.handle.Leave()
		r.mu.Unlock()
		n += len(refs)
		cursor = next
	}
	return n, nil
}

// adopt gives the flows that an earlier process left to their backends, as a worker does when a
// packet comes: a connection that rests counts from the start. It returns how many it gave. The
// first table must be published; workers may be at work.
func (r *flowReader) adopt() (n int) {
	for cursor, first := uint64(0), true; first || cursor != 0; first = false {
		cursor = r.adoptSlice(cursor, &n)
	}
	return n
}

func (r *flowReader) adoptSlice(cursor uint64, adopted *int) (next uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return 0
	}
	now := flowtable.Time(boottime.Nanos())
	r.handle.Enter(now) // from the reading to the giving, as in delete
	defer r.handle.Leave()
	s := r.services.Load() // for each slice: what it numbers may be given up when it is old
	next, found := r.handle.Dump(cursor, r.slice[:], now)
	for i := range r.slice[:found] {
		f := &r.slice[i]
		if f.Binding != 0 || f.Backend != 0 {
			continue
		}
		toBackend := f.Reply.Reverse()
		service, backend := fastpath.Adopt(s, &f.Client, &toBackend)
		if backend != 0 && r.handle.Adopt(f.Ref, service, backend) {
			*adopted++
		}
	}
	return next
}

// InUse implements loop.Flows: frontends that flows were opened by stay steered until
// those have ended, and so do the sources of their replies. UDP flows end with their
// endpoint (fastpath), not with the port or address that they were opened by: kube-proxy
// leaves their conntrack entries alone, too (k8s.io/kubernetes pkg/proxy/conntrack/cleanup.go
// asks for the endpoint only). Where the endpoint does not serve any more, what the client sends next is the
// kernel's at once. Of ICMP queries only the address counts that their
// answers come to.
func (r *flowReader) InUse(set *steer.Set) (used steer.Set) {
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
	snapshot := r.services.Load()
	r.all(func(f *flowtable.Info) {
		dst, src := &f.Client, &f.Reply
		markAddr(addrs, src.Dst, services.AddrSNAT)
		if !dst.Stateful() && !(dst.Proto == header.ProtoUDP && serves(snapshot, f)) {
			return
		}
		mark(frontends, services.FrontendKey{Addr: dst.Dst, Port: dst.DstPort, Proto: dst.Proto})
		mark(ports, steer.NodePort{V6: dst.V6, Proto: dst.Proto, Port: dst.DstPort})
		mark(sources, steer.KeepSource{Addr: src.Src, Port: src.SrcPort, Proto: src.Proto})
		markAddr(addrs, dst.Dst, services.AddrVIP|services.AddrNode)
	})
	used.Frontends, used.NodePorts, used.KeepSources = marked(frontends), marked(ports), marked(sources)
	for _, a := range set.Addrs {
		if a.Flags &= addrs[a.Addr]; a.Flags != 0 {
			used.Addrs = append(used.Addrs, a)
		}
	}
	return used
}

// serves says whether the backend of a flow does, as the workers see it. A flow of an earlier
// process that no packet came for since has none where its frontend is gone.
func serves(s *services.Snapshot, f *flowtable.Info) bool {
	if s == nil {
		return true // before the first table nothing is known to be gone
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

// flowView is a flow as people see it.
func flowView(f *flowtable.Info, s *services.Snapshot) status.FlowView {
	port := func(a header.Addr, p uint16) netip.AddrPort { return netip.AddrPortFrom(a.Netip(), p) }
	v := status.FlowView{
		Protocol: status.ProtocolName(f.Client.Proto), State: f.State.String(),
		Client: port(f.Client.Src, f.Client.SrcPort), VIP: port(f.Client.Dst, f.Client.DstPort),
		SNAT: port(f.Reply.Dst, f.Reply.DstPort), Backend: port(f.Reply.Src, f.Reply.SrcPort),
		IdleSeconds: int64(f.Idle.Seconds()), ExpiresSeconds: int64(f.Expires.Seconds()),
	}
	svc := s.Service(services.ServiceID(f.Service))
	if f.Binding == 0 { // made by an earlier process, and quiet since
		svc = nil
		if front := s.Frontend(&f.Client); front != nil {
			svc = front.Service
		}
	}
	if svc != nil {
		v.Service = svc.Namespace + "/" + svc.Name
		if svc.PortName != "" {
			v.Service += ":" + svc.PortName
		}
	}
	return v
}

// hasConnections says whether connections count under a backend's number.
func (d *Daemon) hasConnections(r services.BackendRef) bool {
	return d.flows.Table.Loads()[r.Index()].Load() > 0
}

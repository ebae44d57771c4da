package flows

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/serve/status"
)

// portScope is the scope in which a source port is unique: flows of different scopes may have the
// same port. It does not contain the Service: Services that share an endpoint share its ports.
type portScope struct {
	source, backend header.Addr
	port            uint16 // of the backend
	proto           uint8
}

// portUse counts the flows of one scope whose source port is in the range.
type portUse struct {
	ports             services.PortRange
	used, unavailable int
}

// portSurvey has the result of the last count, and the time of the next.
type portSurvey struct {
	mu    sync.Mutex
	views []status.SourcePortsView
	next  time.Time
}

// A count walks the whole table, which takes some tenths of a second for a million flows. Counts
// use at most one part in surveyShare of a CPU, however often callers ask, unless the result would
// become older than maxSurveyAge.
const (
	surveyShare  = 50
	minSurveyAge = time.Second
	maxSurveyAge = 30 * time.Second
)

// SourcePorts returns, for each family and protocol, the largest share of a backend's source ports
// that flows use. The result may be up to maxSurveyAge old.
func (r *Reader) SourcePorts() []status.SourcePortsView {
	s := &r.ports
	s.mu.Lock()
	defer s.mu.Unlock()
	if start := time.Now(); !start.Before(s.next) {
		s.views = sourcePortsViews(r.portUses())
		end := time.Now()
		s.next = end.Add(min(max(surveyShare*end.Sub(start), minSurveyAge), maxSurveyAge))
	}
	return slices.Clone(s.views)
}

// portUses counts the flows of each scope. It does not count flows that keep the client's address,
// whose ports are the client's, flows with a port outside the configured range, and expired flows
// that were not swept yet.
func (r *Reader) portUses() map[portScope]*portUse {
	snapshot, uses := r.snapshot(), map[portScope]*portUse{}
	r.all(func(f *flowtable.Info) {
		reply := &f.Reply // from the backend to the source address
		if reply.Dst == f.Client.Src || f.Expires == 0 {
			return
		}
		k := portScope{source: reply.Dst, backend: reply.Src, port: reply.SrcPort, proto: reply.Proto}
		u := uses[k]
		if u == nil {
			u = &portUse{ports: snapshot.SourcePorts(k.source)}
			uses[k] = u
		}
		if !u.ports.Contains(reply.DstPort) {
			return
		}
		u.used++
		if !f.YieldsPort {
			u.unavailable++
		}
	})
	return uses
}

// portProtocols are the protocols whose flows have source ports.
var portProtocols = [...]uint8{header.ProtoTCP, header.ProtoUDP, header.ProtoSCTP}

// sourcePortsViews finds the largest shares. It returns a view of every family and protocol, even
// without flows.
func sourcePortsViews(uses map[portScope]*portUse) []status.SourcePortsView {
	views := make([]status.SourcePortsView, 0, 2*len(portProtocols))
	for _, family := range []string{"ipv4", "ipv6"} {
		for _, p := range portProtocols {
			views = append(views, status.SourcePortsView{Family: family, Protocol: status.ProtocolName(p)})
		}
	}
	for k, u := range uses {
		i := slices.Index(portProtocols[:], k.proto)
		if i < 0 || u.used == 0 {
			continue
		}
		if !k.backend.Is4() {
			i += len(portProtocols)
		}
		v, b := &views[i], portsView(&k, u)
		if b.UsedRatio() > v.MostUsed.UsedRatio() {
			v.MostUsed = b
		}
		if b.UnavailableRatio() > v.LeastAvailable.UnavailableRatio() {
			v.LeastAvailable = b
		}
	}
	return views
}

func portsView(k *portScope, u *portUse) status.BackendPortsView {
	return status.BackendPortsView{
		Backend: netip.AddrPortFrom(k.backend.Netip(), k.port), Source: k.source.Netip(),
		Ports: int(u.ports.Count), Used: u.used, Unavailable: u.unavailable,
	}
}

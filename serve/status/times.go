package status

import (
	"cmp"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/fastpath/stats"
)

// TimesView has how long endpoints took to answer, and how often they and their clients tried again
// or gave up, since the daemon's start.
type TimesView struct {
	// Handshake has the times from a client's first SYN to the endpoint's SYN-ACK (SCTP: INIT to
	// INIT ACK). Answer has the times from the client's first datagram, or payload of TCP, to the
	// endpoint's first one.
	Handshake HistogramView `json:"handshake"`
	Answer    HistogramView `json:"answer"`
	// RepeatedSYNs counts SYNs that clients repeated before the endpoint had answered,
	// RepeatedSYNsAfterAnswer SYNs that they repeated after its SYN-ACK had been sent to them.
	RepeatedSYNs            uint64 `json:"repeatedSYNs"`
	RepeatedSYNsAfterAnswer uint64 `json:"repeatedSYNsAfterAnswer"`
	// Refused counts connections whose first answer was an RST. ResetByBackend and ResetByClient
	// count connections that one end reset after a SYN-ACK and before either end closed them.
	Refused        uint64 `json:"refused"`
	ResetByBackend uint64 `json:"resetByBackend"`
	ResetByClient  uint64 `json:"resetByClient"`
}

// HistogramView is a histogram of times. Its quantiles are 0 if it is empty.
type HistogramView struct {
	Count        uint64 `json:"count"`
	SumMicros    uint64 `json:"sumMicros"`
	MedianMicros uint64 `json:"medianMicros"`
	P99Micros    uint64 `json:"p99Micros"`
	// Buckets has those with a count, by time.
	Buckets []BucketView `json:"buckets"`
}

// BucketView counts the times from FromMicros to below ToMicros, which is 0 in the last bucket.
type BucketView struct {
	FromMicros uint64 `json:"fromMicros"`
	ToMicros   uint64 `json:"toMicros,omitempty"`
	Count      uint64 `json:"count"`
}

// BackendTimesView has the times of one endpoint of a service port.
type BackendTimesView struct {
	Address netip.AddrPort `json:"address"`
	ServiceTimesView
}

// ServiceTimesView has the times of all endpoints of a service port, also of removed ones.
type ServiceTimesView struct {
	Namespace string `json:"namespace"`
	Service   string `json:"service"`
	PortName  string `json:"portName,omitempty"`
	Protocol  string `json:"protocol"`
	Port      uint16 `json:"port"`
	TimesView
}

// AllTimesView has the times of all service ports, and of their endpoints.
type AllTimesView struct {
	Services []ServiceTimesView `json:"services"`
	Backends []BackendTimesView `json:"backends"`
}

// at returns the time at or below which the given part of the times is, interpolated in a bucket.
func (v *HistogramView) at(part float64) uint64 {
	rank := part * float64(v.Count)
	for _, b := range v.Buckets {
		if rank -= float64(b.Count); rank > 0 {
			continue
		}
		to := max(b.ToMicros, b.FromMicros)
		return b.FromMicros + uint64((1+rank/float64(b.Count))*float64(to-b.FromMicros))
	}
	return 0
}

// add adds the times of o, or removes them if sign is -1 modulo 2^64.
func (v *HistogramView) add(o *HistogramView, sign uint64) {
	v.Count += sign * o.Count
	v.SumMicros += sign * o.SumMicros
	for _, b := range o.Buckets {
		i, found := slices.BinarySearchFunc(v.Buckets, b.FromMicros, func(b BucketView, from uint64) int {
			return cmp.Compare(b.FromMicros, from)
		})
		if !found {
			v.Buckets = slices.Insert(v.Buckets, i, BucketView{FromMicros: b.FromMicros, ToMicros: b.ToMicros})
		}
		v.Buckets[i].Count += sign * b.Count
	}
	v.Buckets = slices.DeleteFunc(v.Buckets, func(b BucketView) bool { return b.Count == 0 })
	v.MedianMicros, v.P99Micros = v.at(0.5), v.at(0.99)
}

// Minus returns v without the counts of an earlier view.
func (v TimesView) Minus(earlier *TimesView) TimesView {
	v.Handshake.Buckets, v.Answer.Buckets = slices.Clone(v.Handshake.Buckets), slices.Clone(v.Answer.Buckets)
	v.add(earlier, ^uint64(0))
	return v
}

// Since returns v without the counts of an earlier view.
func (v AllTimesView) Since(earlier *AllTimesView) AllTimesView {
	type key struct {
		namespace, service, protocol string
		port                         uint16
		backend                      netip.AddrPort // zero: of the service port
	}
	of := func(v *ServiceTimesView, backend netip.AddrPort) key {
		return key{v.Namespace, v.Service, v.Protocol, v.Port, backend}
	}
	before := map[key]*TimesView{}
	for i := range earlier.Services {
		s := &earlier.Services[i]
		before[of(s, netip.AddrPort{})] = &s.TimesView
	}
	for i := range earlier.Backends {
		b := &earlier.Backends[i]
		before[of(&b.ServiceTimesView, b.Address)] = &b.TimesView
	}
	v.Services, v.Backends = slices.Clone(v.Services), slices.Clone(v.Backends)
	for i := range v.Services {
		s := &v.Services[i]
		if o := before[of(s, netip.AddrPort{})]; o != nil {
			s.TimesView = s.Minus(o)
		}
	}
	for i := range v.Backends {
		b := &v.Backends[i]
		if o := before[of(&b.ServiceTimesView, b.Address)]; o != nil {
			b.TimesView = b.Minus(o)
		}
	}
	return v
}

func (v *TimesView) add(o *TimesView, sign uint64) {
	v.Handshake.add(&o.Handshake, sign)
	v.Answer.add(&o.Answer, sign)
	v.RepeatedSYNs += sign * o.RepeatedSYNs
	v.RepeatedSYNsAfterAnswer += sign * o.RepeatedSYNsAfterAnswer
	v.Refused += sign * o.Refused
	v.ResetByBackend += sign * o.ResetByBackend
	v.ResetByClient += sign * o.ResetByClient
}

// loader returns the value of a counter, and may change it.
type loader func(*atomic.Uint64) uint64

// histogramOf reads a histogram.
func histogramOf(h *stats.Histogram, load loader) (v HistogramView) {
	micros := func(bucket int) uint64 { return uint64(stats.BucketStart(bucket) / time.Microsecond) }
	for i := range h.Buckets {
		n := load(&h.Buckets[i])
		if n == 0 {
			continue
		}
		b := BucketView{FromMicros: micros(i), Count: n}
		if i+1 < len(h.Buckets) {
			b.ToMicros = micros(i + 1)
		}
		v.Count += n
		v.Buckets = append(v.Buckets, b)
	}
	v.SumMicros = load(&h.Micros)
	v.MedianMicros, v.P99Micros = v.at(0.5), v.at(0.99)
	return v
}

// timesOf reads the times of a backend index.
func timesOf(b *stats.BackendTimes, load loader) TimesView {
	return TimesView{
		Handshake: histogramOf(&b.Handshake, load), Answer: histogramOf(&b.Answer, load),
		RepeatedSYNs: load(&b.RepeatedSYNs), RepeatedSYNsAfterAnswer: load(&b.RepeatedAfter),
		Refused: load(&b.Refused), ResetByBackend: load(&b.ResetByBackend), ResetByClient: load(&b.ResetByClient),
	}
}

// AllTimes lists the times of a snapshot's service ports and endpoints, in the order of
// ServiceViews and BackendViews.
func AllTimes(s *services.Snapshot, l *Totals) AllTimesView {
	all := AllTimesView{Services: []ServiceTimesView{}, Backends: []BackendTimesView{}}
	at := map[services.ServiceID]int{}
	service := func(p *services.Service) *ServiceTimesView {
		i, ok := at[p.ID]
		if !ok {
			i = len(all.Services)
			at[p.ID] = i
			all.Services = append(all.Services, ServiceTimesView{Namespace: p.Namespace, Service: p.Name,
				PortName: p.PortName, Protocol: ProtocolName(p.Proto), Port: p.Port, TimesView: l.retiredTimes(p.ID)})
		}
		return &all.Services[i]
	}
	s.Frontends(func(f *services.Frontend) bool { service(f.Service); return true })
	s.Backends(func(b *services.Backend) bool {
		p := s.Service(b.Service)
		if p == nil {
			return true // a removed service's backend, kept for its flows
		}
		of := service(p)
		v := BackendTimesView{netip.AddrPortFrom(b.Addr.Netip(), b.Port), *of}
		v.TimesView = l.times(b.Ref)
		of.add(&v.TimesView, 1)
		all.Backends = append(all.Backends, v)
		return true
	})
	compare := func(a, b *ServiceTimesView) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Service, b.Service),
			cmp.Compare(a.Port, b.Port), cmp.Compare(a.Protocol, b.Protocol))
	}
	slices.SortFunc(all.Services, func(a, b ServiceTimesView) int { return compare(&a, &b) })
	slices.SortFunc(all.Backends, func(a, b BackendTimesView) int {
		return cmp.Or(compare(&a.ServiceTimesView, &b.ServiceTimesView), a.Address.Compare(b.Address))
	})
	return all
}

package status

import (
	"cmp"
	"net/netip"
	"slices"
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
	// Buckets has the buckets that have a count, by time.
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

// Minus returns v without the counts of an earlier view. Counters that have begun anew since then,
// because the daemon or the Service was replaced, are returned as they are.
func (v TimesView) Minus(earlier *TimesView) TimesView {
	if !v.follows(earlier) {
		return v
	}
	v.Handshake.Buckets, v.Answer.Buckets = slices.Clone(v.Handshake.Buckets), slices.Clone(v.Answer.Buckets)
	v.add(earlier, ^uint64(0))
	return v
}

// follows reports whether no count is less than in an earlier view.
func (v *TimesView) follows(earlier *TimesView) bool {
	return v.Handshake.follows(&earlier.Handshake) && v.Answer.follows(&earlier.Answer) &&
		v.RepeatedSYNs >= earlier.RepeatedSYNs && v.RepeatedSYNsAfterAnswer >= earlier.RepeatedSYNsAfterAnswer &&
		v.Refused >= earlier.Refused && v.ResetByBackend >= earlier.ResetByBackend &&
		v.ResetByClient >= earlier.ResetByClient
}

func (v *HistogramView) follows(earlier *HistogramView) bool {
	counts := map[uint64]uint64{}
	for _, b := range v.Buckets {
		counts[b.FromMicros] = b.Count
	}
	for _, b := range earlier.Buckets {
		if counts[b.FromMicros] < b.Count {
			return false
		}
	}
	return v.Count >= earlier.Count && v.SumMicros >= earlier.SumMicros
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

// HistogramOf reads histograms, and returns their sum.
func HistogramOf(list ...*stats.Histogram) (v HistogramView) {
	micros := func(bucket int) uint64 { return uint64(stats.BucketStart(bucket) / time.Microsecond) }
	for i := range stats.HistogramBuckets {
		n := uint64(0)
		for _, h := range list {
			n += h.Buckets[i].Load()
		}
		if n == 0 {
			continue
		}
		b := BucketView{FromMicros: micros(i), Count: n}
		if i+1 < stats.HistogramBuckets {
			b.ToMicros = micros(i + 1)
		}
		v.Count += n
		v.Buckets = append(v.Buckets, b)
	}
	for _, h := range list {
		v.SumMicros += h.Micros.Load()
	}
	v.MedianMicros, v.P99Micros = v.at(0.5), v.at(0.99)
	return v
}

// timesOf reads the times of a backend.
func timesOf(b *stats.BackendTimes) TimesView {
	return TimesView{
		Handshake: HistogramOf(&b.Handshake), Answer: HistogramOf(&b.Answer),
		RepeatedSYNs: b.RepeatedSYNs.Load(), RepeatedSYNsAfterAnswer: b.RepeatedAfter.Load(),
		Refused: b.Refused.Load(), ResetByBackend: b.ResetByBackend.Load(), ResetByClient: b.ResetByClient.Load(),
	}
}

// ServiceTimes lists the times of a snapshot's service ports, in the order of ServiceViews.
func ServiceTimes(s *services.Snapshot, l *Totals) []ServiceTimesView {
	return readTimes(s, l, func(*services.Backend, *ServiceTimesView, *TimesView) {})
}

// AllTimes is ServiceTimes with the times of endpoints, in the order of BackendViews.
func AllTimes(s *services.Snapshot, l *Totals) AllTimesView {
	all := AllTimesView{Backends: []BackendTimesView{}}
	all.Services = readTimes(s, l, func(b *services.Backend, of *ServiceTimesView, times *TimesView) {
		v := BackendTimesView{netip.AddrPortFrom(b.Addr.Netip(), b.Port), *of}
		v.TimesView = *times
		all.Backends = append(all.Backends, v)
	})
	slices.SortFunc(all.Backends, func(a, b BackendTimesView) int {
		return cmp.Or(compareTimes(&a.ServiceTimesView, &b.ServiceTimesView), a.Address.Compare(b.Address))
	})
	return all
}

// readTimes lists the times of service ports, and calls each for their backends.
func readTimes(
	s *services.Snapshot, l *Totals, each func(*services.Backend, *ServiceTimesView, *TimesView),
) []ServiceTimesView {
	list := []ServiceTimesView{}
	at := map[services.ServiceID]int{}
	service := func(p *services.Service) *ServiceTimesView {
		i, ok := at[p.ID]
		if !ok {
			i = len(list)
			at[p.ID] = i
			list = append(list, ServiceTimesView{Namespace: p.Namespace, Service: p.Name,
				PortName: p.PortName, Protocol: ProtocolName(p.Proto), Port: p.Port,
				TimesView: l.retiredTimes(s, p.ID)})
		}
		return &list[i]
	}
	s.Frontends(func(f *services.Frontend) bool { service(f.Service); return true })
	s.Backends(func(b *services.Backend) bool {
		p := s.Service(b.Service)
		if p == nil {
			return true // a removed service's backend, kept for its flows
		}
		of, times := service(p), TimesView{}
		if counted := l.times(b.Ref); counted != nil {
			times = *counted
			of.add(&times, 1)
		}
		each(b, of, &times)
		return true
	})
	slices.SortFunc(list, func(a, b ServiceTimesView) int { return compareTimes(&a, &b) })
	return list
}

func compareTimes(a, b *ServiceTimesView) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Service, b.Service),
		cmp.Compare(a.Port, b.Port), cmp.Compare(a.Protocol, b.Protocol))
}

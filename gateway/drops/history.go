package drops

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"sluice.dev/sluice/nat/reason"
	"sluice.dev/sluice/serve/status"
)

// Bounds of the history. A slice of time has at most sliceSamples samples of a reason, so the share
// of a Service in a slice with more has a standard error of at most 3 percent. All slices have
// maxSamples: the oldest slice gives way.
const (
	keep         = status.DropsKept
	sliceTime    = 10 * time.Second
	sliceSamples = 256
	maxSamples   = 1 << 14 // some 4 MB
)

// slice has the samples that were drained in a time.
type slice struct {
	from     time.Time
	byReason [reason.Count]reservoir
}

func (s *slice) samples() (n int) {
	for i := range s.byReason {
		n += len(s.byReason[i].list)
	}
	return n
}

// history has the slices, oldest first. Drops from since on are in it.
type history struct {
	since  time.Time
	slices []*slice
}

// current returns the slice of a time, and removes old ones.
func (h *history) current(now time.Time) *slice {
	n := 0
	for _, s := range h.slices {
		n += s.samples()
	}
	for len(h.slices) > 0 {
		s := h.slices[0]
		if now.Sub(s.from) < keep+sliceTime && n <= maxSamples {
			break
		}
		n -= s.samples()
		h.slices = h.slices[1:]
		h.since = s.from.Add(sliceTime)
	}
	if last := len(h.slices) - 1; last >= 0 && now.Sub(h.slices[last].from) < sliceTime {
		return h.slices[last]
	}
	s := &slice{from: now}
	for r := range s.byReason {
		s.byReason[r].max = sliceSamples
	}
	h.slices = append(h.slices, s)
	return s
}

// mostClients is the number of clients that a view lists for each reason and Service.
const mostClients = 10

// view sums the samples after a time by reason and Service.
func (h *history) view(since, now time.Time) status.DropsView {
	if since.Before(h.since) {
		since = h.since
	}
	v := status.DropsView{Since: since, Until: now, Drops: []status.DropView{}}
	type key struct {
		reason  reason.Drop
		service string
	}
	at := map[key]int{}
	var clients []map[netip.Addr]uint64
	for _, sl := range h.slices {
		for r := range sl.byReason {
			for i := range sl.byReason[r].list {
				s := &sl.byReason[r].list[i]
				if s.At.Before(since) {
					continue
				}
				k := key{s.Reason, s.Service}
				j, known := at[k]
				if !known {
					j = len(v.Drops)
					at[k] = j
					v.Drops = append(v.Drops, status.DropView{Reason: s.Reason.String(), Service: s.Service})
					clients = append(clients, map[netip.Addr]uint64{})
				}
				d := &v.Drops[j]
				d.Packets += s.Weight
				d.Samples++
				if s.At.After(d.Last) {
					d.Last = s.At
				}
				clients[j][s.Sender()] += s.Weight
			}
		}
	}
	for j := range v.Drops {
		v.Drops[j].Clients, v.Drops[j].MoreClients = most(clients[j])
		v.Drops[j].Last = v.Drops[j].Last.Round(0)
	}
	slices.SortFunc(v.Drops, func(a, b status.DropView) int {
		return cmp.Or(cmp.Compare(b.Packets, a.Packets), cmp.Compare(a.Reason, b.Reason),
			cmp.Compare(a.Service, b.Service))
	})
	return v
}

// most lists the clients with the most packets, and returns the number of others.
func most(packets map[netip.Addr]uint64) (list []status.DropClient, others int) {
	for a, n := range packets {
		list = append(list, status.DropClient{Client: a, Packets: n})
	}
	slices.SortFunc(list, func(a, b status.DropClient) int {
		return cmp.Or(cmp.Compare(b.Packets, a.Packets), a.Client.Compare(b.Client))
	})
	others = max(0, len(list)-mostClients)
	return list[:len(list)-others], others
}

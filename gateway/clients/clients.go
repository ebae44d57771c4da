// Package clients sums the flows of a gateway by client, for the commands that show which client
// sends most.
package clients

import (
	"cmp"
	"context"
	"hash/maphash"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"sluice.dev/sluice/serve/status"
)

// Client has the flows of a client.
type Client struct {
	Address netip.Addr `json:"client"`
	Flows   int        `json:"flows"`
	Opening int        `json:"opening"` // TCP flows whose handshake is not complete
	// Packets and Bytes count both directions per second. They are known if Rated: the flow log
	// counts them and there was an answer before.
	Packets float64 `json:"packets"`
	Bytes   float64 `json:"bytes"`
	Rated   bool    `json:"rated"`
}

// Sums sums flows by client. It keeps each flow's counts of the answer before: a sum over the flows
// of a client decreases when one ends. It must not be used concurrently.
type Sums struct {
	client *status.Client
	now    func() time.Time
	seed   maphash.Seed
	before map[uint64][2]uint64 // packets and bytes by a hash of the flow
	at     time.Time
}

// New returns sums of a gateway's flows, without an answer before.
func New(client *status.Client, now func() time.Time) *Sums {
	return &Sums{client: client, now: now, seed: maphash.MakeSeed()}
}

// Ask reads all flows. It returns the clients with most bytes or, if these are not known, most
// flows first, and a note about the list.
func (s *Sums) Ask(ctx context.Context) (list []Client, note string, err error) {
	rows := map[netip.Addr]*Client{}
	counts := make(map[uint64][2]uint64, len(s.before))
	counted := false
	err = s.client.Flows(ctx, status.FlowFilter{}, func(v *status.FlowView) error {
		r := rows[v.Client.Addr()]
		if r == nil {
			r = &Client{Address: v.Client.Addr()}
			rows[r.Address] = r
		}
		r.Flows++
		if strings.EqualFold(v.State, "syn_sent") || strings.EqualFold(v.State, "syn_recv") {
			r.Opening++
		}
		if t := v.Traffic; t != nil {
			counted = true
			n := [2]uint64{t.ToBackend + t.ToClient, t.ToBackendBytes + t.ToClientBytes}
			key := maphash.Comparable(s.seed, [3]any{v.Protocol, v.Client, v.VIP})
			counts[key] = n
			if old := s.before[key]; old[1] <= n[1] {
				n[0], n[1] = n[0]-old[0], n[1]-old[1]
			}
			r.Packets, r.Bytes = r.Packets+float64(n[0]), r.Bytes+float64(n[1])
		}
		return nil
	})
	if err != nil {
		return nil, "", err
	}
	now := s.now()
	elapsed := max(now.Sub(s.at).Seconds(), 1e-3)
	rated := counted && s.before != nil
	for _, address := range slices.SortedFunc(maps.Keys(rows), netip.Addr.Compare) {
		r := rows[address]
		r.Rated = rated
		if r.Packets, r.Bytes = r.Packets/elapsed, r.Bytes/elapsed; !rated {
			r.Packets, r.Bytes = 0, 0
		}
		list = append(list, *r)
	}
	slices.SortStableFunc(list, func(x, y Client) int {
		return cmp.Or(cmp.Compare(y.Bytes, x.Bytes), cmp.Compare(y.Flows, x.Flows))
	})
	s.before, s.at = counts, now
	if !counted && len(rows) > 0 {
		note = "flowLog.traffic counts bytes"
	}
	return list, note, nil
}

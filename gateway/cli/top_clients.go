package cli

import (
	"context"
	"hash/maphash"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"sluice.dev/sluice/gateway/cli/top"
	"sluice.dev/sluice/internal/table"
	"sluice.dev/sluice/serve/status"
)

// clientRow has the flows of a client.
type clientRow struct {
	client  netip.Addr
	flows   int
	opening int // TCP flows whose handshake is not complete
	// packets and bytes count both directions per second; known if the flow log counts them
	// and there was an answer before.
	packets, bytes float64
	known          bool
}

func clientTable() *table.Table[clientRow] {
	type view = clientRow
	rate := func(name string, of func(*view) float64, text func(uint64) string) table.Column[view] {
		return table.Column[view]{Name: name,
			Text: func(v *view) string {
				if !v.known {
					return ""
				}
				return text(uint64(math.Round(of(v))))
			},
			Number: func(v *view) (float64, bool) { return of(v), v.known }}
	}
	return &table.Table[view]{
		Key: func(v *view) string { return v.client.String() },
		Columns: []table.Column[view]{
			{Name: "CLIENT", Text: func(v *view) string { return v.client.String() }},
			{Name: "FLOWS", Text: func(v *view) string { return strconv.Itoa(v.flows) },
				Number: func(v *view) (float64, bool) { return float64(v.flows), true }},
			{Name: "OPENING", Text: func(v *view) string { return strconv.Itoa(v.opening) },
				Number: func(v *view) (float64, bool) { return float64(v.opening), true }},
			rate("PACKETS/s", func(v *view) float64 { return v.packets },
				func(n uint64) string { return strconv.FormatUint(n, 10) }),
			rate("BYTES/s", func(v *view) float64 { return v.bytes }, table.ByteCount),
		},
	}
}

// clientFlows sums flows by client. It keeps each flow's counts of the answer before: a sum over
// the flows of a client decreases when one ends.
type clientFlows struct {
	client *status.Client
	now    func() time.Time
	seed   maphash.Seed
	before map[uint64][2]uint64 // packets and bytes by a hash of the flow
	at     time.Time
}

func (c *clientFlows) ask(ctx context.Context) (a top.Answer[clientRow], err error) {
	if c.before == nil {
		c.seed = maphash.MakeSeed()
	}
	rows := map[netip.Addr]*clientRow{}
	counts := make(map[uint64][2]uint64, len(c.before))
	counted := false
	err = c.client.Flows(ctx, status.FlowFilter{}, func(v *status.FlowView) error {
		r := rows[v.Client.Addr()]
		if r == nil {
			r = &clientRow{client: v.Client.Addr()}
			rows[r.client] = r
		}
		r.flows++
		if strings.EqualFold(v.State, "syn_sent") || strings.EqualFold(v.State, "syn_recv") {
			r.opening++
		}
		if t := v.Traffic; t != nil {
			counted = true
			n := [2]uint64{t.ToBackend + t.ToClient, t.ToBackendBytes + t.ToClientBytes}
			key := maphash.Comparable(c.seed, [3]any{v.Protocol, v.Client, v.VIP})
			counts[key] = n
			if old := c.before[key]; old[1] <= n[1] {
				n[0], n[1] = n[0]-old[0], n[1]-old[1]
			}
			r.packets, r.bytes = r.packets+float64(n[0]), r.bytes+float64(n[1])
		}
		return nil
	})
	if err != nil {
		return a, err
	}
	now := c.now()
	elapsed := now.Sub(c.at).Seconds()
	for _, client := range slices.SortedFunc(maps.Keys(rows), netip.Addr.Compare) {
		r := rows[client]
		r.known = counted && c.before != nil
		r.packets, r.bytes = r.packets/elapsed, r.bytes/elapsed
		a.Rows = append(a.Rows, *r)
	}
	// Without counts the order by them is the one before: most flows first.
	slices.SortStableFunc(a.Rows, func(x, y clientRow) int { return y.flows - x.flows })
	c.before, c.at = counts, now
	if !counted && len(rows) > 0 {
		a.Note = "flowLog.traffic counts bytes"
	}
	return a, nil
}

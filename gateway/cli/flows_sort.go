package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"sluice.dev/sluice/serve/status"
)

// flowOrders are the values of --sort.
var flowOrders = []string{"bytes", "packets", "age"}

// sortedByDefault is the number of flows that --sort lists without --limit.
const sortedByDefault = 20

// weigh returns a flow's place in an order, the greatest first; ok is false if the gateway does not
// know it.
func weigh(v *status.FlowView, order string, now time.Time) (n uint64, ok bool) {
	t := v.Traffic
	switch {
	case order == "age":
		return uint64(max(0, now.Sub(v.Start))), !v.Start.IsZero()
	case t == nil:
		return 0, false
	case order == "bytes":
		return t.ToBackendBytes + t.ToClientBytes, true
	}
	return t.ToBackend + t.ToClient, true
}

// heaviest keeps the flows with the most of something.
type heaviest struct {
	list  []weighedFlow // sorted
	limit int
}

type weighedFlow struct {
	n uint64
	v status.FlowView
}

func (h *heaviest) add(n uint64, v *status.FlowView) {
	if len(h.list) == h.limit && n <= h.list[h.limit-1].n {
		return
	}
	at, _ := slices.BinarySearchFunc(h.list, n, func(w weighedFlow, n uint64) int { return cmp.Compare(n, w.n) })
	h.list = slices.Insert(h.list, at, weighedFlow{n, *v})
	h.list = h.list[:min(len(h.list), h.limit)]
}

// sortFlows prints the flows with the most of something.
func (s *session) sortFlows(ctx context.Context, filter status.FlowFilter, order string, limit int) error {
	order = strings.ToLower(order)
	return s.ask(func(client *status.Client) error {
		most := heaviest{limit: cmp.Or(limit, sortedByDefault)}
		selected, unknown, now := 0, 0, time.Now()
		err := client.Flows(ctx, filter, func(v *status.FlowView) error {
			selected++
			if n, ok := weigh(v, order, now); ok {
				most.add(n, v)
			} else {
				unknown++
			}
			return nil
		})
		if err != nil {
			return err
		}
		if selected > 0 && unknown == selected {
			return errors.New("the gateway does not know the " + order + " of these flows: it counts them with " +
				"flowLog.directory and flowLog.traffic, from the start of a flow on (docs/flow-log.md)")
		}
		if err := s.checkFilter(ctx, client, &filter, selected); err != nil {
			return err
		}
		if unknown > 0 {
			s.note(fmt.Sprintf("%s left out: they are older than the count.", plural(unknown, "flow")))
		}
		list := make([]status.FlowView, len(most.list))
		for i := range most.list {
			list[i] = most.list[i].v
		}
		return s.print(list, func(r *rows) {
			r.row("PROTO", "STATE", "AGE", "TO-BACKEND", "BYTES", "TO-CLIENT", "BYTES", "CLIENT", "VIP", "SNAT",
				"BACKEND", "SERVICE")
			for i := range list {
				v := &list[i]
				t := cmp.Or(v.Traffic, &status.FlowTraffic{})
				r.row(v.Protocol, v.State, now.Sub(v.Start).Round(time.Second), t.ToBackend, t.ToBackendBytes,
					t.ToClient, t.ToClientBytes, v.Client, v.VIP, v.SNAT, v.Backend, v.Service)
			}
		})
	})
}

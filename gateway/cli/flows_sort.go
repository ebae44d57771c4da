package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"sluice.dev/sluice/internal/table"
	"sluice.dev/sluice/serve/status"
)

// sortedByDefault is the number of flows that --sort lists without --limit.
const sortedByDefault = 20

// flowTable describes the list of flows. now is the clock for their age.
func flowTable(now func() time.Time) *table.Table[status.FlowView] {
	type view = status.FlowView
	// sum returns a column of what flows have in both directions.
	sum := func(name string, count func(*status.FlowTraffic) (toBackend, toClient uint64), text func(uint64) string,
	) table.Column[view] {
		return table.Column[view]{Name: name, Show: table.Wide,
			Text: func(v *view) string {
				if v.Traffic == nil {
					return ""
				}
				to, from := count(v.Traffic)
				return text(to) + "+" + text(from)
			},
			Number: func(v *view) (float64, bool) {
				if v.Traffic == nil {
					return 0, false
				}
				to, from := count(v.Traffic)
				return float64(to + from), true
			}}
	}
	return &table.Table[view]{Columns: []table.Column[view]{
		{Name: "PROTO", Text: func(v *view) string { return v.Protocol }},
		{Name: "STATE", Text: func(v *view) string { return v.State }},
		{Name: "EXPIRES", Show: table.Wide, Text: func(v *view) string { return seconds(v.ExpiresSeconds) },
			Number: func(v *view) (float64, bool) { return float64(v.ExpiresSeconds), true }},
		{Name: "IDLE", Show: table.Wide, Text: func(v *view) string { return seconds(v.IdleSeconds) },
			Number: func(v *view) (float64, bool) { return float64(v.IdleSeconds), true }},
		{Name: "AGE", Show: table.Wide,
			Text: func(v *view) string {
				if v.Start.IsZero() {
					return ""
				}
				return now().Sub(v.Start).Round(time.Second).String()
			},
			Number: func(v *view) (float64, bool) { return now().Sub(v.Start).Seconds(), !v.Start.IsZero() }},
		sum("PACKETS", func(t *status.FlowTraffic) (uint64, uint64) { return t.ToBackend, t.ToClient },
			func(n uint64) string { return strconv.FormatUint(n, 10) }),
		sum("BYTES", func(t *status.FlowTraffic) (uint64, uint64) { return t.ToBackendBytes, t.ToClientBytes },
			table.ByteCount),
		{Name: "CLIENT", Text: func(v *view) string { return v.Client.String() }},
		{Name: "VIP", Text: func(v *view) string { return v.VIP.String() }},
		{Name: "SNAT", Show: table.Wide, Text: func(v *view) string { return v.SNAT.String() }},
		{Name: "BACKEND", Text: func(v *view) string { return v.Backend.String() }},
		{Name: "PROXY", Show: table.Wide, Text: func(v *view) string { return v.ProxyHeader }},
		{Name: "SERVICE", Show: table.Wide, Text: func(v *view) string { return v.Service }},
		{Name: "GROUP", Show: table.Wide, Text: func(v *view) string { return v.Group }},
	}}
}

// first keeps the flows that come first by a column.
type first struct {
	column *table.Column[status.FlowView]
	list   []status.FlowView // sorted
	limit  int
}

func (f *first) add(v *status.FlowView) {
	if len(f.list) == f.limit && f.column.Compare(v, &f.list[f.limit-1]) >= 0 {
		return
	}
	at, _ := slices.BinarySearchFunc(f.list, v, func(w status.FlowView, v *status.FlowView) int {
		return cmp.Or(f.column.Compare(&w, v), -1) // behind its equals
	})
	f.list = slices.Insert(f.list, at, *v)
	f.list = f.list[:min(len(f.list), f.limit)]
}

// sortFlows prints the flows that come first by a column.
func (s *session) sortFlows(
	ctx context.Context, t *table.Table[status.FlowView], filter status.FlowFilter, order string, limit int,
) error {
	order = strings.ToLower(order)
	return s.ask(func(client *status.Client) error {
		most := first{column: t.Column(order), limit: cmp.Or(limit, sortedByDefault)}
		selected, unknown := 0, 0
		err := client.Flows(ctx, filter, func(v *status.FlowView) error {
			selected++
			if _, known := most.column.Value(v); known {
				most.add(v)
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
		return s.print(most.list, func(r *rows) {
			printTable(s, r, t, most.list, table.Form{Wide: s.format == formatWide, Sort: order})
		})
	})
}

package cli

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"sluice.dev/sluice/internal/table"
	"sluice.dev/sluice/serve/status"
)

// serviceFlows are the flows of a service port.
type serviceFlows struct {
	service string // "": of none
	flows   int
	states  map[string]int
}

// serviceFlowsTable describes the summary of the flow table.
func serviceFlowsTable() *table.Table[serviceFlows] {
	type view = serviceFlows
	return &table.Table[view]{Columns: []table.Column[view]{
		{Name: "SERVICE", Text: func(v *view) string { return v.service }},
		{Name: "FLOWS", Text: func(v *view) string { return strconv.Itoa(v.flows) },
			Number: func(v *view) (float64, bool) { return float64(v.flows), true }},
		{Name: "STATES", Text: func(v *view) string { return stateCounts(v.states) }},
	}}
}

// stateCounts prints numbers of flows by state, in the order of a connection's life.
func stateCounts(states map[string]int) string {
	var parts []string
	for _, state := range flowStates {
		if n := states[state]; n > 0 {
			parts = append(parts, fmt.Sprintf("%s=%d", state, n))
		}
	}
	var others []string
	for state, n := range states {
		if !slices.Contains(flowStates, state) { // of a daemon of another version
			others = append(others, fmt.Sprintf("%s=%d", state, n))
		}
	}
	slices.Sort(others)
	return strings.Join(append(parts, others...), ",")
}

// summariseFlows prints the number of flows of each service port by state.
func (s *session) summariseFlows(ctx context.Context) error {
	return s.ask(func(client *status.Client) error {
		var list []serviceFlows
		at := map[string]int{}
		all := 0
		err := client.Flows(ctx, status.FlowFilter{}, func(v *status.FlowView) error {
			i, known := at[v.Service]
			if !known {
				i = len(list)
				at[v.Service] = i
				list = append(list, serviceFlows{service: v.Service, states: map[string]int{}})
			}
			list[i].flows++
			list[i].states[strings.ToLower(v.State)]++
			all++
			return nil
		})
		if err != nil {
			return err
		}
		t := serviceFlowsTable()
		t.Sort(list, "service")
		t.Sort(list, "flows")
		r := newRows(s.out)
		printTable(s, r, t, list, table.Form{Wide: s.format == formatWide})
		if err := r.flush(); err != nil {
			return err
		}
		if all == 0 {
			s.note("The gateway has no flows.")
			return nil
		}
		s.note(plural(all, "flow") + ". To list them, give a Service or a filter: `sluice flows NAMESPACE/NAME`, " +
			"--client, --state; or --limit.")
		return nil
	})
}

package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/gateway/cli/top"
	"sluice.dev/sluice/internal/table"
	"sluice.dev/sluice/nat/reason"
	"sluice.dev/sluice/serve/status"
)

// defaultSince is the period that the list covers without --since.
const defaultSince = time.Minute

func (s *session) dropsCommand() *cobra.Command {
	var sorted string
	since := defaultSince
	t := sampledTable(0)
	c := &cobra.Command{
		Use:     "drops [NAMESPACE/NAME...]",
		Aliases: []string{"drop"},
		Short:   "List dropped packets by reason, Service and client",
		Long: "drops lists the packets that the workers dropped in the last minute, or a longer time, by reason,\n" +
			"Service and client. PACKETS is an estimate by samples; all packets with a reason add up to its counter\n" +
			"in stats. MOST-OF is the client with the most packets, or the source of packets without a client.\n" +
			"Packets that the kernel program drops have no samples.",
		Example: "  sluice drops\n" +
			"  sluice drops shop/web --since 10m\n" +
			"  sluice drops -o json",
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: complete(0, s.serviceNames),
		RunE: func(c *cobra.Command, args []string) error {
			if since <= 0 {
				return usageError{fmt.Errorf("--since is %v: write a time such as 30s, of at most 10m", since)}
			}
			return s.ask(func(client *status.Client) error {
				v, err := client.DropsOver(c.Context(), since)
				if err == nil {
					err = chooseDrops(c.Context(), client, &v, args)
				}
				if err != nil {
					return err
				}
				t := sampledTable(v.Until.Sub(v.Since))
				t.Sort(v.Drops, sorted)
				err = s.print(v, func(r *rows) {
					if len(v.Drops) > 0 {
						f := table.Form{Wide: s.format == formatWide, Sort: sorted}
						printPainted(s, r, t, v.Drops, f, ofDrop)
					}
				})
				s.dropNotes(&v, args)
				return err
			})
		},
	}
	c.Flags().DurationVar(&since, "since", since, "drops of this time, at most 10m")
	sortFlag(c, &sorted, t.Names(), "sort by a column, the greatest number first: "+strings.Join(t.Names(), ", "))
	s.watched(c)
	return c
}

// chooseDrops keeps the drops of Services. It returns an error for one that the gateway does not
// serve.
func chooseDrops(ctx context.Context, client *status.Client, v *status.DropsView, names []string) error {
	if len(names) == 0 {
		return nil
	}
	list, err := client.Services(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range names {
		if !slices.ContainsFunc(list, func(v status.ServiceView) bool {
			return selectsService(name, v.Namespace, v.Name, v.PortName)
		}) {
			errs = append(errs, noService(name, list))
		}
	}
	v.Drops = slices.DeleteFunc(v.Drops, func(d status.DropView) bool {
		namespace, rest, _ := strings.Cut(d.Service, "/")
		service, port, _ := strings.Cut(rest, ":")
		return !slices.ContainsFunc(names, func(name string) bool {
			return d.Service != "" && selectsService(name, namespace, service, port)
		})
	})
	return errors.Join(errs...)
}

// dropNotes prints the time of the samples, and the drops without samples, which no Service has.
func (s *session) dropNotes(v *status.DropsView, names []string) {
	span := v.Until.Sub(v.Since).Round(time.Second)
	switch {
	case len(v.Drops) == 0 && len(names) > 0:
		s.note(fmt.Sprintf("No packet of %s was dropped in the last %v.", strings.Join(names, ", "), span))
	case len(v.Drops) == 0:
		s.note(fmt.Sprintf("No packet was dropped in the last %v.", span))
	default:
		s.note(fmt.Sprintf("Estimates for the last %v; `sluice stats` counts exactly since the start.", span))
	}
	if text := pairs(v.KernelProgram); text != "" && len(names) == 0 {
		s.note("The kernel program has dropped packets since it was loaded, of which there are no samples: " + text +
			". `sluice deny list` counts those of denied clients.")
	}
}

// sampledTable describes the list of drops in a time.
func sampledTable(in time.Duration) *table.Table[status.DropView] {
	type view = status.DropView
	perSecond := func(v *view) float64 { return float64(v.Packets) / max(in.Seconds(), 1) }
	return &table.Table[view]{
		Key: func(v *view) string { return v.Reason + " " + v.Service },
		Columns: []table.Column[view]{
			{Name: "REASON", Text: func(v *view) string { return v.Reason }},
			{Name: "SERVICE", Text: func(v *view) string { return v.Service }},
			{Name: "PACKETS", Text: func(v *view) string { return strconv.FormatUint(v.Packets, 10) },
				Number: func(v *view) (float64, bool) { return float64(v.Packets), true }},
			{Name: "PACKETS/s", Text: func(v *view) string { return fmt.Sprintf("%.1f", perSecond(v)) },
				Number: func(v *view) (float64, bool) { return perSecond(v), true }},
			{Name: "MOST-OF", Text: func(v *view) string { return clientShares(v, 1) }},
			{Name: "CLIENTS", Show: table.Wide, Text: func(v *view) string { return clientShares(v, len(v.Clients)) }},
			{Name: "SAMPLES", Show: table.Wide, Text: func(v *view) string { return strconv.FormatUint(v.Samples, 10) },
				Number: func(v *view) (float64, bool) { return float64(v.Samples), true }},
			{Name: "LAST", Show: table.Wide, Text: func(v *view) string { return v.Last.UTC().Format(time.RFC3339) }},
		},
	}
}

// ofDrop paints drops that the gateway, its routes or the Service's endpoints cause, and drops by a
// Service's limits. All others are a client's or a sender's doing.
func ofDrop(v *status.DropView) rendition {
	r, _ := reason.Parse(v.Reason)
	switch r {
	case reason.NoEndpoints, reason.NoLocalEndpoints, reason.NewFlowDisplaced, reason.FlowTableFull,
		reason.HalfOpenLimit, reason.SNATPortsExhausted, reason.NoRoute, reason.NeighbourPending,
		reason.NeighbourQueueFull, reason.NeighbourDisplaced, reason.TxRingFull, reason.LinkDown, reason.NoFrame,
		reason.HostLinkDown, reason.FragmentLimit:
		return red
	case reason.LimitSourceConnections, reason.LimitSourceRate, reason.LimitServiceConnections,
		reason.LimitServiceRate:
		return yellow
	}
	return plain
}

// clientShares prints the shares of the first clients, at most most, and the number of others.
func clientShares(v *status.DropView, most int) string {
	var parts []string
	for _, c := range v.Clients[:min(most, len(v.Clients))] {
		name := "unknown"
		if c.Client.IsValid() {
			name = c.Client.String()
		}
		parts = append(parts, fmt.Sprintf("%s %.0f%%", name, 100*float64(c.Packets)/float64(max(1, v.Packets))))
	}
	if others := len(v.Clients) - len(parts) + v.MoreClients; others > 0 {
		parts = append(parts, fmt.Sprintf("%d more", others))
	}
	return strings.Join(parts, ", ")
}

// recentDrops lists the drops of the last minute for top.
func recentDrops(ctx context.Context, client *status.Client) (a top.Answer[status.DropView], err error) {
	v, err := client.DropsOver(ctx, defaultSince)
	if err != nil {
		return a, err
	}
	a.Rows, a.Note = v.Drops, "estimates for "+v.Until.Sub(v.Since).Round(time.Second).String()
	if text := pairs(v.KernelProgram); text != "" {
		a.Note += "; kernel program since it was loaded: " + text
	}
	return a, nil
}

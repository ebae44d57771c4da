package cli

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/internal/table"
	"sluice.dev/sluice/serve/status"
)

func (s *session) denyCommand() *cobra.Command {
	var after time.Duration
	c := &cobra.Command{
		Use:   "deny CLIENT",
		Short: "Drop all packets of a client; list and remove denied clients",
		Long: "deny drops the packets of a client (an address or a CIDR) to Services before a worker sees them, and\n" +
			"ends its flows. The node's own connections, and answers of backends, are not concerned. An entry stays\n" +
			"in force when the daemon restarts. `deny` of the configuration has entries, too. Neither applies to\n" +
			"other gateways.",
		Example: "  sluice deny 198.51.100.7 --for 1h\n" +
			"  sluice deny 2001:db8:66::/48\n" +
			"  sluice deny list\n" +
			"  sluice deny remove 198.51.100.7",
		Args: one,
		RunE: func(c *cobra.Command, args []string) error {
			if after < 0 || after == 0 && c.Flags().Changed("for") {
				return usageError{fmt.Errorf("--for is %v: give a time such as 15m, or leave it out for no end", after)}
			}
			return s.deny(c, args[0], after)
		},
	}
	c.Flags().DurationVar(&after, "for", 0, "how long; without it until the entry is removed")
	c.AddCommand(
		s.denyListCommand(),
		&cobra.Command{
			Use: "remove CLIENT", Short: "Accept packets of a client again", Args: one,
			ValidArgsFunction: complete(1, s.clientsOfOperator),
			RunE:              func(c *cobra.Command, args []string) error { return s.allow(c, args[0]) },
		},
	)
	return c
}

func (s *session) deny(c *cobra.Command, client string, after time.Duration) error {
	p, err := status.ParseClient(client)
	if err != nil {
		return usageError{err}
	}
	return s.ask(func(client *status.Client) error {
		v, err := client.Deny(c.Context(), p, after)
		if err != nil {
			return err
		}
		return s.print(v, func(r *rows) {
			r.line(v.DenialText() + "; ended " + plural(v.Flows, "flow"))
			for _, note := range v.Notes {
				r.line(note)
			}
		})
	})
}

func (s *session) allow(c *cobra.Command, client string) error {
	p, err := status.ParseClient(client)
	if err != nil {
		return usageError{err}
	}
	return s.ask(func(client *status.Client) error {
		if err := client.Allow(c.Context(), p); err != nil {
			return err
		}
		list, err := client.Denials(c.Context())
		if err != nil {
			return err
		}
		return s.print(status.Count{Count: 1}, func(r *rows) {
			r.line(p.String() + " is no longer denied")
			for i := range list {
				if v := &list[i]; v.Client.Overlaps(p) && v.Client.Bits() < p.Bits() {
					r.line("but " + v.DenialText())
				}
			}
		})
	})
}

func (s *session) denyListCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "list [CLIENT...]",
		Short: "List the denied clients, and how many of their packets were dropped",
		Long: "list lists the entries, or only entries that overlap the given clients (addresses or CIDRs).\n" +
			"PACKETS counts the dropped packets that no longer prefix of the list has.",
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: complete(0, s.deniedClients),
	}
	var list *listing[status.DenialView]
	c.RunE = func(c *cobra.Command, args []string) error {
		for _, a := range args {
			if _, err := status.ParseClient(a); err != nil {
				return usageError{err}
			}
		}
		return s.ask(func(client *status.Client) error {
			return list.show(c.Context(), func() ([]status.DenialView, error) {
				all, err := client.Denials(c.Context())
				if err != nil {
					return nil, err
				}
				if len(all) == 0 && len(args) == 0 {
					s.note("No client is denied.")
				}
				return choose(all, args, func(v *status.DenialView, argument string) bool {
					p, err := status.ParseClient(argument)
					return err == nil && p.Overlaps(v.Client)
				}, func(argument string) error { s.note(argument + " is not denied."); return nil })
			})
		})
	}
	list = newListing(s, c, denialTable())
	return c
}

func denialTable() *table.Table[status.DenialView] {
	type view = status.DenialView
	return &table.Table[view]{
		Key: func(v *view) string { return v.Client.String() + " " + v.From },
		Columns: []table.Column[view]{
			{Name: "CLIENT", Text: func(v *view) string { return clientText(v.Client) }},
			{Name: "UNTIL", Text: func(v *view) string {
				if v.Until.IsZero() {
					return "-"
				}
				return v.Until.UTC().Format(time.RFC3339)
			}},
			{Name: "FROM", Text: func(v *view) string { return v.From }},
			{Name: "PACKETS", Counter: func(v *view) *uint64 { return &v.Packets }},
		},
	}
}

// clientText prints a single address without its length.
func clientText(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"sluice.dev/sluice/flowtable/conn"
	"sluice.dev/sluice/internal/table"
	"sluice.dev/sluice/internal/usage"
	"sluice.dev/sluice/serve/status"
)

// endpointFlag is a flag that takes an address, address:port or prefix.
type endpointFlag struct{ e *status.Endpoint }

// String, Set and Type implement pflag.Value.
func (f endpointFlag) String() string {
	if f.e == nil {
		return ""
	}
	return f.e.String()
}

// Type names the flag's values in help.
func (f endpointFlag) Type() string { return "address" }

// Set returns an error for a text that is not an address.
func (f endpointFlag) Set(s string) (err error) {
	*f.e, err = status.ParseEndpoint(s)
	return err
}

// wordFlag is a flag with a fixed set of values. It rejects other values: the result would look
// like a table without flows.
type wordFlag struct {
	v     *string
	known []string
}

// String, Set and Type implement pflag.Value.
func (f wordFlag) String() string {
	if f.v == nil {
		return ""
	}
	return *f.v
}

// Type names the flag's values in help.
func (f wordFlag) Type() string { return "word" }

// Set accepts a known word, in upper or lower case.
func (f wordFlag) Set(s string) error {
	if err := usage.OneOf(s, f.known); err != nil {
		return err
	}
	*f.v = s
	return nil
}

// Values of filters: the protocols that are translated, and the names of the table's states.
var (
	flowProtocols = []string{"tcp", "udp", "sctp", "icmp", "icmpv6"}
	flowStates    = conn.StateNames()
)

func (s *session) flowsCommand() *cobra.Command {
	var filter status.FlowFilter
	var limit int
	var count bool
	var sorted string
	t := flowTable(time.Now)
	c := &cobra.Command{
		Use:     "flows [NAMESPACE/NAME]",
		Aliases: []string{"flow"},
		Short:   "Summarise or list flows, or delete them",
		Long: "flows without a filter counts flows by Service and state. With a filter, --limit or -o json it\n" +
			"lists the flow table, like conntrack -L and ipvsadm -Lnc. A flow must match all filters. An address\n" +
			"filter is an address, address:port or prefix. PACKETS and BYTES are those to the backend and those to\n" +
			"the client, if the flow log counts them.",
		Example: "  sluice flows\n" +
			"  sluice flows shop/web\n" +
			"  sluice flows --vip 192.0.2.10:80 --state established\n" +
			"  sluice flows --client 198.51.100.0/24 -o json\n" +
			"  sluice flows --service shop/web --count\n" +
			"  sluice flows --sort bytes\n" +
			"  sluice flows delete --backend 10.1.2.3:8080",
		Args:              flowsArgument,
		ValidArgsFunction: complete(1, s.serviceNames),
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		f := filter
		if len(args) == 1 {
			if f.Service != "" {
				return usageError{errors.New("flows takes a Service as an argument or as --service, not both")}
			}
			f.Service = args[0]
		}
		switch {
		case limit < 0:
			return usageError{fmt.Errorf("--limit is %d: give the greatest number of flows, or 0 for all", limit)}
		case count && limit > 0:
			return usageError{errors.New("flows takes --count or --limit, not both")}
		case count && sorted != "":
			return usageError{errors.New("flows takes --count or --sort, not both")}
		case count:
			return s.countFlows(c.Context(), f)
		case sorted != "":
			return s.sortFlows(c.Context(), t, f, sorted, limit)
		case f.IsZero() && s.format.text() && !c.Flags().Changed("limit"):
			return s.summariseFlows(c.Context())
		}
		return s.listFlows(c.Context(), t, f, limit)
	}
	s.watched(c)
	c.Flags().IntVar(&limit, "limit", 0, "list at most this number of flows; 0: all")
	c.Flags().BoolVar(&count, "count", false, "print only the number of flows")
	sortFlag(c, &sorted, t.Names(),
		"list flows with the most of it first, by default 20: bytes, packets, age or another column")
	s.flowFilters(c, &filter)
	c.AddCommand(s.flowsDeleteCommand(&filter))
	return c
}

// flowFilters adds the flags of a filter, for c and the commands below it.
func (s *session) flowFilters(c *cobra.Command, filter *status.FlowFilter) {
	f := c.PersistentFlags()
	f.Var(endpointFlag{&filter.Client}, "client", "only flows of this client")
	f.Var(endpointFlag{&filter.VIP}, "vip", "only flows to this virtual address or node port")
	f.Var(endpointFlag{&filter.Backend}, "backend", "only flows to this backend")
	f.Var((*serviceFlag)(&filter.Service), "service",
		"only flows of this service: namespace/name or namespace/name:port")
	f.Var(wordFlag{&filter.State, flowStates}, "state", "only flows in this state: "+strings.Join(flowStates, ", "))
	f.Var(wordFlag{&filter.Protocol, flowProtocols}, "protocol", "only flows of this protocol: "+
		strings.Join(flowProtocols, ", "))
	for name, words := range map[string][]string{"state": flowStates, "protocol": flowProtocols} {
		must(c.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)))
	}
	s.completeFlag(c, "service", s.serviceNames)
	s.completeFlag(c, "backend", s.backendAddresses)
	s.completeFlag(c, "vip", s.frontendAddresses)
}

// flowsArgument accepts the name of a Service. Another argument may be a misspelt command.
func flowsArgument(c *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
		return nil
	case !strings.Contains(args[0], "/"):
		return fmt.Errorf("unknown command %q for %q", args[0], c.CommandPath())
	case len(args) > 1:
		return fmt.Errorf("flows takes one Service, not %d", len(args))
	}
	return new(serviceFlag).Set(args[0])
}

// errEnough stops a listing that reached its limit.
var errEnough = errors.New("enough flows were listed")

// listFlows prints flows as they arrive, at most limit; 0: all.
func (s *session) listFlows(
	ctx context.Context, t *table.Table[status.FlowView], filter status.FlowFilter, limit int,
) error {
	return s.ask(func(client *status.Client) error {
		out := s.flowPrinter(t)
		err := client.Flows(ctx, filter, func(v *status.FlowView) error {
			if limit > 0 && out.n == limit {
				return errEnough
			}
			return out.flow(v)
		})
		if errors.Is(err, errEnough) {
			err = nil
			fmt.Fprintf(s.notes, "sluice: there are more flows than --limit %d\n", limit)
		}
		if err != nil && out.n == 0 {
			return err // without an empty list, which would mean that there are no flows
		}
		if err := s.checkFilter(ctx, client, &filter, out.n); err != nil {
			return err
		}
		return errors.Join(err, out.end())
	})
}

// countFlows prints the number of flows that match.
func (s *session) countFlows(ctx context.Context, filter status.FlowFilter) error {
	return s.ask(func(client *status.Client) error {
		n := 0
		err := client.Flows(ctx, filter, func(*status.FlowView) error { n++; return nil })
		if err != nil {
			return err
		}
		if err := s.checkFilter(ctx, client, &filter, n); err != nil {
			return err
		}
		return s.print(status.Count{Count: n}, func(r *rows) { r.line(strconv.Itoa(n)) })
	})
}

func (s *session) flowsDeleteCommand(filter *status.FlowFilter) *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use:   "delete",
		Short: "Delete the flows that match the filters",
		Long: "delete deletes the flows that match the filters of `sluice flows`. To delete all flows, pass --all.\n" +
			"Client and backend are not notified. When the client sends next, it gets an RST (no_flow), unless\n" +
			"unknownConnection is drop. Copies of other gateways' flows stay: delete these flows at their gateway.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			switch {
			case filter.IsZero() && !all:
				return usageError{errors.New("flows delete needs a filter; give --all to delete every flow")}
			case !filter.IsZero() && all:
				return usageError{errors.New("flows delete takes a filter or --all, not both")}
			}
			return s.ask(func(client *status.Client) error {
				n, err := client.DeleteFlows(c.Context(), *filter, all)
				if err != nil {
					return err
				}
				if err := s.checkFilter(c.Context(), client, filter, n); err != nil {
					return err
				}
				return s.print(status.Count{Count: n}, func(r *rows) { r.line("deleted " + plural(n, "flow")) })
			})
		},
	}
	c.Flags().BoolVar(&all, "all", false, "delete every flow")
	return c
}

// flowPrinter writes flows as they arrive, so that a million of them are never in memory at once.
type flowPrinter struct {
	s     *session
	table *table.Table[status.FlowView]
	next  []status.FlowView // of a table, not yet printed
	n     int
	heads int // printed
}

func (s *session) flowPrinter(t *table.Table[status.FlowView]) *flowPrinter {
	return &flowPrinter{s: s, table: t}
}

// rowsPerTable is the number of rows after which the widths of columns may change.
const rowsPerTable = 1000

func (p *flowPrinter) flow(v *status.FlowView) error {
	p.n++
	switch p.s.format {
	case formatJSON:
		start := ",\n  "
		if p.n == 1 {
			start = "[\n  "
		}
		b, err := json.Marshal(v)
		if err != nil {
			return err
		}
		_, err = io.WriteString(p.s.out, start+string(b))
		return err
	case formatYAML:
		b, err := yaml.Marshal([]*status.FlowView{v})
		if err != nil {
			return err
		}
		_, err = p.s.out.Write(b)
		return err
	}
	if p.next = append(p.next, *v); len(p.next) == rowsPerTable {
		return p.print()
	}
	return nil
}

// print prints the next rows, with a head above the first.
func (p *flowPrinter) print() error {
	r := newRows(p.s.out)
	printTable(p.s, r, p.table, p.next, table.Form{Wide: p.s.format == formatWide, Headless: p.heads > 0})
	p.heads++
	p.next = p.next[:0]
	return r.flush()
}

// end closes the list that flow began. Without flows it prints the table's head or an empty list.
func (p *flowPrinter) end() error {
	switch {
	case p.s.format.text():
		if len(p.next) == 0 && p.n > 0 {
			return nil
		}
		return p.print()
	case p.n == 0:
		_, err := fmt.Fprintln(p.s.out, "[]")
		return err
	case p.s.format == formatJSON:
		_, err := fmt.Fprintln(p.s.out, "\n]")
		return err
	}
	return nil
}

func seconds(n int64) string { return (time.Duration(n) * time.Second).String() }

package cli

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/internal/table"
	"sluice.dev/sluice/serve/status"
)

// Simulate runs a capture through a gateway's packet path; see simulate.Run.
type Simulate func(ctx context.Context, q *status.SimulateQuery) (status.SimulateView, error)

// gateError is the result of a check that a pipeline may stop at: the command has worked.
type gateError struct{ error }

func (s *session) simulateCommand() *cobra.Command {
	q := status.SimulateQuery{MTU: status.DefaultSimulateMTU}
	c := &cobra.Command{
		Use:   "simulate --capture FILE --manifests DIR",
		Short: "Run captured packets through a configuration that is not in force",
		Long: "simulate runs the packets of a capture through the workers' own code, with the Services of a\n" +
			"directory of manifests. It prints verdicts and drop reasons, the share of each backend, the source\n" +
			"ports in use, and packets that exceed the MTU. It needs no gateway and no root, and changes nothing.\n\n" +
			"FILE is pcap or pcapng of Ethernet, of `sluice capture -w` or tcpdump -w, or - for standard input.\n" +
			"Packets to frontends are simulated, and answers of backends to their clients. Connections that were\n" +
			"open when the capture began are left out. --against compares with the configuration in force: flows\n" +
			"that go to another backend, that are no longer forwarded, and that are newly forwarded.\n\n" +
			"Exit codes: 0 if every flow is forwarded, no source ports run out and no packet exceeds the MTU, or\n" +
			"with --against if nothing gets worse than there; 3 if not, with the reasons on standard error; 1 if a\n" +
			"file cannot be read, no packet is for a frontend, or a manifest has an error; 2 for wrong usage.",
		Example: "  sluice capture -w today.pcapng --duration 10m\n" +
			"  sluice simulate --capture today.pcapng --manifests ./new\n" +
			"  sluice simulate --capture today.pcapng --manifests ./new --against ./manifests --config gateway.yaml\n" +
			"  sluice simulate --capture today.pcapng --manifests ./manifests --config new.yaml --against gateway.yaml",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if q.Capture == "" || q.Manifests == "" {
				return usageError{errors.New("simulate needs --capture and --manifests")}
			}
			v, err := s.app.Simulate(c.Context(), &q)
			if err != nil {
				return listed(err)
			}
			if err := s.print(v, func(r *rows) { s.simulateRows(r, &v) }); err != nil {
				return err
			}
			if len(v.Findings) > 0 {
				return gateError{errors.New("simulation: " + strings.Join(v.Findings, "; "))}
			}
			return nil
		},
	}
	f := c.Flags()
	f.StringVar(&q.Capture, "capture", "", "file with the packets, or - for standard input (required)")
	f.StringVar(&q.Manifests, "manifests", "", "directory with the objects to simulate (required)")
	f.StringVar(&q.Config, "config", "", "configuration to simulate (default: the default values)")
	f.StringVar(&q.Node, "node", "", "name of the node (default: the configuration's)")
	f.StringVar(&q.Against, "against", "",
		"compare with this: a directory with other objects, or the file of another configuration")
	f.IntVar(&q.MTU, "mtu", q.MTU, "MTU of all links, in bytes")
	must(c.MarkFlagDirname("manifests"))
	must(c.MarkFlagFilename("capture", "pcap", "pcapng"))
	must(c.MarkFlagFilename("config", "yaml", "yml", "json"))
	return c
}

func (s *session) simulateRows(r *rows, v *status.SimulateView) {
	c := &v.Capture
	r.row("capture", fmt.Sprintf("%s in %v: %d of clients, %d answers, %d others", plural(int(c.Packets), "packet"),
		c.Last.Sub(c.First).Round(time.Millisecond), c.Clients, c.Replies, c.Others+c.Unusable))
	r.row("packets", countsText(&v.Packets))
	r.row("flows", countsText(&v.Flows))
	if v.Flows.Earlier > 0 {
		r.row("left out", fmt.Sprintf("%s of %s that were open when the capture began",
			plural(int(c.Earlier), "packet"), plural(int(v.Flows.Earlier), "flow")))
	}
	r.row("MTU", fmt.Sprintf("%d: %d packets too big, %d fragmented; the largest has %d bytes", v.MTU.Bytes,
		v.MTU.TooBig, v.MTU.Fragmented, v.MTU.Largest))
	if len(v.Drops) > 0 {
		section(r)
		printTable(s, r, simulateDrops, v.Drops, table.Form{})
	}
	if len(v.Services) > 0 {
		section(r)
		printTable(s, r, simulateBackends, simulateShares(v.Services), table.Form{})
	}
	if v.Against != nil {
		comparisonRows(r, v.Against)
	}
	if len(v.Notes)+len(v.Problems) > 0 {
		section(r)
	}
	for _, n := range v.Notes {
		r.row("note", n)
	}
	for i := range v.Problems[:min(len(v.Problems), mostUnread)] {
		r.row("problem", problemText(&v.Problems[i]))
	}
}

func countsText(c *status.SimulateCounts) string {
	return fmt.Sprintf("%d forwarded, %d dropped, %d to the kernel", c.Forwarded, c.Dropped, c.ToKernel)
}

// simulateDrops describes the list of drop reasons.
var simulateDrops = &table.Table[status.SimulateDrop]{
	Key: func(v *status.SimulateDrop) string { return v.Reason },
	Columns: []table.Column[status.SimulateDrop]{
		{Name: "REASON", Text: func(v *status.SimulateDrop) string { return v.Reason }},
		{Name: "PACKETS", Text: func(v *status.SimulateDrop) string { return fmt.Sprint(v.Packets) }},
		{Name: "FLOWS", Text: func(v *status.SimulateDrop) string { return fmt.Sprint(v.Flows) }},
		{Name: "FIRST-FLOW", Text: func(v *status.SimulateDrop) string { return flowText(v.Example) }},
	},
}

// simulateShare is a row of the list of backends.
type simulateShare struct {
	service, scheduler string
	*status.SimulateBackend
}

func simulateShares(list []status.SimulateService) (shares []simulateShare) {
	for i := range list {
		v := &list[i]
		for j := range v.Backends {
			shares = append(shares, simulateShare{v.Service, v.Scheduler, &v.Backends[j]})
		}
	}
	return shares
}

// simulateBackends describes the list of shares.
var simulateBackends = &table.Table[simulateShare]{
	Key: func(v *simulateShare) string { return v.service + v.Address.String() },
	Columns: []table.Column[simulateShare]{
		{Name: "SERVICE", Text: func(v *simulateShare) string { return v.service }},
		{Name: "SCHEDULER", Text: func(v *simulateShare) string { return v.scheduler }},
		{Name: "BACKEND", Text: func(v *simulateShare) string { return v.Address.String() }},
		{Name: "FLOWS", Text: func(v *simulateShare) string { return fmt.Sprint(v.Flows) }},
		{Name: "SHARE", Text: func(v *simulateShare) string { return percentText(v.Share) }},
		{Name: "EXPECTED", Text: func(v *simulateShare) string { return percentText(v.Expected) }},
		{Name: "PORTS", Text: func(v *simulateShare) string {
			return fmt.Sprintf("%d/%d", v.PortsPeak, v.PortsLimit)
		}},
	},
}

func percentText(share float64) string { return fmt.Sprintf("%.1f%%", 100*share) }

func comparisonRows(r *rows, c *status.SimulateComparison) {
	section(r)
	r.line("compared with " + oneLine(c.Path))
	r.row("other backend", changeText(&c.Moved))
	r.row("no longer forwarded", changeText(&c.Lost))
	r.row("newly forwarded", changeText(&c.Gained))
	if c.Chance > 0 {
		r.row("by chance", fmt.Sprintf("%d", c.Chance))
	}
	r.row("same", fmt.Sprint(c.Same))
}

// changeText returns the number of flows with a change, and the first of them.
func changeText(c *status.SimulateChange) string {
	if c.Example == nil {
		return fmt.Sprint(c.Flows)
	}
	return fmt.Sprintf("%d, first %s: %s, was %s", c.Flows, flowText(c.Example), resultText(&c.Example.Result),
		resultText(c.Example.Against))
}

func flowText(f *status.SimulateFlow) string {
	if f == nil {
		return "-"
	}
	return fmt.Sprintf("%v -> %v/%s", f.Client, f.VIP, f.Protocol)
}

// resultText returns the backend of a flow, or why it has none.
func resultText(v *status.SimulateResult) string {
	switch {
	case v.Backend != netip.AddrPort{}:
		return v.Backend.String()
	case v.Verdict == status.VerdictPass:
		return "to the kernel"
	case v.Reason != "":
		return "dropped (" + v.Reason + ")"
	}
	return "no verdict"
}

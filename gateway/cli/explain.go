package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/serve/status"
)

// ExplainOffline explains a packet without a gateway; see explain.Offline.
type ExplainOffline func(ctx context.Context, configFile, manifests, node string,
	q *status.ExplainQuery) (status.ExplainView, error)

func (s *session) explainCommand() *cobra.Command {
	var from, to, configFile, manifests, node string
	var established, syn bool
	c := &cobra.Command{
		Use:   "explain --from CLIENT --to ADDRESS:PORT[/PROTOCOL]",
		Short: "Explain what the gateway would do with a packet, and why",
		Long: "explain prints, step by step, what the gateway would do with a packet from outside. It runs the code\n" +
			"that decides on packets, and changes nothing. With --manifests or --config it needs no gateway: it\n" +
			"answers for a gateway that has just started with them, and marks steps that depend on a gateway's\n" +
			"state as (assumed).",
		Example: "  sluice explain --from 198.51.100.7:40000 --to 203.0.113.10:80/TCP\n" +
			"  sluice explain --from 10.244.3.9 --to '[2001:db8::10]:53/UDP' -o json\n" +
			"  sluice explain --from 198.51.100.7 --to 203.0.113.10:443 --manifests ./manifests --node gw-1",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			switch {
			case from == "" || to == "":
				return usageError{errors.New("explain needs --from and --to")}
			case established && syn:
				return usageError{errors.New("explain takes --syn or --established, not both")}
			}
			q, err := status.ParseExplain(from, to, established)
			if err != nil {
				return usageError{err}
			}
			v, err := s.explain(c.Context(), &q, configFile, manifests, node)
			if err != nil {
				return listed(err)
			}
			if err := s.print(v, func(r *rows) { explainRows(r, &v) }); err != nil {
				return err
			}
			return unread(v.Unread)
		},
	}
	f := c.Flags()
	f.StringVar(&from, "from", "", "source of the packet: an address, which may be a pod's, or address:port (required)")
	f.StringVar(&to, "to", "",
		"destination of the packet: address:port or address:port/protocol, TCP by default (required)")
	f.BoolVar(&syn, "syn", false, "the packet opens a connection or association (this is the default)")
	f.BoolVar(&established, "established", false, "the packet belongs to an open connection or association")
	f.StringVar(&manifests, "manifests", "", "without a gateway: read the objects in this directory")
	f.StringVar(&configFile, "config", "", "without a gateway: use this configuration (default: the default values)")
	f.StringVar(&node, "node", "", "without a gateway: name of the node (default: the configuration's)")
	must(c.MarkFlagDirname("manifests"))
	must(c.MarkFlagFilename("config", "yaml", "yml", "json"))
	return c
}

// unread returns an error that lists the manifests that cannot be read and that the answer leaves
// out.
func unread(list []status.ProblemView) error {
	if len(list) == 0 {
		return nil
	}
	text := "the answer above leaves out files that cannot be read:"
	for i := range list[:min(mostUnread, len(list))] {
		p := &list[i]
		text += "\n  " + oneLine(strings.TrimPrefix(p.Source+": ", ": ")+
			strings.TrimPrefix(problemText(p), p.Source+": "))
	}
	if more := len(list) - mostUnread; more > 0 {
		text += fmt.Sprintf("\n  and %d more, which -o json lists", more)
	}
	return errors.New(text)
}

// mostUnread bounds the list of unread manifests.
const mostUnread = 16

// explain sends the query to the daemon, or answers it offline.
func (s *session) explain(
	ctx context.Context, q *status.ExplainQuery, configFile, manifests, node string,
) (v status.ExplainView, err error) {
	if configFile != "" || manifests != "" {
		return s.app.Explain(ctx, configFile, manifests, node, q)
	}
	if node != "" {
		return v, usageError{errors.New("--node is for explain without a gateway: also give --manifests or --config")}
	}
	err = s.ask(func(client *status.Client) error {
		v, err = client.Explain(ctx, q)
		return err
	})
	return v, err
}

// mostEndpoints bounds the list of endpoints.
const mostEndpoints = 32

func explainRows(r *rows, v *status.ExplainView) {
	what := "opens a connection"
	switch {
	case v.Protocol == "UDP":
		what = "a datagram"
	case !v.Opens:
		what = "of an open connection"
	}
	if v.AnyPort {
		what += "; the source port is assumed"
	}
	if v.Offline {
		what += "; no gateway was asked"
	}
	r.line(fmt.Sprintf("%s %v -> %v, %s", v.Protocol, v.From, v.To, what))
	section(r)
	for _, s := range v.Steps {
		text := s.Text
		if s.Unknown {
			text += " (assumed)"
		}
		r.row(s.Name, text)
		if s.Name == "endpoints" {
			endpointRows(r, v.Endpoints)
		}
	}
	if v.Advice != "" {
		r.row("advice", v.Advice)
	}
	for _, p := range v.Problems {
		r.row("problem", problemText(&p))
	}
}

// problemText returns the problem with its object, or with the file if it has none.
func problemText(p *status.ProblemView) string {
	parts := []string{cmp.Or(strings.TrimSpace(p.Object), p.Source)}
	if p.Field != "" {
		parts = append(parts, p.Field)
	}
	return strings.Join(append(parts, p.Message), ": ")
}

func endpointRows(r *rows, list []status.ExplainEndpoint) {
	for _, e := range list[:min(mostEndpoints, len(list))] {
		in := "out"
		if e.In {
			in = "in"
		}
		text := fmt.Sprintf("%v %s: %s", e.Address, in, e.Why)
		if e.Weight > 1 {
			text += fmt.Sprintf(" (weight %d)", e.Weight)
		}
		r.row("  -", text)
	}
	if more := len(list) - mostEndpoints; more > 0 {
		r.row("  -", fmt.Sprintf("and %d others, which -o json lists", more))
	}
}

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/gateway/flowlog"
	"sluice.dev/sluice/serve/status"
)

// whoView is the answer of who.
type whoView struct {
	At      time.Time   `json:"at"`
	Holders []whoHolder `json:"holders"`
	// Before is the last flow that ended before the time, After the first that began after it.
	Before *whoHolder `json:"before,omitempty"`
	After  *whoHolder `json:"after,omitempty"`
	// LogFrom is the time of the oldest line of the log, Lost the number of its lost lines. Unread
	// has why files could not be read to their ends.
	LogFrom time.Time `json:"logFrom,omitzero"`
	Lost    uint64    `json:"lost,omitempty"`
	Unread  []string  `json:"unread,omitempty"`
}

// whoHolder is a flow that had the source at the time.
type whoHolder struct {
	flowlog.Record
	Ended time.Time `json:"ended,omitzero"`
	Alive bool      `json:"alive"` // it is in the flow table now
	// Doubt is why it is not certain that the flow had the source at the time.
	Doubt string `json:"doubt,omitempty"`
}

func (s *session) whoCommand() *cobra.Command {
	var to, at, protocol, directory string
	c := &cobra.Command{
		Use:   "who SOURCE:PORT",
		Short: "Find the client that had a source address and port at a time",
		Long: "who answers which client sent packets to a backend from an address and port of the gateway, at a\n" +
			"time. It reads the flow log (flowLog.directory), and asks the gateway which flows are alive. With\n" +
			"--files it reads a copy of the log, and needs no gateway. Its exit code is 3 if\n" +
			"no flow had the source.",
		Example: "  sluice who 10.0.1.2:21360\n" +
			"  sluice who 10.0.1.2:21360 --to 10.0.1.12:8080 --at 2026-11-29T12:03:00Z\n" +
			"  sluice who '[2001:db8::2]:21360' --protocol udp --at 12:03 -o json\n" +
			"  sluice who 10.0.1.2:21360 --at 2026-11-29T12:03:00Z --files ./archive",
		Args: one,
		RunE: func(c *cobra.Command, args []string) error {
			q := flowlog.Query{Protocol: protocol, At: time.Now()}
			var err error
			if q.SNAT, err = netip.ParseAddrPort(args[0]); err != nil {
				return usageError{fmt.Errorf("%q is no address and port, write one such as 10.0.1.2:21360", args[0])}
			}
			if to != "" {
				if q.Backend, err = netip.ParseAddrPort(to); err != nil {
					return usageError{fmt.Errorf("--to: %q is no address and port, write one such as 10.0.1.12:8080",
						to)}
				}
			}
			if at != "" {
				if q.At, err = parseTime(at, time.Now()); err != nil {
					return usageError{fmt.Errorf("--at: %w", err)}
				}
			}
			return s.who(c.Context(), q, directory)
		},
	}
	f := c.Flags()
	f.StringVar(&to, "to", "", "the backend that got the packets: address:port; without it: any")
	f.StringVar(&at, "at", "",
		"the time: 2026-11-29T12:03:00Z, 2026-11-29T12:03:00 (local), 12:03 or 12:03:00 (today); without it: now")
	f.Var(wordFlag{&protocol, flowProtocols}, "protocol", "only flows of this protocol: "+
		strings.Join(flowProtocols, ", "))
	f.StringVar(&directory, "files", "", "read the flow log in this directory, and ask no gateway")
	must(c.RegisterFlagCompletionFunc("protocol", cobra.FixedCompletions(flowProtocols,
		cobra.ShellCompDirectiveNoFileComp)))
	must(c.MarkFlagDirname("files"))
	return c
}

// parseTime parses a time as an operator writes it.
func parseTime(text string, now time.Time) (time.Time, error) {
	if t, err := time.Parse(time.RFC3339, text); err == nil {
		return t, nil
	}
	for _, layout := range []string{
		"2006-01-02T15:04:05", "2006-01-02 15:04:05", "2006-01-02T15:04", "2006-01-02 15:04",
	} {
		if t, err := time.ParseInLocation(layout, text, now.Location()); err == nil {
			return t, nil
		}
	}
	for _, layout := range []string{"15:04:05", "15:04"} {
		if t, err := time.Parse(layout, text); err == nil {
			year, month, day := now.Date()
			return time.Date(year, month, day, t.Hour(), t.Minute(), t.Second(), 0, now.Location()), nil
		}
	}
	return time.Time{}, fmt.Errorf("%q is no time, write one such as 2026-11-29T12:03:00Z or 12:03", text)
}

func (s *session) who(ctx context.Context, q flowlog.Query, directory string) error {
	var live []status.FlowView
	asked := directory == ""
	if asked {
		err := s.ask(func(client *status.Client) (err error) {
			directory, live, err = liveHolders(ctx, client, &q)
			return err
		})
		if err != nil {
			return err
		}
	}
	a, err := flowlog.Find(directory, q)
	if err != nil {
		return fmt.Errorf("read the flow log: %w", err)
	}
	if a.Files == 0 && !asked {
		return fmt.Errorf("%s has no files of a flow log (flows-*.jsonl)", directory)
	}
	v := whoOf(&q, a, live, asked)
	if err := s.print(v, func(r *rows) { whoRows(r, &v) }); err != nil {
		return err
	}
	if len(v.Holders) == 0 {
		return gateError{errors.New(noFlowText(&q, &v))}
	}
	return nil
}

// liveHolders returns the directory of the gateway's flow log, and the live flows with the source.
func liveHolders(
	ctx context.Context, client *status.Client, q *flowlog.Query,
) (directory string, live []status.FlowView, err error) {
	st, err := client.Status(ctx, false)
	if err != nil {
		return "", nil, err
	}
	if st.FlowLog == nil {
		return "", nil, errors.New("the gateway has no flow log: set flowLog.directory (docs/flow-log.md). `sluice " +
			"flows` lists the live flows")
	}
	err = client.Flows(ctx, status.FlowFilter{Protocol: q.Protocol}, func(f *status.FlowView) error {
		if f.SNAT == q.SNAT && (!q.Backend.IsValid() || f.Backend == q.Backend) {
			live = append(live, *f)
		}
		return nil
	})
	return st.FlowLog.Directory, live, err
}

// whoOf joins the log and the live flows. asked: live are all flows with the source.
func whoOf(q *flowlog.Query, a *flowlog.Answer, live []status.FlowView, asked bool) whoView {
	v := whoView{At: q.At, LogFrom: a.From, Lost: a.Lost, Unread: a.Unread, Holders: []whoHolder{}}
	live, alive := match(a, live)
	for i := range a.Holders {
		h := &a.Holders[i]
		w := whoHolder{Record: h.Record, Ended: h.Ended}
		if h.Ended.IsZero() {
			switch {
			case alive[i]:
				w.Alive = true
			case asked:
				w.Doubt = "its end is not in the log, and it is not in the flow table any more"
			case h.Restarts > 0:
				w.Doubt = "its end is not in the log, and the gateway was started again before the time"
			}
		}
		v.Holders = append(v.Holders, w)
	}
	for i := range live {
		f := &live[i]
		if f.Start.After(q.At) {
			continue
		}
		w := whoHolder{Alive: true, Record: flowlog.Record{
			Event: flowlog.Begin, Time: f.Start, Start: f.Start, Protocol: f.Protocol, Client: f.Client, VIP: f.VIP,
			SNAT: f.SNAT, Backend: f.Backend, Service: f.Service, Forwarding: f.Forwarding,
		}}
		switch {
		case f.Group == status.GroupCopy:
			w.Doubt = "its start is not known here: it is a copy of a flow of gateway " + cmp.Or(f.Owner, "?") +
				", whose log has it"
		case f.Start.IsZero():
			w.Doubt = "its start is not known, because it is older than the log, was moved to a table of another " +
				"size or version, or was restored from the group"
		}
		v.Holders = append(v.Holders, w)
	}
	if a.Before != nil {
		v.Before = &whoHolder{Record: a.Before.Record, Ended: a.Before.Ended}
	}
	if a.After != nil {
		v.After = &whoHolder{Record: a.After.Record, Ended: a.After.Ended}
	}
	return v
}

// match returns the live flows that are not in the log, and for each holder whether it is alive.
// The flow table has one flow of a tuple. If the log has its begin and no end, both are the same
// flow, even if their starts differ because the clock was set, or if the table does not know its
// start, also if it began after the time of the query. Otherwise the flow may have ended between
// the reading of the flow table and of the log; its start distinguishes it from an earlier flow.
func match(a *flowlog.Answer, live []status.FlowView) (others []status.FlowView, alive []bool) {
	alive = make([]bool, len(a.Holders))
	for i := range live {
		f := &live[i]
		at := slices.IndexFunc(a.Holders, func(h flowlog.Holder) bool {
			return h.Ended.IsZero() && sameTuple(f, &h.Record)
		})
		if at >= 0 {
			alive[at] = true
			continue
		}
		later := func(h flowlog.Holder) bool { return f.Start.IsZero() && sameTuple(f, &h.Record) }
		if !slices.ContainsFunc(a.Later, later) &&
			!slices.ContainsFunc(a.Holders, func(h flowlog.Holder) bool {
				return sameTuple(f, &h.Record) && f.Start.Sub(h.Start).Abs() < time.Second
			}) {
			others = append(others, *f)
		}
	}
	return others, alive
}

func sameTuple(f *status.FlowView, r *flowlog.Record) bool {
	return f.Protocol == r.Protocol && f.Client == r.Client && f.VIP == r.VIP && f.Backend == r.Backend
}

func whoRows(r *rows, v *whoView) {
	if len(v.Holders) == 0 {
		return // the rest is not known
	}
	r.row("PROTO", "CLIENT", "VIP", "SNAT", "BACKEND", "BEGAN", "ENDED", "CLOSED", "WHY", "SERVICE")
	for i := range v.Holders {
		h := &v.Holders[i]
		ended := shortTime(h.Ended)
		if h.Alive {
			ended = "alive"
		} else if h.Ended.IsZero() {
			ended = "?"
		}
		r.row(h.Protocol, h.Client, h.VIP, h.SNAT, h.Backend, shortTime(h.Start), ended, h.Closed, h.Why, h.Service)
	}
	for i := range v.Holders {
		if d := v.Holders[i].Doubt; d != "" {
			r.line("In doubt, " + v.Holders[i].Client.String() + ": " + d + ".")
		}
	}
	if v.Lost > 0 {
		r.line(fmt.Sprintf("The log has lost %d lines: others may have had the source, too.", v.Lost))
	}
	for _, why := range v.Unread {
		r.line("A gap in the log, others may have had the source, too: " + why + ".")
	}
}

// shortTime returns a time in UTC; "?" if it is not known.
func shortTime(t time.Time) string {
	if t.IsZero() {
		return "?"
	}
	return t.UTC().Format("2006-01-02T15:04:05.000Z")
}

// noFlowText explains that no flow had the source.
func noFlowText(q *flowlog.Query, v *whoView) string {
	to := ""
	if q.Backend.IsValid() {
		to = " to " + q.Backend.String()
	}
	text := fmt.Sprintf("no flow had the source %v%s at %s", q.SNAT, to, shortTime(q.At))
	switch {
	case v.LogFrom.IsZero():
		text += "; the flow log is empty"
	case q.At.Before(v.LogFrom):
		text += "; the flow log begins later, at " + shortTime(v.LogFrom)
	}
	if b := v.Before; b != nil {
		text += fmt.Sprintf("; before, %v had it until %s", b.Client, shortTime(b.Ended))
	}
	if n := v.After; n != nil {
		text += fmt.Sprintf("; after, %v had it from %s", n.Client, shortTime(n.Start))
	}
	if v.Lost > 0 {
		text += fmt.Sprintf("; the log has lost %d lines", v.Lost)
	}
	for _, why := range v.Unread {
		text += "; a gap in the log: " + why
	}
	return text
}

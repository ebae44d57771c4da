package cli

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/internal/table"
	"sluice.dev/sluice/internal/wording"
	"sluice.dev/sluice/serve/status"
)

func (s *session) statusCommand() *cobra.Command {
	var wait, verbose bool
	var timeout time.Duration
	c := &cobra.Command{
		Use:   "status",
		Short: "Show which configuration and objects are in force, and every problem",
		Long: "status shows every problem, and for each source how much of its objects is applied. With --wait it\n" +
			"exits with 0 when the configuration is in force: the present file is loaded, without a change that\n" +
			"needs a restart; every source was read without error; no object in a manifest is rejected; and\n" +
			"everything is published, steered and seen by every worker. Otherwise, at --timeout, it prints the\n" +
			"status and the parts that are not in force, and exits with 1. Rejected objects of the Kubernetes API\n" +
			"and failed conditions are shown, but do not change the exit code.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return s.ask(func(client *status.Client) error {
				var v status.StatusView
				var err error
				if wait {
					v, err = waitInForce(c.Context(), client, timeout)
				} else {
					v, err = client.Status(c.Context(), false)
				}
				var not *notInForceError
				if err != nil && !errors.As(err, &not) {
					return err
				}
				return errors.Join(s.print(v, func(r *rows) { s.statusTables(r, &v, verbose) }), err)
			})
		},
	}
	c.Flags().BoolVar(&wait, "wait", false, "wait until the configuration is in force; exit code 1 if it is not")
	c.Flags().DurationVar(&timeout, "timeout", time.Minute, "how long --wait waits")
	c.Flags().BoolVarP(&verbose, "verbose", "v", false, "also show snapshots, frames, CPUs, and settings of sockets")
	s.watched(c)
	return c
}

func (s *session) statusTables(r *rows, v *status.StatusView, verbose bool) {
	ready, readiness := yesNo(v.Ready), plain
	if !v.Ready {
		readiness = red
	}
	if len(v.NotReady) > 0 {
		ready += ": " + strings.Join(v.NotReady, "; ")
	}
	r.row("Node:", v.Node)
	r.row("Daemon:", fmt.Sprintf("%s, pid %d, since %s", v.Version.Version, v.PID, stamp(v.StartedAt)))
	r.in(readiness).row("Ready:", ready)
	if v.Draining {
		r.row("Draining:", "yes")
	}
	application := plain
	if !v.Applied {
		application = yellow
	}
	r.in(application).row("Applied:", yesNo(v.Applied))
	for _, c := range v.Conditions {
		if c.Level == "fail" {
			r.in(red).row("Failed:", c.Name+": "+c.Detail)
		}
	}
	takeOverRows(r, v.TakeOver)
	r.row("Config:", fmt.Sprintf("%s, loaded %s", v.Config.File, stamp(v.Config.LoadedAt)))
	if v.Config.Error != "" {
		r.in(red).row("Refused:", "the present file; the last good version stays in force: "+v.Config.Error)
	}
	for _, change := range v.Config.NeedRestart {
		r.in(yellow).row("Pending:", change)
	}
	n := v.Snapshot
	r.row("Serving:", fmt.Sprintf("%s, %s, %s", plural(n.Services, "service port"), plural(n.Frontends, "frontend"),
		plural(n.Backends, "backend")))
	if verbose {
		r.row("Snapshot:", fmt.Sprintf("published %d, steered %d, seen by all workers %d", n.Published, n.Steered,
			n.Seen))
		if v.Frames.Bytes != 0 { // older daemons do not send it
			r.row("Frames:", fmt.Sprintf("%d bytes: %s", v.Frames.Bytes, v.Frames.Reason))
		}
	}
	problemRows(r, v.Problems)
	conditionRows(r, v.Conditions)
	sourceRows(r, v.Sources)
	s.interfaceRows(r, v.Interfaces)
	groupRows(r, v.Group)
	if verbose {
		placeRows(r, v.Places)
		settingRows(r, v.Interfaces)
	}
}

func placeRows(r *rows, list []status.PlaceView) {
	if len(list) == 0 { // an older daemon, or one that waits
		return
	}
	section(r)
	r.row("CPU", "WORKERS", "WHY", "PACKETS-ARRIVE", "SHORT-SLICE", "WAITED", "WAITING")
	for _, p := range list {
		cpu := "any"
		if p.CPU >= 0 {
			cpu = strconv.Itoa(p.CPU)
		}
		r.row(cpu, wording.Numbers(p.Workers, ","), p.Why, yesNo(p.Arrive), yesNo(p.ShortSlice),
			fmt.Sprintf("%.0f%%", p.WaitedPercent), p.Waiting)
	}
}

// stamp prints a time in the daemon's time zone.
func stamp(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return t.Format(time.RFC3339)
}

func sourceRows(r *rows, list []status.SourceView) {
	section(r)
	r.row("SOURCE", "SYNCED", "OBJECTS", "READ", "APPLIED", "ERROR")
	for _, s := range list {
		r.in(ofError(s.Error)).row(s.Name, yesNo(s.Synced), s.Objects, s.Read, s.Applied, s.Error)
	}
}

// interfaceQueue is a queue of an interface; queue is nil if it has none.
type interfaceQueue struct {
	of    *status.InterfaceView
	queue *status.QueueView
}

func interfaceTable() *table.Table[interfaceQueue] {
	type view = interfaceQueue
	// queue returns a column that is empty for an interface without queues.
	queue := func(name string, text func(*status.QueueView) string) table.Column[view] {
		return table.Column[view]{Name: name, Text: func(v *view) string {
			if v.queue == nil {
				return ""
			}
			return text(v.queue)
		}}
	}
	return &table.Table[view]{
		Urgent: func(v *view) bool { return !v.of.Up || v.queue == nil || !v.queue.Bound },
		Columns: []table.Column[view]{
			{Name: "INTERFACE", Text: func(v *view) string { return v.of.Name }},
			{Name: "UP", Text: func(v *view) string { return yesNo(v.of.Up) }},
			{Name: "DRIVER", Text: func(v *view) string { return v.of.Driver }},
			{Name: "MTU", Text: func(v *view) string { return strconv.Itoa(v.of.MTU) }},
			{Name: "MODE", Text: func(v *view) string { return v.of.Mode }},
			queue("QUEUE", func(q *status.QueueView) string { return strconv.Itoa(q.Queue) }),
			queue("WORKER", func(q *status.QueueView) string { return strconv.Itoa(q.Worker) }),
			queue("SOCKET", (*status.QueueView).SocketMode),
			{Name: "REASON", Show: table.Wide, Text: func(v *view) string {
				if v.queue == nil {
					return v.of.Reason
				}
				return reasons(v.of.Why(v.queue), v.of.Refused, v.queue.Refused)
			}},
		},
	}
}

// interfaceRows prints the queues, and below them why one is not served or a setting was refused.
func (s *session) interfaceRows(r *rows, list []status.InterfaceView) {
	var queues []interfaceQueue
	for i := range list {
		f := &list[i]
		if len(f.Queues) == 0 {
			queues = append(queues, interfaceQueue{of: f})
		}
		for j := range f.Queues {
			queues = append(queues, interfaceQueue{f, &f.Queues[j]})
		}
	}
	section(r)
	t := interfaceTable()
	t.Sort(queues, "")
	printPainted(s, r, t, queues, table.Form{Wide: s.format == formatWide}, func(q *interfaceQueue) rendition {
		if t.Urgent(q) {
			return red
		}
		return plain
	})
	if s.format == formatWide {
		return // with the reasons of all
	}
	said := map[string]bool{}
	for _, q := range queues {
		var why []string
		if t.Urgent(&q) {
			why = append(why, t.Column("REASON").Text(&q))
		} else {
			why = append(why, q.of.Refused...)
			why = append(why, q.queue.Refused...)
		}
		for _, text := range why {
			if line := q.of.Name + ": " + text; text != "" && !said[line] {
				said[line] = true
				r.line(oneLine(line))
			}
		}
	}
}

// settingRows prints the settings of sockets and devices, as the kernel has them.
func settingRows(r *rows, list []status.InterfaceView) {
	section(r)
	r.row("INTERFACE", "QUEUE", "TX-BUDGET", "BUSY-POLL", "NAPI")
	for _, f := range list {
		var device []string
		for _, name := range slices.Sorted(maps.Keys(f.Settings)) {
			device = append(device, name+"="+f.Settings[name])
		}
		for _, q := range f.Queues {
			if !q.Bound {
				continue
			}
			poll := "off"
			if q.BusyPollMicros > 0 {
				poll = fmt.Sprintf("%dus x %d", q.BusyPollMicros, q.BusyPollBudget)
			}
			r.row(f.Name, q.Queue, q.TxBudget, poll, strings.Join(device, " "))
		}
	}
}

// groupRows prints the other gateways of the group, and this one's source addresses.
func groupRows(r *rows, v *status.GroupView) {
	if v == nil {
		return
	}
	section(r)
	r.row("MEMBER", "ADDRESS", "HAS-OUR-FLOWS", "WE-HAVE-ITS-FLOWS", "COPIES", "LAG", "ERROR")
	for _, m := range v.Members {
		r.in(ofError(m.Error)).row(m.Name, m.Address, yesNo(m.HasOurFlows), yesNo(m.WeHaveItsFlows), m.Copies, m.Lag,
			m.Error)
	}
	section(r)
	for _, s := range v.Sources {
		r.row("Source address:", fmt.Sprintf("%v %s", s.Address, s.State))
	}
	r.row("Held ports:", v.HeldPorts)
	unprotected := uint64(0)
	var why []string
	for _, reason := range slices.Sorted(maps.Keys(v.Flows)) {
		if n := v.Flows[reason]; reason != "protected" && n > 0 {
			unprotected += n
			why = append(why, fmt.Sprintf("%s %d", reason, n))
		}
	}
	text := fmt.Sprintf("%d protected, %d not", v.Flows["protected"], unprotected)
	if len(why) > 0 {
		text += ": " + strings.Join(why, ", ")
	}
	r.row("Copied flows:", text)
	if w := v.AnswerWait; w.Count > 0 {
		r.row("Wait for copies:", fmt.Sprintf("median %v, 99th percentile %v",
			time.Duration(w.MedianMicros)*time.Microsecond, time.Duration(w.P99Micros)*time.Microsecond))
	}
}

// reasons joins the reason for the mode with the settings that device and socket rejected.
func reasons(why string, refused ...[]string) string {
	list := slices.Concat(refused...)
	if why != "" {
		list = slices.Insert(list, 0, why)
	}
	return strings.Join(list, "; ")
}

func conditionRows(r *rows, list []status.ConditionView) {
	if len(list) == 0 {
		return
	}
	section(r)
	r.row("CONDITION", "LEVEL", "DETAIL")
	list = slices.Clone(list)
	level := []string{"fail", "warn", "ok"}
	slices.SortStableFunc(list, func(a, b status.ConditionView) int {
		return cmp.Compare(slices.Index(level, a.Level), slices.Index(level, b.Level))
	})
	for _, c := range list {
		r.in(ofLevel(c.Level)).row(c.Name, c.Level, c.Detail)
	}
}

func problemRows(r *rows, list []status.ProblemView) {
	section(r)
	if len(list) == 0 {
		r.line("No problems with objects.")
		return
	}
	r.row("PROBLEM-IN", "OBJECT", "FIELD", "SERVING", "MESSAGE")
	for _, p := range list {
		serving, shown := "not this", red
		switch {
		case p.Warning:
			serving, shown = "yes", yellow
		case p.Serving:
			serving = "last good version"
		}
		r.in(shown).row(p.Source, p.Object, p.Field, serving, p.Message)
	}
}

// takeOverRows prints how the daemon took over from the previous one.
func takeOverRows(r *rows, v *status.TakeOverView) {
	if v == nil {
		return
	}
	for _, why := range v.Refused {
		r.row("Waited:", "the previous daemon did not hand over: "+why)
	}
	if v.Unable != "" {
		r.row("Waited:", "this daemon could not take over: "+v.Unable)
	}
	if v.At.IsZero() {
		return
	}
	r.row("Taken over:", fmt.Sprintf("from %s at %s, packets waited %s, %s; not taken over: %s", v.From, stamp(v.At),
		time.Duration(v.GapMicros)*time.Microsecond, plural(int(v.Flows), "flow"), strings.Join(v.NotHanded, ", ")))
}

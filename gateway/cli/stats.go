package cli

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/internal/table"
	"sluice.dev/sluice/nat/reason"
	"sluice.dev/sluice/serve/status"
)

func (s *session) statsCommand() *cobra.Command {
	var verbose bool
	c := &cobra.Command{
		Use:   "stats",
		Short: "Show all drops, the workers' counters, and how full the flow tables are",
		Long: "stats shows the drops by reason, the counters of each worker, the flow tables and the sockets. With\n" +
			"--verbose it also shows two laws:\n" +
			"  packets: received + generated = transmitted + returned + dropped + held\n" +
			"  frames:  the UMEM's size      = free + in links + held\n" +
			"Both hold exactly between batches; under traffic, the sides may differ by one batch.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return s.ask(func(client *status.Client) error {
				v, err := client.Stats(c.Context())
				if err != nil {
					return err
				}
				return s.print(v, func(r *rows) { s.statsTables(r, &v, verbose) })
			})
		},
	}
	c.Flags().BoolVarP(&verbose, "verbose", "v", false, "also show the laws and the kernel program's counters")
	s.watched(c)
	return c
}

func (s *session) statsTables(r *rows, v *status.StatsView, verbose bool) {
	s.dropRows(r, v.Workers)
	f := table.Form{Wide: s.format == formatWide}
	section(r)
	printTable(s, r, workerTable(), v.Workers, f)
	section(r)
	printTable(s, r, familyTable(), v.Flows, f)
	if len(v.Queues) > 0 {
		section(r)
		printTable(s, r, queueTable(), v.Queues, f)
	}
	if !verbose {
		return
	}
	lawRows(r, v.Workers)
	if len(v.Steering) > 0 {
		section(r)
		r.row("STEERING", "PACKETS")
		for _, name := range slices.Sorted(maps.Keys(v.Steering)) {
			r.row(name, v.Steering[name])
		}
	}
}

// section ends a table, so that the next one has its own widths.
func section(r *rows) {
	// r keeps an error of flush, and the last flush returns it.
	_ = r.flush()
	r.line("")
}

// workerTable describes the list of workers.
func workerTable() *table.Table[status.WorkerView] {
	type view = status.WorkerView
	count := func(name string, show table.Show, counter func(*view) *uint64) table.Column[view] {
		return table.Column[view]{Name: name, Show: show, Counter: counter}
	}
	return &table.Table[view]{
		Key: func(v *view) string { return strconv.Itoa(v.Worker) },
		Columns: []table.Column[view]{
			{Name: "WORKER", Text: func(v *view) string { return strconv.Itoa(v.Worker) }},
			{Name: "CPU", Text: func(v *view) string {
				if v.CPU < 0 {
					return ""
				}
				return strconv.Itoa(v.CPU)
			}},
			count("RX", table.Always, func(v *view) *uint64 { return &v.Rx }),
			count("TX", table.Always, func(v *view) *uint64 { return &v.Tx }),
			count("RETURNED", table.Wide, func(v *view) *uint64 { return &v.Returned }),
			count("GENERATED", table.Wide, func(v *view) *uint64 { return &v.Generated }),
			count("DROPPED", table.Always, func(v *view) *uint64 { return &v.Dropped }),
			{Name: "HELD", Show: table.Wide, Text: func(v *view) string { return strconv.FormatInt(v.Held, 10) }},
			count("FROM-KERNEL", table.Wide, func(v *view) *uint64 { return &v.KernelRx }),
			count("CREATED", table.Always, func(v *view) *uint64 { return &v.FlowsCreated }),
			count("BATCHES", table.Wide, func(v *view) *uint64 { return &v.Batches }),
			count("POLLS", table.Wide, func(v *view) *uint64 { return &v.Polls }),
			{Name: "LOAD", Text: func(v *view) string { return percentText(v.Load) }},
			{Name: "PULSE", Text: pulse},
		},
	}
}

func pulse(w *status.WorkerView) string {
	if w.PulseNanos < 0 {
		return "never"
	}
	return time.Duration(w.PulseNanos).Round(time.Millisecond).String() + " ago"
}

func lawRows(r *rows, list []status.WorkerView) {
	section(r)
	r.row("LAW", "WORKER", "IN", "ACCOUNTED", "HOLDS")
	for i := range list {
		l := list[i].PacketLaw
		r.row("packets", list[i].Worker, l.In, l.Accounted, yesNo(l.Holds))
	}
	for i := range list {
		l := list[i].FrameLaw
		r.row("frames", list[i].Worker, l.Total, fmt.Sprintf("%d+%d+%d", l.Free, l.Links, l.Held), yesNo(l.Holds))
	}
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// drops are the packets that were dropped for a reason.
type drops struct {
	reason  string
	packets uint64
	workers []uint64 // of each
}

// dropTable describes the list of drops; workers are the columns of the wide form.
func dropTable(workers []status.WorkerView) *table.Table[drops] {
	t := &table.Table[drops]{
		Key: func(v *drops) string { return v.reason },
		Columns: []table.Column[drops]{
			{Name: "DROP-REASON", Text: func(v *drops) string { return v.reason }},
			{Name: "PACKETS", Counter: func(v *drops) *uint64 { return &v.packets }},
		},
	}
	for i := range workers {
		t.Columns = append(t.Columns, table.Column[drops]{Name: "WORKER-" + strconv.Itoa(workers[i].Worker),
			Show: table.Wide, Text: func(v *drops) string { return strconv.FormatUint(v.workers[i], 10) }})
	}
	return t
}

// dropList lists the reasons with drops, in the order in which a packet meets them.
func dropList(workers []status.WorkerView) (list []drops) {
	known := map[string]bool{}
	names := reason.Names()
	for _, name := range names {
		known[name] = true
	}
	for i := range workers { // reasons of a daemon that is newer than this command
		for _, name := range slices.Sorted(maps.Keys(workers[i].Drops)) {
			if !known[name] {
				names, known[name] = append(names, name), true
			}
		}
	}
	for _, name := range names {
		d := drops{reason: name}
		for i := range workers {
			n := workers[i].Drops[name]
			d.packets += n
			d.workers = append(d.workers, n)
		}
		if d.packets > 0 {
			list = append(list, d)
		}
	}
	return list
}

func (s *session) dropRows(r *rows, workers []status.WorkerView) {
	list := dropList(workers)
	if len(list) == 0 {
		r.line("No packet was dropped.")
		return
	}
	printTable(s, r, dropTable(workers), list, table.Form{Wide: s.format == formatWide})
}

func familyTable() *table.Table[status.FlowTableView] {
	type view = status.FlowTableView
	return &table.Table[view]{Columns: []table.Column[view]{
		{Name: "FLOWS", Text: func(v *view) string { return v.Family }},
		{Name: "USED", Text: func(v *view) string { return strconv.FormatUint(v.Used, 10) }},
		{Name: "CAPACITY", Text: func(v *view) string { return strconv.FormatUint(v.Capacity, 10) }},
		{Name: "FILL", Text: func(v *view) string {
			if v.Capacity == 0 {
				return ""
			}
			return fmt.Sprintf("%.1f%%", 100*float64(v.Used)/float64(v.Capacity))
		}},
		{Name: "HALF-OPEN", Text: func(v *view) string { return strconv.FormatUint(v.HalfOpen, 10) }},
		{Name: "STATES", Text: func(v *view) string { return pairs(v.States) }},
	}}
}

// pairs prints the counts that are not zero as name=count.
func pairs(m map[string]uint64) string {
	text := ""
	for _, name := range slices.Sorted(maps.Keys(m)) {
		if m[name] == 0 {
			continue
		}
		if text != "" {
			text += ","
		}
		text += fmt.Sprintf("%s=%d", name, m[name])
	}
	return text
}

func queueTable() *table.Table[status.QueueStatsView] {
	type view = status.QueueStatsView
	count := func(name string, show table.Show, counter func(*view) *uint64) table.Column[view] {
		return table.Column[view]{Name: name, Show: show, Counter: counter}
	}
	return &table.Table[view]{
		Key: func(v *view) string { return v.Interface + " " + strconv.Itoa(v.Queue) },
		Columns: []table.Column[view]{
			{Name: "SOCKET", Text: func(v *view) string { return v.Interface }},
			{Name: "QUEUE", Text: func(v *view) string { return strconv.Itoa(v.Queue) }},
			count("RX-DROPPED", table.Always, func(v *view) *uint64 { return &v.RxDropped }),
			count("RX-RING-FULL", table.Always, func(v *view) *uint64 { return &v.RxRingFull }),
			count("FILL-EMPTY", table.Always, func(v *view) *uint64 { return &v.RxFillRingEmpty }),
			count("RX-INVALID", table.Always, func(v *view) *uint64 { return &v.RxInvalidDescs }),
			count("TX-INVALID", table.Always, func(v *view) *uint64 { return &v.TxInvalidDescs }),
			count("TX-EMPTY", table.Wide, func(v *view) *uint64 { return &v.TxRingEmpty }),
		},
	}
}

package cli

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"sluice.dev/sluice/nat/reason"
	"sluice.dev/sluice/serve/status"
)

func (s *session) statsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "stats",
		Short: "Show the workers' counters, all drops, and whether packets and frames add up",
		Long: "stats shows the counters of each worker, the drops by reason, and two laws:\n" +
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
				return s.print(v, func(r *rows) { statsTables(r, &v) })
			})
		},
	}
}

func statsTables(r *rows, v *status.StatsView) {
	workerRows(r, v.Workers)
	lawRows(r, v.Workers)
	dropRows(r, v.Workers)
	flowTableRows(r, v.Flows)
	queueRows(r, v.Queues)
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

func workerRows(r *rows, list []status.WorkerView) {
	r.row("WORKER", "CPU", "RX", "TX", "RETURNED", "GENERATED", "DROPPED", "HELD", "FROM-KERNEL", "CREATED", "BATCHES",
		"POLLS", "LOAD", "PULSE")
	for i := range list {
		w := &list[i]
		cpu := "-"
		if w.CPU >= 0 {
			cpu = strconv.Itoa(w.CPU)
		}
		r.row(w.Worker, cpu, w.Rx, w.Tx, w.Returned, w.Generated, w.Dropped, w.Held, w.KernelRx, w.FlowsCreated,
			w.Batches, w.Polls, load(w), pulse(w))
	}
}

// load returns the share of its time that a worker spent on packets.
func load(w *status.WorkerView) string {
	if w.BusyNanos+w.IdleNanos == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f%%", 100*float64(w.BusyNanos)/float64(w.BusyNanos+w.IdleNanos))
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

// dropRows lists the reasons with drops, in the order in which a packet meets them.
func dropRows(r *rows, list []status.WorkerView) {
	section(r)
	header := []any{"DROP-REASON", "PACKETS"}
	for i := range list {
		header = append(header, "WORKER-"+strconv.Itoa(list[i].Worker))
	}
	r.row(header...)
	known := map[string]bool{}
	names := reason.Names()
	for _, name := range names {
		known[name] = true
	}
	for i := range list { // reasons of a daemon that is newer than this command
		for _, name := range slices.Sorted(maps.Keys(list[i].Drops)) {
			if !known[name] {
				names, known[name] = append(names, name), true
			}
		}
	}
	dropped := false
	for _, name := range names {
		var sum uint64
		var cells []any
		for i := range list {
			sum += list[i].Drops[name]
			cells = append(cells, list[i].Drops[name])
		}
		if sum > 0 {
			r.row(append([]any{name, sum}, cells...)...)
			dropped = true
		}
	}
	if !dropped {
		r.line("No packet was dropped.")
	}
}

func flowTableRows(r *rows, list []status.FlowTableView) {
	section(r)
	r.row("FLOWS", "USED", "CAPACITY", "FILL", "HALF-OPEN", "STATES")
	for _, t := range list {
		fill := "-"
		if t.Capacity > 0 {
			fill = fmt.Sprintf("%.1f%%", 100*float64(t.Used)/float64(t.Capacity))
		}
		r.row(t.Family, t.Used, t.Capacity, fill, t.HalfOpen, pairs(t.States))
	}
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

func queueRows(r *rows, list []status.QueueStatsView) {
	if len(list) == 0 {
		return
	}
	section(r)
	r.row("SOCKET", "QUEUE", "RX-DROPPED", "RX-RING-FULL", "FILL-EMPTY", "RX-INVALID", "TX-INVALID", "TX-EMPTY")
	for _, q := range list {
		r.row(q.Interface, q.Queue, q.RxDropped, q.RxRingFull, q.RxFillRingEmpty, q.RxInvalidDescs, q.TxInvalidDescs,
			q.TxRingEmpty)
	}
}

package rollout

import (
	"fmt"
	"io"
	"time"

	"sluice.dev/sluice/bench/results"
	"sluice.dev/sluice/test/bed/observer"
)

// Result is the result of one system.
type Result struct {
	System string
	// Times from the start of the process: to the first answered connection through the gateway,
	// and to the system's own report that it has synced.
	FirstAnswer  time.Duration
	FirstSync    time.Duration
	FirstSyncCPU Processor

	Rolled   time.Duration // first write to last pod dead
	Observed time.Duration // first write until quiet: the interval of all figures below
	Writes   int           // of the slice

	Rolling tally // connections to the Service that is updated
	Others  tally
	// Connections whose first SYN arrived at an old pod, terminating or dead.
	ToTerminating int
	ToDead        int
	LongestStale  time.Duration // after a pod was terminating
	Converged     time.Duration // after the last pod was terminating

	CPU    Processor
	Memory observer.Memory

	began, ended time.Time
}

// Processor is processor time of the process and of programs that it ran.
type Processor struct {
	All time.Duration
	// Workers is the time of threads pinned to a processor: Sluice's packet workers. kube-proxy's
	// forwarding in the kernel belongs to no process.
	Workers time.Duration
	Tools   time.Duration // nft, iptables-restore
	// Waited is how long threads of the process were runnable without a processor, because clients,
	// pods and other programs used it.
	Waited time.Duration
}

func processorOf(u observer.Usage) Processor {
	return Processor{All: u.Own + u.Children, Workers: u.Pinned, Tools: u.Children, Waited: u.Waited}
}

// row is one line of the table.
type row struct {
	name string
	of   func(*Result) string
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.2f s", d.Seconds()) }

func millis(d time.Duration) string {
	return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
}

func latency(t *tally) string { return millis(t.P50) + ", " + millis(t.P99) + ", " + millis(t.Max) }

var rows = []row{
	{"first connection answered, after the start", func(r *Result) string { return seconds(r.FirstAnswer) }},
	{"processor time until synced", func(r *Result) string { return seconds(r.FirstSyncCPU.All) }},
	{"the update took", func(r *Result) string { return fmt.Sprintf("%s, %d writes", seconds(r.Rolled), r.Writes) }},
	{"connections to the Service: tried", func(r *Result) string { return fmt.Sprint(r.Rolling.Tried) }},
	{"failed", func(r *Result) string { return fmt.Sprint(r.Rolling.Failed) }},
	{"answered only after 1 s or more", func(r *Result) string { return fmt.Sprint(r.Rolling.Slow) }},
	{"sent to dead pods", func(r *Result) string { return fmt.Sprint(r.ToDead) }},
	{"sent to terminating pods", func(r *Result) string { return fmt.Sprint(r.ToTerminating) }},
	{"time to connect: p50, p99, max", func(r *Result) string { return latency(&r.Rolling) }},
	{"connections to others: tried, failed", func(r *Result) string {
		return fmt.Sprintf("%d, %d", r.Others.Tried,
			r.Others.Failed)
	}},
	{"time to connect: p50, p99, max", func(r *Result) string { return latency(&r.Others) }},
	{"longest that a terminating pod got connections", func(r *Result) string { return millis(r.LongestStale) }},
	{"converged, after the last pod was terminating", func(r *Result) string { return millis(r.Converged) }},
	{"observed", func(r *Result) string { return seconds(r.Observed) }},
	{"processor time in that", func(r *Result) string { return seconds(r.CPU.All) }},
	{"without packet workers", func(r *Result) string { return seconds(r.CPU.All - r.CPU.Workers) }},
	{"of programs it ran", func(r *Result) string { return seconds(r.CPU.Tools) }},
	{"waited for a processor, all threads together", func(r *Result) string { return seconds(r.CPU.Waited) }},
	{"resident: now, most", func(r *Result) string {
		return fmt.Sprintf("%d, %d MiB", r.Memory.Now>>20, r.Memory.Most>>20)
	}},
}

// table has a column for each system.
func table(out io.Writer, list []*Result) error {
	lines := make([][]string, 1+len(rows))
	lines[0] = []string{""}
	for _, r := range list {
		lines[0] = append(lines[0], r.System)
	}
	for i, row := range rows {
		lines[1+i] = []string{row.name}
		for _, r := range list {
			lines[1+i] = append(lines[1+i], row.of(r))
		}
	}
	return results.Markdown(out, lines)
}

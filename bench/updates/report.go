package updates

import (
	"fmt"
	"io"
	"time"

	"sluice.dev/sluice/bench/results"
	"sluice.dev/sluice/test/bed/observer"
)

// Result is what was measured.
type Result struct {
	Server string

	Started time.Duration // of the daemon, until it forwarded by all objects
	// FirstTable is what full tables took from all objects read to packets that use them,
	// FullTables of them together.
	FirstTable  time.Duration
	FullTables  int
	Services    int
	Frontends   int
	Backends    int
	MemoryFirst observer.Memory

	Changes, ProbedChanges int
	Changed                time.Duration // how long all changes took to be made
	Tables                 uint64        // published in that time
	// Latency is from a change's sending to the first datagram that uses it; Unseen
	// changes are those no datagram was seen of.
	Latency     Quantiles
	Unseen      int
	ProbesApart Quantiles // rounds of datagrams: the latency contains a part of one gap

	// Another Service's flows meanwhile.
	Asked, Unanswered int64     // UDP requests, without an answer within a second
	Answers           Quantiles // from request to answer, UDP: what the data path alone took
	AskedTCP          int64
	Repeated          uint64 // TCP segments that the client sent again
	Broken            int
	// Sluice's counters of all traffic: packets received, dropped by reason; and those
	// that the sockets' rings had no room for.
	Received uint64
	Dropped  map[string]uint64
	RingLost uint64

	CPU, CPUWorkers time.Duration
	Waited          time.Duration // of the daemon's threads, all together, for a processor that others used
	Memory          observer.Memory

	// One scrape of the daemon's metrics, after all else.
	Scrape        time.Duration
	ScrapeBytes   int
	MemoryScraped observer.Memory

	latencies []time.Duration
}

// table has a row for each figure.
func (r *Result) table(out io.Writer) error {
	seconds := func(d time.Duration) string { return fmt.Sprintf("%.2f s", d.Seconds()) }
	mib := func(m observer.Memory) string { return fmt.Sprintf("%d, %d MiB", m.Now>>20, m.Most>>20) }
	return results.Markdown(out, [][]string{
		{"what", r.Server + " server"},
		{"service ports, frontends, backends", fmt.Sprintf("%d, %d, %d", r.Services, r.Frontends, r.Backends)},
		{"first table, after everything was read", fmt.Sprintf("%.0f ms (%d in all)", r.FirstTable.Seconds()*1000,
			r.FullTables)},
		{"forwarding, after the start", seconds(r.Started)},
		{"changes made, of them probed", fmt.Sprintf("%d, %d", r.Changes, r.ProbedChanges)},
		{"changes a second, tables published", fmt.Sprintf("%.0f, %d", float64(r.Changes)/r.Changed.Seconds(),
			r.Tables)},
		{"change to first packet: p50, p99, p99.9, max", r.Latency.String()},
		{"changes that no packet was seen of", fmt.Sprint(r.Unseen)},
		{"datagrams apart: p50, p99, p99.9, max", r.ProbesApart.String()},
		{"another Service, UDP: asked, unanswered", fmt.Sprintf("%d, %d", r.Asked, r.Unanswered)},
		{"another Service, UDP, to the answer: p50, p99, p99.9, max", r.Answers.String()},
		{"another Service, TCP: asked, segments repeated", fmt.Sprintf("%d, %d", r.AskedTCP, r.Repeated)},
		{"flows broken", fmt.Sprint(r.Broken)},
		{"packets received by Sluice, dropped by it", fmt.Sprintf("%d, %v", r.Received, r.Dropped)},
		{"lost for want of room in sockets' rings", fmt.Sprint(r.RingLost)},
		{"processor time, without packet workers", seconds(r.CPU) + ", " + seconds(r.CPU-r.CPUWorkers)},
		{"waited for a processor, all threads together", seconds(r.Waited)},
		{"resident after the first table: now, most", mib(r.MemoryFirst)},
		{"resident after the changes: now, most", mib(r.Memory)},
		{"a scrape of all metrics: time, size; resident then", fmt.Sprintf("%s, %d MiB; %s", seconds(r.Scrape),
			r.ScrapeBytes>>20, mib(r.MemoryScraped))},
	})
}

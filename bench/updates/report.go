package updates

import (
	"fmt"
	"io"
	"time"

	"sluice.dev/sluice/bench/results"
	"sluice.dev/sluice/test/bed/observer"
)

// Result is the result of the measurement.
type Result struct {
	Server string

	Started time.Duration // time from the daemon's start until it forwarded by all objects
	// FirstTable is the total time of the full tables, each from all objects read to packets that
	// use it; FullTables is their number.
	FirstTable  time.Duration
	FullTables  int
	Services    int
	Frontends   int
	Backends    int
	MemoryFirst observer.Memory

	Changes, ProbedChanges int
	Changed                time.Duration // time in which all changes were made
	Tables                 uint64        // published in that time
	// Latency is from sending a change to the first datagram that uses it; Unseen is the number of
	// changes that no datagram used.
	Latency     Quantiles
	Unseen      int
	ProbesApart Quantiles // intervals of datagrams: the latency contains a part of one

	// Another Service's flows meanwhile.
	Asked, Unanswered int64     // UDP requests, and those without an answer within a second
	Answers           Quantiles // from request to answer, UDP: the time of the data path
	AskedTCP          int64
	Repeated          uint64 // TCP segments that the client retransmitted
	Broken            int
	// Sluice's counters of all traffic: packets received, dropped by reason, and lost because
	// sockets' rings were full.
	Received uint64
	Dropped  map[string]uint64
	RingLost uint64

	CPU, CPUWorkers time.Duration
	Waited          time.Duration // total time in which the daemon's threads waited for an occupied processor
	Memory          observer.Memory

	// One scrape of the daemon's metrics, after everything else.
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

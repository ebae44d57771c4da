package stateless

import (
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Result is what one trial found. Packets are frames: each fragment is one.
type Result struct {
	Load Load
	Sent Sent
	// Received by the method of Rx. With Count, only Packets, Bytes, Flows and Foreign
	// are known, with Timed Latency too.
	Received Received
	// Drops are packets that interfaces say they lost, during the trial, by interface
	// and counter: "tx veth0 tx_dropped". Zero ones are left out.
	Drops map[string]uint64
}

// Sent is the sender's result.
type Sent struct {
	Packets uint64 // given to the device, which may have lost them
	Bytes   uint64 // without frame check sequence
	Flows   int    // of which at least one packet was sent
	Elapsed time.Duration
	// CPU is the processor time of the sending threads. On veth it includes the kernel's work on
	// the way to the receiver as far as it happens in the sender's call.
	CPU time.Duration
	// Refused counts the calls in which the device took no packet; it got them later.
	Refused uint64
	// Dropped counts packets that the device dropped in the act of sending (EBUSY). They
	// are in Packets.
	Dropped uint64
	// Missed counts packets that were due and never sent, because the sender was late by more than
	// it catches up with.
	Missed uint64
	// Threads are the numbers of the sending threads (gettid(2)) by transmit queue. Queue q of n
	// sends the flows that are q modulo n.
	Threads []int
}

// Received is what arrived. Lost and duplicated packets are known exactly as
// long as no packet comes later than 64 of its own flow after it.
type Received struct {
	Packets    uint64        // of this run, duplicates included
	Bytes      uint64        // without frame check sequence
	Flows      int           // of which at least one packet arrived
	Elapsed    time.Duration // from the first to the last packet; 0 but with Full
	Foreign    uint64        // packets that are not of this run
	Duplicates uint64        // packets that had come before
	Reordered  uint64        // packets that came after a later one of their flow (RFC 4737, section 3)
	// Damaged counts packets with a wrong IP or transport checksum, or a wrong length.
	Damaged uint64
	// Moved counts packets that went to another destination (address and port) than the first of
	// their flow; Renamed, packets that came from another source.
	Moved, Renamed uint64
	// Violations describes the first of Moved, Renamed and Damaged.
	Violations []string
	// Latency is the one-way latency from the sender's time stamp (taken before a
	// burst is written) to the run of the XDP program on the receiving interface, both
	// CLOCK_MONOTONIC of this machine. It excludes the time until the receiver sees the packet. nil
	// with Count; to 3 % with Timed.
	Latency *Histogram
	// Queues are the packets by receive queue (Full) or by CPU.
	Queues []uint64
	// Arrivals are the packets that Rx.Keep keeps, in the order in which they came.
	Arrivals []Arrival
	// Starved counts packets that the kernel dropped because the receiver itself was too slow: they
	// are lost, but the system under test did not lose them.
	Starved uint64
}

// Arrival is a packet that came.
type Arrival struct {
	Sent, Came uint64 // CLOCK_MONOTONIC, nanoseconds: its time stamp, and the run of the XDP program
	Flow       uint32
	CPU        uint32 // that the program ran on
}

// Rate is packets per second that were sent.
func (s *Sent) Rate() float64 { return perSecond(s.Packets, s.Elapsed) }

// Lost is how many packets of the trial did not arrive.
func (r *Result) Lost() uint64 {
	unique := r.Received.Packets - r.Received.Duplicates
	return r.Sent.Packets - min(r.Sent.Packets, unique)
}

// Loss is Lost as a share of the packets sent, 0 to 1.
func (r *Result) Loss() float64 {
	if r.Sent.Packets == 0 {
		return 0
	}
	return float64(r.Lost()) / float64(r.Sent.Packets)
}

// Rate is packets per second that arrived, over the time in which they were sent.
func (r *Result) Rate() float64 { return perSecond(r.Received.Packets, r.Sent.Elapsed) }

func perSecond(n uint64, d time.Duration) float64 {
	if d <= 0 {
		return 0
	}
	return float64(n) / d.Seconds()
}

// Histogram is a distribution of latencies. Its values are nanoseconds, from 1 us to 10 s with
// three significant digits; a value outside is counted at the bound.
type Histogram struct{ h *hdrhistogram.Histogram }

const (
	latencyLowest, latencyHighest = int64(time.Microsecond), 10 * int64(time.Second)
	latencyDigits                 = 3
)

// NewHistogram returns an empty one.
func NewHistogram() *Histogram {
	// Its lowest value is also its resolution, up to a thousand times as much (rounded down to a
	// power of two).
	return &Histogram{h: hdrhistogram.New(1, latencyHighest, latencyDigits)}
}

// Record adds a latency. It does not allocate.
func (h *Histogram) Record(nanos int64) { h.record(nanos, 1) }

func (h *Histogram) record(nanos, times int64) {
	// In range, so there is no error.
	_ = h.h.RecordValues(min(max(nanos, latencyLowest), latencyHighest), times)
}

// Merge adds all values of another histogram.
func (h *Histogram) Merge(other *Histogram) { h.h.Merge(other.h) }

// Count is the number of values.
func (h *Histogram) Count() int64 { return h.h.TotalCount() }

// Percentile is the value that p percent of all are not above; p from 0 to 100.
func (h *Histogram) Percentile(p float64) time.Duration {
	return time.Duration(h.h.ValueAtPercentile(p))
}

// Min and Max are the extremes, Mean the average; 0 if empty.
func (h *Histogram) Min() time.Duration  { return time.Duration(h.h.Min()) }
func (h *Histogram) Max() time.Duration  { return time.Duration(h.h.Max()) }
func (h *Histogram) Mean() time.Duration { return time.Duration(h.h.Mean()) }

// Curve is the distribution as results.Point has it: pairs of percentile and
// microseconds, denser towards 100.
func (h *Histogram) Curve() [][2]float64 {
	percentiles := [...]float64{0, 10, 25, 50, 75, 90, 95, 99, 99.5, 99.9, 99.95, 99.99, 99.999, 100}
	out := make([][2]float64, len(percentiles))
	for i, p := range percentiles {
		out[i] = [2]float64{p, float64(h.Percentile(p)) / float64(time.Microsecond)}
	}
	return out
}

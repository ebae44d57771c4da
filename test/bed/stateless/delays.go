package stateless

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
)

// The ages of packets as the program of the receiver counts them: exact below 32 ns, and from
// there on 32 steps between powers of two (delay_bucket in receive.bpf.c).
const (
	delayFine  = 5
	delaySteps = 1 << delayFine
)

// delayNanos is the middle of a bucket, in nanoseconds.
func delayNanos(bucket uint32) int64 {
	if bucket < 2*delaySteps {
		return int64(bucket)
	}
	shift := bucket>>delayFine - 1
	return int64(delaySteps+bucket%delaySteps)<<shift + 1<<shift>>1
}

// delays are all buckets, all CPUs together.
func (p *program) delays() ([]uint64, error) {
	sums := make([]uint64, p.objects.Delays.MaxEntries())
	var each []uint64
	for i := range sums {
		if err := p.objects.Delays.Lookup(uint32(i), &each); err != nil {
			return nil, fmt.Errorf("read the receiver's latencies: %w", err)
		}
		for _, n := range each {
			sums[i] += n
		}
	}
	return sums, nil
}

// timer is the receiver of Timed: counter, and the delays that the program measured.
type timer struct {
	counter
	before []uint64 // delays at begin
	keep   int      // Rx.Keep
}

func (t *timer) begin(run uint16) (err error) {
	if err := t.counter.begin(run); err != nil {
		return err
	}
	if err := t.objects.Arrived.Set(uint32(0)); err != nil {
		return fmt.Errorf("forget the packets kept: %w", err)
	}
	t.before, err = t.delays()
	return err
}

func (t *timer) end() (Received, error) {
	r, err := t.counter.end()
	if err != nil {
		return r, err
	}
	now, err := t.delays()
	if err != nil {
		return r, err
	}
	r.Latency = NewHistogram()
	for i, n := range now {
		if n -= t.before[i]; n > 0 {
			r.Latency.record(delayNanos(uint32(i)), int64(n))
		}
	}
	if t.keep > 0 {
		r.Arrivals, err = t.arrivals()
	}
	return r, err
}

// arrivals are the packets kept since begin, in the order in which they came.
func (t *timer) arrivals() ([]Arrival, error) {
	var n uint32
	if err := t.objects.Arrived.Get(&n); err != nil {
		return nil, fmt.Errorf("read how many packets were kept: %w", err)
	}
	n = min(n, uint32(t.keep))
	if n == 0 {
		return nil, nil
	}
	keys, values := make([]uint32, n), make([]receiveArrival, n)
	var cursor ebpf.MapBatchCursor
	got, err := t.objects.Arrivals.BatchLookup(&cursor, keys, values, nil)
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil, fmt.Errorf("read the packets kept: %w", err)
	}
	list := make([]Arrival, got)
	for i, a := range values[:got] {
		list[i] = Arrival{Sent: a.Sent, Came: a.Came, Flow: a.Flow, CPU: a.Cpu}
	}
	// Two CPUs may take their places and their times in another order.
	slices.SortStableFunc(list, func(a, b Arrival) int { return cmp.Compare(a.Came, b.Came) })
	return list, nil
}

package pipeline

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"
	"unsafe"

	hdr "github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/bench/results"
)

// stepClock is a reading of a thread's clocks.
type stepClock struct {
	wall    time.Time
	cpu     int64 // nanoseconds of processor time of the thread
	thread  int
	sleeps  int64 // voluntary context switches
	evicted int64 // involuntary context switches
}

// readStepClock enters the kernel without notifying the Go scheduler, so that the goroutine does
// not lose its P. A thread of -1 is invalid: the goroutine moved to another thread meanwhile.
func readStepClock() (c stepClock) {
	const rusageThread = 1 // RUSAGE_THREAD of getrusage(2)
	var used unix.Rusage
	var ts unix.Timespec
	c.thread = unix.Gettid()
	_ = unix.Getrusage(rusageThread, &used) // cannot fail, nor can the next call
	_, _, _ = unix.RawSyscall(unix.SYS_CLOCK_GETTIME, unix.CLOCK_THREAD_CPUTIME_ID, uintptr(unsafe.Pointer(&ts)), 0)
	if unix.Gettid() != c.thread {
		c.thread = -1
	}
	c.cpu, c.sleeps, c.evicted, c.wall = ts.Nano(), used.Nvcsw, used.Nivcsw, time.Now()
	return c
}

// stepTimes are the durations of steps.
type stepTimes struct {
	sum       time.Duration
	wall, cpu *hdr.Histogram // nanoseconds
	// Steps longer than LongStep, by the state of their thread:
	slept   int           // the Go runtime stopped it: the thread blocked, or the goroutine moved
	evicted int           // the kernel ran another thread
	inPlace int           // neither: the step's own work, an interrupt, or the hypervisor
	longest time.Duration // of the steps in place
}

const longestStep = 10 * time.Second

func newStepTimes() stepTimes {
	return stepTimes{wall: hdr.New(1, int64(longestStep), 3), cpu: hdr.New(1, int64(longestStep), 3)}
}

// add counts the step between two readings.
func (t *stepTimes) add(from, to *stepClock) {
	took := to.wall.Sub(from.wall)
	t.sum += took
	_ = t.wall.RecordValue(min(int64(took), int64(longestStep))) // in range
	moved := from.thread != to.thread || to.thread < 0
	if !moved {
		_ = t.cpu.RecordValue(min(to.cpu-from.cpu, int64(longestStep))) // in range
	}
	switch {
	case moved || to.sleeps != from.sleeps:
		if took > LongStep {
			t.slept++
		}
	case to.evicted != from.evicted:
		if took > LongStep {
			t.evicted++
		}
	default:
		t.longest = max(t.longest, took)
		if took > LongStep {
			t.inPlace++
		}
	}
}

// stepMeasurement is one measurement of a load.
type stepMeasurement struct {
	worker, floor stepTimes
	stops         uint64 // of all goroutines, by the collector
	longestStop   time.Duration
}

func newStepMeasurement() stepMeasurement {
	return stepMeasurement{worker: newStepTimes(), floor: newStepTimes()}
}

// stepRow holds the measurements of a load.
type stepRow struct {
	load string
	list []stepMeasurement
}

// stepFigure is one metric of steps.
type stepFigure struct {
	metric, unit string
	of           func(*stepTimes) float64
	whole        func(*stepTimes) *hdr.Histogram // the distribution of the figure, or nil
}

// curve is the distribution of the figure.
func (f *stepFigure) curve(t *stepTimes) (curve [][2]float64) {
	if f.whole == nil {
		return nil
	}
	for _, b := range f.whole(t).CumulativeDistributionWithTicks(2) {
		curve = append(curve, [2]float64{b.Quantile, micros(b.ValueAt)})
	}
	return curve
}

func byClock(t *stepTimes) *hdr.Histogram     { return t.wall }
func byProcessor(t *stepTimes) *hdr.Histogram { return t.cpu }

// over counts steps whose wall time is between two bounds.
func (t *stepTimes) over(low, high time.Duration) (n int64) {
	for _, b := range t.wall.Distribution() {
		if b.From > int64(low) && b.From <= int64(high) {
			n += b.Count
		}
	}
	return n
}

func micros(nanos int64) float64 { return float64(nanos) / 1e3 }

var stepFigures = []stepFigure{
	{"processor_time_p999", "us", func(t *stepTimes) float64 { return micros(t.cpu.ValueAtQuantile(99.9)) }, nil},
	{"processor_time_longest", "us", func(t *stepTimes) float64 { return micros(t.cpu.Max()) }, byProcessor},
	{"p999", "us", func(t *stepTimes) float64 { return micros(t.wall.ValueAtQuantile(99.9)) }, nil},
	{"longest_in_place", "us", func(t *stepTimes) float64 { return micros(int64(t.longest)) }, nil},
	{"longest", "us", func(t *stepTimes) float64 { return micros(t.wall.Max()) }, byClock},
	{"over_100us_in_place", eachSecond, func(t *stepTimes) float64 { return t.perSecond(int64(t.inPlace)) }, nil},
	{"over_100us_preempted", eachSecond, func(t *stepTimes) float64 { return t.perSecond(int64(t.evicted)) }, nil},
	{"over_100us_stopped", eachSecond, func(t *stepTimes) float64 { return t.perSecond(int64(t.slept)) }, nil},
	{"over_100us", eachSecond, func(t *stepTimes) float64 { return t.perSecond(t.over(LongStep, longestStep)) }, nil},
	{"over_300us", eachSecond, func(t *stepTimes) float64 { return t.perSecond(t.over(3*LongStep, longestStep)) }, nil},
	{"over_1ms", eachSecond, func(t *stepTimes) float64 { return t.perSecond(t.over(10*LongStep, longestStep)) }, nil},
}

const eachSecond = "per second"

// perSecond scales a count to one second of steps.
func (t *stepTimes) perSecond(n int64) float64 { return float64(n) / max(t.sum.Seconds(), 1e-9) }

// points are the figures of the worker and of the floor.
func (r *stepRow) points(length time.Duration) (list []results.Point) {
	params := map[string]string{"beside": r.load, "window": length.String()}
	for _, f := range stepFigures {
		for _, system := range []string{sluice, "empty-loop"} {
			p := results.Point{Experiment: "steps", System: system, Params: params, Metric: f.metric, Unit: f.unit,
				Better: "lower"}
			for i := range r.list {
				t := &r.list[i].worker
				if system != sluice {
					t = &r.list[i].floor
				}
				p.Samples = append(p.Samples, f.of(t))
				p.Curve = f.curve(t)
			}
			list = append(list, p)
		}
	}
	stop := results.Point{Experiment: "steps", System: sluice, Params: params, Metric: "longest_stop_by_the_collector",
		Unit: "us", Better: "lower"}
	for i := range r.list {
		stop.Samples = append(stop.Samples, micros(int64(r.list[i].longestStop)))
	}
	return append(list, stop)
}

// printSteps prints medians.
func printSteps(out io.Writer, rows []*stepRow) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "processor time\t\tby the clock\t\t\t>100 us, per second:\t\t\tall of them\t\t\t")
	fmt.Fprintln(w, "medians, us: p99.9\tlongest\tp99.9\tlongest in place\tlongest\tin place\tpreempted\tstopped by Go"+
		"\t>100 us\t>300 us\t>1 ms\t")
	for _, r := range rows {
		all := r.points(0)
		stop := &all[len(all)-1]
		beside := fmt.Sprintf("beside %s (the collector's longest stop: %.0f)", r.load, stop.Median())
		for k, system := range []string{beside, "the empty loop"} {
			for i := range stepFigures {
				fmt.Fprintf(w, "%.4g\t", all[2*i+k].Median())
			}
			fmt.Fprintln(w, "", system)
		}
	}
	return w.Flush()
}

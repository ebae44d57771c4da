//go:build root

package tail

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/bench/compare"
	"sluice.dev/sluice/bench/launch"
	"sluice.dev/sluice/bench/results"
)

const culprit = "tail-culprit" // as the kernel names its thread

// A thread that computes on the worker's CPU is what the slowest packets wait behind, by name.
func TestNamesTheCulprit(t *testing.T) {
	dir := t.TempDir()
	sluice, err := launch.Build(dir, false)
	if err != nil {
		t.Fatal(err)
	}
	cpu := min(1, runtime.NumCPU()-1) // not the sender's
	compute(t, dir, cpu)
	var out bytes.Buffer
	c := Defaults()
	c.Sluice, c.JSON = sluice, filepath.Join(dir, "tail.json")
	c.Systems, c.At = []string{"sluice-options"}, []float64{20_000}
	c.Options = fmt.Sprintf("workerCPUs: [%d]\ntuning: {precedence: none}", cpu) // else workers go before it
	if c.Rows, err = compare.ParseSenders([]string{"one-queue"}); err != nil {
		t.Fatal(err)
	}
	c.Flows, c.Duration, c.Settle = 200, 500*time.Millisecond, 100*time.Millisecond
	c.Out, c.Progress = &out, io.Discard
	if _, err := Run(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	run, err := results.Load(c.JSON)
	if err != nil {
		t.Fatal(err)
	}
	var behind, all float64
	for _, p := range run.Points {
		if p.Params["packets"] == "beyond p99" {
			all += p.Median()
			if p.Metric == Behind.String() {
				behind += p.Median()
			}
		}
	}
	if want := "behind another: " + culprit; !bytes.Contains(out.Bytes(), []byte(want)) || behind < all/4 {
		t.Errorf("the slowest packets took %.0f us, %.0f of it behind other threads; want a quarter at least, and %q "+
			"named in:\n%s", all, behind, want, out.String())
	}
}

// compute keeps a CPU busy with a process of the culprit's name until the test ends, and if it is
// killed for a minute at most.
func compute(t *testing.T, dir string, cpu int) {
	t.Helper()
	shell, err := exec.LookPath("sh")
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, culprit)
	if err := os.Symlink(shell, name); err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(t.Context(), name, "-c", "ulimit -t 60; while :; do :; done")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	})
	var set unix.CPUSet
	set.Set(cpu)
	if err := unix.SchedSetaffinity(c.Process.Pid, &set); err != nil {
		t.Fatal(err)
	}
}

// Samples of a process name the function that its threads spend their time in, of a thread that
// begins later as well.
func TestSamplesNameFunctions(t *testing.T) {
	r, err := openRecorder(1_000_000, 0, os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	if err := r.start(); err != nil {
		t.Fatal(err)
	}
	const threads, each = 40, 10 * time.Millisecond // more threads than the process has
	var all sync.WaitGroup
	for range threads {
		all.Go(func() {
			runtime.LockOSThread() // never unlocked: the thread ends
			burn(each)
		})
	}
	all.Wait()
	recorded, err := r.stop()
	if err != nil {
		t.Fatal(err)
	}
	found := map[uint32]int{}
	for _, e := range recorded.events {
		if e.kind == sampled && slices.Contains(r.functions(e.state), module+"bench/tail.burn") {
			found[e.thread]++
		}
	}
	few := 0
	for _, n := range found {
		if n < int(each/samplePeriod)/2 {
			few++
		}
	}
	if len(found) < threads || few > 0 {
		t.Errorf("samples in the function that burns, of %d threads: %v; want %d of each", threads, found,
			each/samplePeriod)
	}
}

// burn uses processor time of its thread.
//
//go:noinline
func burn(d time.Duration) {
	var began, now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &began)
	for now.Nano()-began.Nano() < int64(d) {
		_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now)
	}
}

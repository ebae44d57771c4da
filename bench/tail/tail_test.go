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
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/bench/compare"
	"sluice.dev/sluice/bench/results"
	"sluice.dev/sluice/test/bed/launch"
)

const (
	culprit = "tail-culprit" // the name of its thread in the kernel
	slow    = "p60"
)

// A thread that computes on the worker's CPU must appear by name as the cause of slow packets: it
// has half of that CPU, and the slowest two fifths of the packets are the ones that arrive during
// its turns. One of several recordings suffices: other threads of the gateway may wait for the
// culprit, and its worker for them.
func TestNamesTheCulprit(t *testing.T) {
	dir := t.TempDir()
	sluice, err := launch.Build(dir, false)
	if err != nil {
		t.Fatal(err)
	}
	cpu := min(1, runtime.NumCPU()-1) // not the sender's CPU
	compute(t, dir, cpu)
	c := Defaults()
	c.Sluice, c.JSON = sluice, filepath.Join(dir, "tail.json")
	c.Systems, c.At = []string{"sluice-options"}, []float64{20_000}
	c.Options = fmt.Sprintf("workerCPUs: [%d]\ntuning: {precedence: none}", cpu) // no priority over it
	if c.Rows, err = compare.ParseSenders([]string{"one-queue"}); err != nil {
		t.Fatal(err)
	}
	c.Flows, c.Duration, c.Settle = 200, 500*time.Millisecond, 100*time.Millisecond
	usual := percentilesOf
	percentilesOf = append(usual[:2:2], percentile{slow, 60})
	t.Cleanup(func() { percentilesOf = usual })
	var problem string
	for range 10 {
		if problem = namesTheCulprit(t, c); problem == "" {
			return
		}
		t.Log(problem)
	}
	t.Error("no recording names the culprit")
}

// namesTheCulprit records once, and returns the defects of the result.
func namesTheCulprit(t *testing.T, c Config) string {
	t.Helper()
	var out bytes.Buffer
	c.Out, c.Progress = &out, io.Discard
	if _, err := Run(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	run, err := results.Load(c.JSON)
	if err != nil {
		t.Fatal(err)
	}
	var behind, all float64 // at the gateway
	for _, p := range run.Points {
		if p.Params["packets"] == "beyond "+slow && p.Metric != Sender.String() {
			all += p.Median()
			if p.Metric == Behind.String() {
				behind += p.Median()
			}
		}
	}
	if want := "behind another: " + culprit; !bytes.Contains(out.Bytes(), []byte(want)) || behind < all/4 {
		return fmt.Sprintf("slow packets took %.0f us at the gateway, %.0f of it behind other threads; want a "+
			"quarter at least, and %q named in:\n%s", all, behind, want, out.String())
	}
	return ""
}

// culpritVariable makes this program the culprit, on the CPU with that number.
const culpritVariable = "SLUICE_TAIL_CULPRIT"

func TestMain(m *testing.M) {
	cpu := os.Getenv(culpritVariable)
	if cpu == "" {
		os.Exit(m.Run())
	}
	if err := alternate(cpu); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// alternate computes on a CPU and rests, in turns, until the test that started it ends. It has
// priority over all threads without a real-time policy, so that other work there does not matter.
func alternate(cpu string) error {
	const turn = 5 * time.Millisecond
	n, err := strconv.Atoi(cpu)
	if err != nil {
		return err
	}
	runtime.LockOSThread()
	var set unix.CPUSet
	set.Set(n)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return err
	}
	first := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}
	if unix.SchedSetAttr(0, &first, 0) != nil { // the cgroup has no real-time bandwidth
		if err := unix.Setpriority(unix.PRIO_PROCESS, 0, -20); err != nil {
			return err
		}
	}
	for parent := os.Getppid(); os.Getppid() == parent; time.Sleep(turn) {
		for from := time.Now(); time.Since(from) < turn; {
		}
	}
	return nil
}

// compute runs a process with the culprit's name on a CPU until the test ends.
func compute(t *testing.T, dir string, cpu int) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, culprit)
	if err := os.Symlink(self, name); err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(t.Context(), name)
	c.Env = append(os.Environ(), culpritVariable+"="+strconv.Itoa(cpu))
	c.Stderr = os.Stderr
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	})
}

// Samples of a process name the function in which its threads spend their time, also for a thread
// that begins later. Threads compute until each has been sampled a few times: the number of samples
// for an amount of processor time depends on the machine, whose host may delay timers.
func TestSamplesNameFunctions(t *testing.T) {
	r, err := openRecorder(1_000_000, 0, os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	if err := r.start(); err != nil {
		t.Fatal(err)
	}
	const threads, each = 16, 5 // more threads than the process has
	var enough atomic.Bool
	var all sync.WaitGroup
	for range threads {
		all.Go(func() {
			runtime.LockOSThread() // never unlocked: the thread ends
			burn(&enough)
		})
	}
	var found map[uint32]int
	sampledAll := func() bool {
		recorded, err := r.read()
		if err != nil {
			t.Fatal(err)
		}
		found = samplesIn(r, recorded, module+"bench/tail.burn")
		n := 0
		for _, samples := range found {
			if samples >= each {
				n++
			}
		}
		return n >= threads
	}
	defer all.Wait()
	defer enough.Store(true)
	for end := time.Now().Add(time.Minute); !sampledAll(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("samples in the function that computes, of %d threads: %v; want %d of each", threads, found, each)
		}
	}
	enough.Store(true)
	all.Wait()
	if recorded, err := r.stop(); err != nil || len(recorded.events) == 0 {
		t.Errorf("stop returns %v, %v, want the events", recorded, err)
	}
	if recorded, err := r.read(); err != nil || len(recorded.events) > 0 {
		t.Errorf("after stop, read returns %v, %v, want no events", recorded, err)
	}
}

// samplesIn counts each thread's samples whose stack has a function.
func samplesIn(r *recorder, recorded *recording, function string) map[uint32]int {
	has, found := map[uint32]bool{}, map[uint32]int{}
	for _, e := range recorded.events {
		if e.kind != sampled {
			continue
		}
		if _, ok := has[e.state]; !ok {
			has[e.state] = slices.Contains(r.functions(e.state), function)
		}
		if has[e.state] {
			found[e.thread]++
		}
	}
	return found
}

// burn uses processor time of its thread, without a system call.
//
//go:noinline
func burn(enough *atomic.Bool) {
	for !enough.Load() {
	}
}

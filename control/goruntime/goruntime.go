// Package goruntime sets up the Go runtime so that its own work (garbage collection, scheduling of
// threads) takes little time from packet workers, each of which spins on a processor and must not
// wait.
//
// Which settings those are, and the figures that chose them: ForWorkers, and
// `sluice-bench gaps --variants all`.
package goruntime

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"

	"golang.org/x/sys/unix"
)

// Settings are one choice. The zero value changes nothing.
type Settings struct {
	// GCPercent is GOGC; 0 leaves it as it is, -1 is off.
	GCPercent int
	// MemoryLimitBytes is GOMEMLIMIT: the collector works more when the process comes near it.
	// 0 leaves it as it is.
	MemoryLimitBytes int64
	// MaxProcs is the least GOMAXPROCS; more stays.
	MaxProcs int
	// KeepOff are processors that no thread of the process may run on, but for those that
	// bind themselves later: workers. Where nothing else is left, they are shared.
	KeepOff []int
}

// Apply applies the settings. GOGC and GOMEMLIMIT of the environment take precedence. It must be
// called before threads are bound on purpose: every thread there is, and so every later one, gets
// the mask. (A locked thread never begins another: the runtime has a thread of its own for that,
// runtime.startTemplateThread.)
func (s *Settings) Apply() error {
	if s.GCPercent != 0 && os.Getenv("GOGC") == "" {
		debug.SetGCPercent(s.GCPercent)
	}
	if s.MemoryLimitBytes != 0 && os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(s.MemoryLimitBytes)
	}
	if s.MaxProcs > 0 { // also where there are as many: Go then no longer follows a cgroup's limit below that
		runtime.GOMAXPROCS(max(s.MaxProcs, runtime.GOMAXPROCS(0)))
	}
	if len(s.KeepOff) == 0 {
		return nil
	}
	var mask unix.CPUSet
	if err := unix.SchedGetaffinity(0, &mask); err != nil {
		return fmt.Errorf("read the CPUs this process may use: %w", err)
	}
	for _, cpu := range s.KeepOff {
		mask.Clear(cpu)
	}
	if mask.Count() == 0 {
		return nil
	}
	return bindAll(&mask)
}

// bindAll gives every thread the mask. A thread that is created meanwhile inherits the new or the
// old mask of its parent, so bindAll repeats until a pass finds nothing to do.
func bindAll(mask *unix.CPUSet) error {
	for {
		tasks, err := filepath.Glob("/proc/self/task/[0-9]*")
		if err != nil {
			return err
		}
		changed := 0
		for _, task := range tasks {
			tid, err := strconv.Atoi(filepath.Base(task))
			if err != nil {
				return err
			}
			var now unix.CPUSet
			if err := unix.SchedGetaffinity(tid, &now); err != nil || now == *mask {
				continue // it ended, or is done
			}
			if err := unix.SchedSetaffinity(tid, mask); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("keep thread %d off the workers' CPUs: %w", tid, err)
			}
			changed++
		}
		if changed == 0 {
			return nil
		}
	}
}

// ForWorkers is what the daemon sets with a number of packet workers.
//
// The collector stays as Go has it. 10,000 Services of 10 endpoints were a live heap of 70 to
// 120 MB and 100 changes/s 4.5 MB/s of garbage, by which a collection comes every 15 to 25 s:
// GOGC=400 would save three of four of these, for up to 300 MB more. At ten times the changes
// GOGC=100 had no more gaps than 400 (`sluice-bench gaps --rate 1000 --variants sluice,gogc400`,
// on a machine with other work: 50 and 73 over 1 ms in 10 s, where a C loop had 47 and 50).
//
// Nor are other threads kept off the workers' CPUs (variant kept-off): there were more gaps
// in every trial, on two CPUs with other work. With CPUs to spare that may be otherwise.
func ForWorkers(n int) Settings {
	// Workers never give their Ps back by themselves: the control loop and the collector
	// have two of their own, and a worker that comes back from a sleep finds one.
	return Settings{MaxProcs: n + 2}
}

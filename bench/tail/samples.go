package tail

import (
	"debug/elf"
	"debug/gosym"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// samplePeriod is a thread's processor time between two samples. A sample costs about 8 us.
const samplePeriod = 250_000 // ns

// sample is the work of a thread of the forwarder at a time.
type sample struct {
	at   uint64
	work string // see workOf
}

func sampleAt(s *sample) uint64 { return s.at }

// sampleThreads runs a program whenever a thread of a process has used samplePeriod. It also
// samples threads that the process starts later.
func sampleThreads(process int, program *ebpf.Program) (events []*os.File, err error) {
	const tries = 20
	for range tries {
		before, err := threadsOf(process)
		if err != nil {
			return nil, err
		}
		events, err := sampleEach(before, program)
		if err != nil {
			return events, err
		}
		after, err := threadsOf(process)
		if err != nil {
			return events, err
		}
		if subset(after, before) {
			return events, nil
		}
		// A thread not yet sampled may have started another one, which did not inherit the event.
		for _, e := range events {
			_ = e.Close() // the kernel reports no error of it
		}
	}
	return nil, fmt.Errorf("the forwarder started threads during each of %d attempts to sample all", tries)
}

// subset reports whether all elements of a, in ascending order, are in b.
func subset(a, b []int) bool {
	return !slices.ContainsFunc(a, func(id int) bool { return !slices.Contains(b, id) })
}

// threadsOf lists the threads of a process.
func threadsOf(process int) (threads []int, err error) {
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", process))
	if err != nil {
		return nil, fmt.Errorf("threads of the forwarder: %w", err)
	}
	for _, task := range tasks {
		if id, err := strconv.Atoi(task.Name()); err == nil {
			threads = append(threads, id)
		}
	}
	return threads, nil
}

// sampleEach runs a program whenever one of the threads, or one that it starts later, has used
// samplePeriod.
func sampleEach(threads []int, program *ebpf.Program) (events []*os.File, err error) {
	attr := unix.PerfEventAttr{
		Type: unix.PERF_TYPE_SOFTWARE, Config: unix.PERF_COUNT_SW_TASK_CLOCK, Sample: samplePeriod,
		Size: uint32(unsafe.Sizeof(unix.PerfEventAttr{})), Bits: unix.PerfBitInherit,
	}
	for _, id := range threads {
		fd, err := unix.PerfEventOpen(&attr, id, -1, -1, unix.PERF_FLAG_FD_CLOEXEC)
		if errors.Is(err, unix.ESRCH) {
			continue // it has ended
		} else if err != nil {
			return events, fmt.Errorf("perf_event_open of a thread of the forwarder: %w", err)
		}
		events = append(events, os.NewFile(uintptr(fd), "perf event"))
		err = unix.IoctlSetInt(fd, unix.PERF_EVENT_IOC_SET_BPF, program.FD())
		if err != nil {
			return events, fmt.Errorf("attach to a perf event (Linux 4.9, CONFIG_BPF_EVENTS): %w", err)
		}
	}
	return events, nil
}

// symbols names the functions of a process.
type symbols struct{ table *gosym.Table }

// symbolsOf reads a running process's table of functions, which Go's linker keeps when it strips
// symbols. Programs in other languages have none.
func symbolsOf(process int) (s symbols, err error) {
	f, err := elf.Open(fmt.Sprintf("/proc/%d/exe", process))
	if err != nil {
		return s, fmt.Errorf("the forwarder's program: %w", err)
	}
	defer f.Close()
	lines, code := f.Section(".gopclntab"), f.Section(".text")
	if lines == nil || code == nil || f.Type != elf.ET_EXEC {
		return s, nil
	}
	data, err := lines.Data()
	if err == nil {
		s.table, err = gosym.NewTable(nil, gosym.NewLineTable(data, code.Addr))
	}
	if err != nil {
		return s, fmt.Errorf("the forwarder's table of functions: %w", err)
	}
	return s, nil
}

// stack returns the functions of a call stack, the innermost first.
func (s *symbols) stack(addresses []uint64) (functions []string) {
	if s.table == nil {
		return nil
	}
	for i, pc := range addresses {
		if pc == 0 {
			break
		}
		if i > 0 {
			pc-- // a return address is after the call
		}
		if f := s.table.PCToFunc(pc); f != nil {
			functions = append(functions, f.Name)
		}
	}
	return functions
}

// runtimeWork are parts of the Go runtime by the prefixes of its functions' names. They have
// precedence over a worker's own work, in which a goroutine may have to assist the runtime.
var runtimeWork = []struct {
	work     string
	prefixes []string
}{
	{"Go: garbage collection", []string{"gcStart", "gcAssist", "gcBgMark", "gcDrain", "gcMark", "gcFlush", "wbBufFlush",
		"bgsweep", "scanstack"}},
	{"Go: memory", []string{"mallocgc"}},
	{"Go: stack", []string{"morestack"}},
	{"Go: preemption", []string{"asyncPreempt"}},
	{"Go: scheduler", []string{"schedule", "findRunnable", "mcall"}},
}

// ownWork are the parts of a worker's loop by its functions' names; the innermost listed function
// is used.
var ownWork = map[string]string{
	"fastpath/thread.Yield":              "yield",
	"fastpath.(*Runner).sleep":           "begins or ends a sleep",
	"fastpath.(*Worker).expire":          "expiry",
	"fastpath.(*Worker).begin":           "new tables",
	"fastpath.(*Worker).rebind":          "new tables",
	"fastpath.(*Worker).publish":         "counters",
	"fastpath.(*Worker).publishBackends": "counters",
	"fastpath.(*Worker).admit":           "new flows",
	"fastpath.(*Worker).admitPlanned":    "new flows",
	"fastpath.(*Worker).prepare":         "new flows",
	"fastpath.(*Worker).openParked":      "new flows",
	"fastpath.(*Worker).release":         "held packets",
	"fastpath.(*Worker).releaseHops":     "held packets",
	"fastpath.(*Worker).handleBatch":     "forwarding",
	"fastpath.(*Worker).transmit":        "rings",
	"fastpath.(*Worker).reclaim":         "rings",
	"fastpath.(*tasks).run":              "others' requests",
	"fastpath.(*Worker).Step":            "looks for packets",
	"fastpath.(*Runner).loop":            "looks for packets",
}

// module is the prefix of this project's package names.
const module = "sluice.dev/sluice/"

// workOf names the work of a thread with a call stack: a part of the Go runtime, a part of a
// worker's loop or, for any other goroutine, the innermost function of this module; "" if the stack
// has none of them.
func workOf(functions []string) string {
	for _, f := range functions {
		name, _ := strings.CutPrefix(f, "runtime.")
		for _, r := range runtimeWork {
			if name != f && slices.ContainsFunc(r.prefixes, func(p string) bool { return strings.HasPrefix(name, p) }) {
				return r.work
			}
		}
	}
	for _, f := range functions {
		if work, ok := ownWork[strings.TrimPrefix(f, module)]; ok {
			return work
		}
	}
	for _, f := range functions {
		if name, ours := strings.CutPrefix(f, module); ours {
			return name
		}
	}
	return ""
}

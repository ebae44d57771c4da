package observer

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Usage is the processor time of a process so far, to 10 ms.
type Usage struct {
	Own      time.Duration // of all its threads, user and system
	Children time.Duration // of programs it ran that have ended
	// Pinned is the part of Own that threads bound to a single processor used: packet
	// workers. Threads that have ended are not in it.
	Pinned time.Duration
	// Waited is how long its threads were ready to run and had no processor, because of others
	// (schedstats, the kernel's Documentation/scheduler/sched-stats.rst). Threads that have ended
	// are not in it.
	Waited time.Duration
}

// Sub returns the usage since an earlier reading.
func (u Usage) Sub(before Usage) Usage {
	return Usage{Own: u.Own - before.Own, Children: u.Children - before.Children, Pinned: u.Pinned - before.Pinned,
		Waited: u.Waited - before.Waited}
}

// ErrOneProcessor is of a process without a thread that may run on several processors. The rest of
// its Usage is right.
var ErrOneProcessor = errors.New("all its threads are bound to one processor each: which are pinned is unknown; " +
	"give it two")

// ProcessUsage reads the processor time of a process.
func ProcessUsage(pid int) (u Usage, err error) {
	u.Own, u.Children, err = times(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return u, err
	}
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/[0-9]*", pid))
	if err != nil {
		return u, err
	}
	free := 0
	for _, task := range tasks {
		tid, err := strconv.Atoi(filepath.Base(task))
		if err != nil {
			return u, err
		}
		var set unix.CPUSet
		if err := unix.SchedGetaffinity(tid, &set); err != nil {
			continue // it ended meanwhile
		}
		waited, err := waiting(filepath.Join(task, "schedstat"))
		if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ESRCH) {
			return u, err
		}
		u.Waited += waited
		if set.Count() != 1 {
			free++
			continue
		}
		if own, _, err := times(filepath.Join(task, "stat")); err == nil {
			u.Pinned += own
		}
	}
	if free == 0 {
		return u, fmt.Errorf("process %d: %w", pid, ErrOneProcessor)
	}
	return u, nil
}

// waiting reads the second number of a schedstat: nanoseconds on a run queue.
func waiting(file string) (time.Duration, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	var ran, waited, slices int64
	if _, err := fmt.Sscan(string(text), &ran, &waited, &slices); err != nil {
		return 0, fmt.Errorf("%s: %w", file, err)
	}
	return time.Duration(waited), nil
}

// userHz is the unit of times in /proc/PID/stat on all architectures but alpha
// (include/uapi/asm-generic/param.h).
const userHz = 100

// times reads own and children's times: fields 14 to 17 of proc_pid_stat(5), which
// counts from 1. The second field is a name in brackets, with any characters.
func times(file string) (own, children time.Duration, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, 0, err
	}
	const afterName, utime = 3, 14
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < utime-afterName+4 {
		return 0, 0, fmt.Errorf("%s: %d fields after the name", file, len(fields))
	}
	var ticks [4]int64
	for i := range ticks {
		if ticks[i], err = strconv.ParseInt(fields[utime-afterName+i], 10, 64); err != nil {
			return 0, 0, fmt.Errorf("%s: %w", file, err)
		}
	}
	const tick = time.Second / userHz
	return time.Duration(ticks[0]+ticks[1]) * tick, time.Duration(ticks[2]+ticks[3]) * tick, nil
}

// Memory is the resident memory of a process, in bytes.
type Memory struct{ Now, Most uint64 }

// ProcessMemory reads VmRSS and VmHWM of proc_pid_status(5).
func ProcessMemory(pid int) (m Memory, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return m, err
	}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) != 3 {
			continue
		}
		var to *uint64
		switch f[0] {
		case "VmRSS:":
			to = &m.Now
		case "VmHWM:":
			to = &m.Most
		default:
			continue
		}
		kib, err := strconv.ParseUint(f[1], 10, 64)
		if err != nil {
			return m, fmt.Errorf("process %d: %w", pid, err)
		}
		*to = kib << 10
	}
	return m, nil
}

func interfaceIndex(dev string) (int, error) {
	i, err := net.InterfaceByName(dev)
	if err != nil {
		return 0, fmt.Errorf("tap on %s: %w", dev, err)
	}
	return i.Index, nil
}

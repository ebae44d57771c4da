package workers

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"sluice.dev/sluice/fastpath"
)

// cpuTimes holds the CPU times of the runners' threads at one moment.
type cpuTimes struct {
	at      time.Time
	threads []threadTime // by runner
}

type threadTime struct {
	thread int
	ran    time.Duration
	waited time.Duration // it was runnable while other threads ran
	known  bool
}

// cpuShare is the share of a period, from 0 to 1, in which a thread ran, or was runnable while
// other threads ran.
type cpuShare struct {
	ran, waited float64
	known       bool // false if the runner changed its thread, or the kernel does not count
}

// since returns, by runner, the shares of its thread since the last call.
func (c *cpuTimes) since(runners []*fastpath.Runner) []cpuShare {
	now := time.Now()
	shares, threads := make([]cpuShare, len(runners)), make([]threadTime, len(runners))
	for i, runner := range runners {
		t := timeOf(runner.Thread())
		threads[i] = t
		if i < len(c.threads) && t.known && c.threads[i].known && c.threads[i].thread == t.thread {
			since := float64(now.Sub(c.at))
			ran, waited := t.ran-c.threads[i].ran, t.waited-c.threads[i].waited
			shares[i] = cpuShare{float64(ran) / since, float64(waited) / since, true}
		}
	}
	c.at, c.threads = now, threads
	return shares
}

// timeOf reads the schedstat of a thread of this process: the time that it ran and the time that it
// was runnable while other threads ran, in nanoseconds, and how often it ran
// (Documentation/scheduler/sched-stats.rst), if the kernel counts them (CONFIG_SCHED_INFO).
func timeOf(tid int) threadTime {
	t := threadTime{thread: tid}
	text, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/schedstat", tid))
	if err != nil {
		return t
	}
	fields := strings.Fields(string(text))
	if len(fields) < 3 || fields[2] == "0" { // the kernel writes "0 0 0" if it does not count
		return t
	}
	ran, err := strconv.ParseInt(fields[0], 10, 64)
	waited, err2 := strconv.ParseInt(fields[1], 10, 64)
	t.ran, t.waited, t.known = time.Duration(ran), time.Duration(waited), err == nil && err2 == nil
	return t
}

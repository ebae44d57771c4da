package workers

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"sluice.dev/sluice/fastpath"
)

// waits is how long runners' threads could run while others ran.
type waits struct {
	at      time.Time
	threads []threadWait // by runner
}

type threadWait struct {
	thread int
	waited time.Duration
	known  bool
}

// since returns, by runner, the part of the time since the last call that its thread waited for
// others. It is below 0 where that is not known: the runner was on another thread then, or the
// kernel does not count it.
func (w *waits) since(now time.Time, runners []*fastpath.Runner) []float64 {
	parts, threads := make([]float64, len(runners)), make([]threadWait, len(runners))
	for i, runner := range runners {
		t := &threads[i]
		t.thread = runner.Thread()
		t.waited, t.known = waitedFor(t.thread)
		parts[i] = -1
		if i < len(w.threads) && t.known && w.threads[i].known && w.threads[i].thread == t.thread {
			parts[i] = float64(t.waited-w.threads[i].waited) / float64(now.Sub(w.at))
		}
	}
	w.at, w.threads = now, threads
	return parts
}

// waitedFor returns how long a thread of this process could run while others ran: the second number
// of its schedstat, in nanoseconds (Documentation/scheduler/sched-stats.rst), where the kernel
// counts it (CONFIG_SCHED_INFO).
func waitedFor(tid int) (d time.Duration, known bool) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/schedstat", tid))
	if err != nil {
		return 0, false
	}
	fields := strings.Fields(string(text))
	if len(fields) < 3 {
		return 0, false
	}
	n, err := strconv.ParseInt(fields[1], 10, 64)
	ran := fields[2] != "0" // how often: "0 0 0" is written where nothing is counted
	return time.Duration(n), err == nil && ran
}

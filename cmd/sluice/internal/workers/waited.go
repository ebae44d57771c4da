package workers

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// waitedFor returns how long a thread of this process could run while others ran: the second number
// of its schedstat, in nanoseconds (Documentation/scheduler/sched-stats.rst). It is 0 where the
// kernel does not count it.
func waitedFor(tid int) time.Duration {
	text, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/schedstat", tid))
	if err != nil {
		return 0
	}
	if fields := strings.Fields(string(text)); len(fields) > 1 {
		n, _ := strconv.ParseInt(fields[1], 10, 64)
		return time.Duration(n)
	}
	return 0
}

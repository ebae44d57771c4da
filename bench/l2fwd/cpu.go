package l2fwd

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// threadCPU is the time that a thread of this process has run, softirqs on top of it included.
func threadCPU(tid int) (time.Duration, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/schedstat", tid))
	if err != nil {
		return 0, fmt.Errorf("l2fwd: CPU time of thread %d: %w (CONFIG_SCHED_INFO is needed)", tid, err)
	}
	first, _, _ := strings.Cut(string(b), " ")
	n, err := strconv.ParseInt(first, 10, 64)
	return time.Duration(n), err
}

package l2fwd

import (
	"bytes"
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

// userHZ is the unit of /proc/stat on every architecture that Go has (sysconf(_SC_CLK_TCK)).
const userHZ = 100

// systemBusy is the time that all CPUs have spent on anything but idling, since boot.
func systemBusy() (time.Duration, error) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	line, _, _ := bytes.Cut(b, []byte("\n"))
	f := strings.Fields(string(line)) // cpu user nice system idle iowait irq softirq steal ...
	if len(f) < 9 || f[0] != "cpu" {
		return 0, fmt.Errorf("l2fwd: /proc/stat begins with %q", line)
	}
	ticks := int64(0)
	for _, i := range []int{1, 2, 3, 6, 7} {
		n, err := strconv.ParseInt(f[i], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("l2fwd: /proc/stat: %w", err)
		}
		ticks += n
	}
	return time.Duration(ticks) * time.Second / userHZ, nil
}

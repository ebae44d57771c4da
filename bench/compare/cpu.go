package compare

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// usage is what all processors of the machine have done so far.
type usage struct {
	at time.Time
	// idle is the time in which no processor had anything to do. The kernel measures it
	// to the microsecond (get_cpu_idle_time_us, kernel/time/tick-sched.c) where all else is
	// counted in ticks, which miss or hit short interrupts by chance.
	idle, stolen time.Duration
	// By ticks: programs, the kernel on their behalf, and interrupts.
	user, system, interrupts time.Duration
	cpus                     int
}

// userHz is the unit of /proc/stat on all architectures but alpha
// (include/uapi/asm-generic/param.h).
const userHz = 100

func readUsage() (usage, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return usage{}, err
	}
	u, err := parseUsage(text)
	u.at = time.Now()
	return u, err
}

// parseUsage reads proc_stat(5).
func parseUsage(text []byte) (u usage, err error) {
	// Columns of the line "cpu": user nice system idle iowait irq softirq steal.
	const columns = 8
	var v [columns]time.Duration
	first, _, _ := bytes.Cut(text, []byte("\n"))
	f := strings.Fields(string(first))
	if len(f) < 1+columns || f[0] != "cpu" {
		return u, fmt.Errorf("/proc/stat begins with %q", first)
	}
	for i := range v {
		ticks, err := strconv.ParseInt(f[1+i], 10, 64)
		if err != nil {
			return u, fmt.Errorf("/proc/stat: %w", err)
		}
		v[i] = time.Duration(ticks) * (time.Second / userHz)
	}
	u.user, u.system, u.idle, u.interrupts, u.stolen = v[0]+v[1], v[2], v[3]+v[4], v[5]+v[6], v[7]
	for line := range bytes.Lines(text) {
		if len(line) > 3 && bytes.HasPrefix(line, []byte("cpu")) && line[3] != ' ' {
			u.cpus++
		}
	}
	return u, nil
}

// spent is what happened between two readings.
type spent struct {
	busy                     time.Duration // all processors, everything
	stolen                   time.Duration // the hypervisor ran somebody else
	user, system, interrupts time.Duration
	elapsed                  time.Duration
}

// since is what was spent after an earlier reading. Stolen time is nobody's work: it is
// neither busy nor idle.
func (u usage) since(b usage) spent {
	s := spent{
		stolen: u.stolen - b.stolen, user: u.user - b.user, system: u.system - b.system,
		interrupts: u.interrupts - b.interrupts, elapsed: u.at.Sub(b.at),
	}
	s.busy = max(0, time.Duration(u.cpus)*s.elapsed-(u.idle-b.idle)-s.stolen)
	return s
}

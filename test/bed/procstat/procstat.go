// Package procstat reads what all processors of the machine do (proc_stat(5)).
package procstat

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// Usage is what all processors of the machine have done so far.
type Usage struct {
	At time.Time
	// Idle is the time in which no processor had anything to do. The kernel measures it
	// to the microsecond (get_cpu_idle_time_us, kernel/time/tick-sched.c) where all else is
	// counted in ticks, which miss or hit short interrupts by chance.
	Idle, Stolen time.Duration
	// By ticks: programs, the kernel on their behalf, and interrupts.
	User, System, Interrupts time.Duration
	CPUs                     int
}

// userHz is the unit of /proc/stat on all architectures but alpha
// (include/uapi/asm-generic/param.h).
const userHz = 100

// Read is Usage now.
func Read() (Usage, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return Usage{}, err
	}
	u, err := parse(text)
	u.At = time.Now()
	return u, err
}

// parse reads proc_stat(5).
func parse(text []byte) (u Usage, err error) {
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
	u.User, u.System, u.Idle, u.Interrupts, u.Stolen = v[0]+v[1], v[2], v[3]+v[4], v[5]+v[6], v[7]
	for line := range bytes.Lines(text) {
		if len(line) > 3 && bytes.HasPrefix(line, []byte("cpu")) && line[3] != ' ' {
			u.CPUs++
		}
	}
	return u, nil
}

// Spent is what happened between two readings.
type Spent struct {
	Busy                     time.Duration // all processors, everything
	Stolen                   time.Duration // the hypervisor did something else
	User, System, Interrupts time.Duration
	Elapsed                  time.Duration
	CPUs                     int
}

// Since returns the time spent after an earlier reading. Stolen time is nobody's work: it is
// neither busy nor idle.
func (u Usage) Since(b Usage) Spent {
	s := Spent{
		Stolen: u.Stolen - b.Stolen, User: u.User - b.User, System: u.System - b.System,
		Interrupts: u.Interrupts - b.Interrupts, Elapsed: u.At.Sub(b.At), CPUs: u.CPUs,
	}
	s.Busy = max(0, s.all()-(u.Idle-b.Idle)-s.Stolen)
	return s
}

// During returns the time spent while f runs. It returns f's error.
func During(f func() error) (Spent, error) {
	before, err := Read()
	if err != nil {
		return Spent{}, err
	}
	if err := f(); err != nil {
		return Spent{}, err
	}
	after, err := Read()
	return after.Since(before), err
}

// all is the time of all processors.
func (s *Spent) all() time.Duration { return time.Duration(s.CPUs) * s.Elapsed }

// ShareOf is a part of the time of all processors: 0 to 1.
func (s *Spent) ShareOf(part time.Duration) float64 {
	if s.all() <= 0 {
		return 0
	}
	return float64(part) / float64(s.all())
}

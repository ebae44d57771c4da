package gaps

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"sluice.dev/sluice/control/goruntime"
)

// Variant is one way to set up the process.
type Variant struct {
	Name string `json:"name"`
	What string `json:"-"` // for the reader
	goruntime.Settings
	// Apart: all other threads are kept off the worker's CPU.
	Apart bool `json:"apart"`
	// Slice is what the scheduler's slice of all threads is set to; 0 leaves it.
	Slice time.Duration `json:"slice"`
	// Locked: the worker's goroutine is locked to its thread, instead of pinned by fastpath/thread.
	Locked bool `json:"locked"`
	// Unyielding: the worker's goroutine runs until it is preempted.
	Unyielding bool `json:"unyielding"`
	// Quiet: nothing changes.
	Quiet bool `json:"-"`
}

// workers is how many the measured process has.
const workers = 1

func variants() []Variant {
	asShipped := goruntime.ForWorkers(workers)
	with := func(name, what string, change func(*Variant)) Variant {
		v := Variant{Name: name, What: what, Settings: asShipped}
		change(&v)
		return v
	}
	return []Variant{
		with("sluice", "as the daemon sets it", func(*Variant) {}),
		with("quiet", "without changes: gaps of the scheduler only", func(v *Variant) { v.Quiet = true }),
		with("unyielding", "the worker runs until it is preempted", func(v *Variant) { v.Unyielding = true }),
		with("locked", "the worker locked to its thread (runtime.LockOSThread)", func(v *Variant) { v.Locked = true }),
		with("gogc400", "GOGC=400", func(v *Variant) { v.GCPercent = 400 }),
		with("nogc", "GOGC=off: the cost of collections", func(v *Variant) { v.GCPercent = -1 }),
		with("procs", "GOMAXPROCS = as many as CPUs", func(v *Variant) { v.MaxProcs = 0 }),
		with("procs+6", "GOMAXPROCS = workers + 6", func(v *Variant) { v.MaxProcs = workers + 6 }),
		with("kept-off", "no other thread on the worker's CPU", func(v *Variant) { v.Apart = true }),
		with("short-slice", "scheduler slice of 0.1 ms for all threads (Linux 6.12)",
			func(v *Variant) { v.Slice = 100 * time.Microsecond }),
		with("locked-kept-off", "locked, and no other thread on its CPU",
			func(v *Variant) { v.Locked, v.Apart = true, true }),
		with("locked-short", "locked, and a slice of 0.1 ms",
			func(v *Variant) { v.Locked, v.Slice = true, 100*time.Microsecond }),
		with("go-defaults", "locked, as many Ps as CPUs",
			func(v *Variant) { v.Locked, v.Settings = true, goruntime.Settings{} }),
	}
}

// Variants lists the names with what they are, a line each.
func Variants() string {
	var b strings.Builder
	for _, v := range variants() {
		fmt.Fprintf(&b, "  %-16s %s\n", v.Name, v.What)
	}
	return b.String()
}

// choose returns the named ones; all of them for "all".
func choose(names []string) (list []Variant, err error) {
	all := variants()
	if slices.Equal(names, []string{"all"}) {
		return all, nil
	}
	for _, name := range names {
		i := slices.IndexFunc(all, func(v Variant) bool { return v.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("variant %q is none of these:\n%s", name, Variants())
		}
		list = append(list, all[i])
	}
	return list, nil
}

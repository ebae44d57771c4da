package services

import "slices"

// schedulerNames are those of ipvsadm(8), and maglev.
var schedulerNames = [NumSchedulers]string{"maglev", "rr", "wrr", "lc", "wlc", "sh", "dh", "sed", "nq", "random"}

// String returns the name that configuration and annotations use.
func (s Scheduler) String() string { return schedulerNames[s] }

// InTurn reports whether a scheduler takes turns (Frontend.Turn).
func (s Scheduler) InTurn() bool { return s == RoundRobin || s == WeightedRoundRobin }

// SchedulerNames lists the names of all schedulers, the default's first.
func SchedulerNames() []string { return slices.Clone(schedulerNames[:]) }

// ParseScheduler finds a scheduler by its name; false if there is none of that name.
func ParseScheduler(name string) (Scheduler, bool) {
	i := slices.Index(schedulerNames[:], name)
	return Scheduler(max(i, 0)), i >= 0
}

package services

import "slices"

// schedulerNames has the names of ipvsadm(8), maglev and random.
var schedulerNames = [NumSchedulers]string{"maglev", "rr", "wrr", "lc", "wlc", "sh", "dh", "sed", "nq", "random"}

// String returns the name that configuration and annotations use.
func (s Scheduler) String() string { return schedulerNames[s] }

// InTurn reports whether a scheduler takes turns (Frontend.Turn).
func (s Scheduler) InTurn() bool { return s == RoundRobin || s == WeightedRoundRobin }

// SchedulerNames returns the names of all schedulers, the default first.
func SchedulerNames() []string { return slices.Clone(schedulerNames[:]) }

// ParseScheduler returns the scheduler with a name; false if there is none.
func ParseScheduler(name string) (Scheduler, bool) {
	i := slices.Index(schedulerNames[:], name)
	return Scheduler(max(i, 0)), i >= 0
}

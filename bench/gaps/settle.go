package gaps

import (
	"fmt"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// settle makes the calling process one of the variant. It must come before there are
// workers: what it sets on every thread, later threads inherit.
func (v *Variant) settle(cpu int, cpus []int) error {
	if err := bind(cpus); err != nil {
		return err
	}
	s := v.Settings
	s.KeepOff = nil
	if v.Apart {
		s.KeepOff = []int{cpu}
	}
	if err := s.Apply(); err != nil {
		return err
	}
	if v.Slice == 0 {
		return nil
	}
	return eachThread(func(tid int) error {
		a, err := unix.SchedGetAttr(tid, 0)
		if err != nil {
			return fmt.Errorf("variant %s: sched_getattr(2): %w", v.Name, err)
		}
		a.Runtime = uint64(v.Slice)
		if err := unix.SchedSetAttr(tid, a, 0); err != nil {
			return fmt.Errorf("variant %s: sched_setattr(2): %w", v.Name, err)
		}
		return nil
	})
}

// bind lets every thread of this process run on these CPUs only.
func bind(cpus []int) error {
	var set unix.CPUSet
	for _, cpu := range cpus {
		set.Set(cpu)
	}
	return eachThread(func(tid int) error {
		if err := unix.SchedSetaffinity(tid, &set); err != nil {
			return fmt.Errorf("bind to CPUs %v: %w", cpus, err)
		}
		return nil
	})
}

// eachThread does something to every thread there is.
func eachThread(f func(tid int) error) error {
	tasks, err := filepath.Glob("/proc/self/task/[0-9]*")
	if err != nil {
		return err
	}
	for _, task := range tasks {
		tid, err := strconv.Atoi(filepath.Base(task))
		if err != nil {
			return err
		}
		if err := f(tid); err != nil {
			return err
		}
	}
	return nil
}

// allowed are the CPUs that this process may use.
func allowed() (cpus []int, err error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, fmt.Errorf("read the CPUs this process may use: %w", err)
	}
	for cpu := range len(set) * 64 {
		if set.IsSet(cpu) {
			cpus = append(cpus, cpu)
		}
	}
	return cpus, nil
}

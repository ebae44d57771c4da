package compare

import (
	"errors"
	"fmt"
	"runtime"
	"slices"

	"sluice.dev/sluice/config"
)

// numCPU is the number of CPUs of the machine.
var numCPU = runtime.NumCPU()

// Senders are the CPUs and queues from which packets come: one generator thread per queue, assigned
// to the CPUs in turn. A veth's interrupt work runs on the same CPUs, because it has no other
// interrupts.
type Senders struct {
	CPUs   []int
	Queues int // of every interface
}

// StandardSenders are the default senders of a comparison: one CPU of several, as on a machine
// whose NIC interrupts one core, with one queue and with two; and each CPU with a queue of its own,
// as behind a NIC whose interrupts are distributed.
func StandardSenders() []Senders {
	every := Senders{Queues: min(numCPU, maxQueues)}
	for cpu := range every.Queues {
		every.CPUs = append(every.CPUs, cpu)
	}
	return []Senders{{[]int{0}, 1}, twoQueues(), every}
}

// twoQueues are the senders for measurements with a single row.
func twoQueues() Senders { return Senders{[]int{0}, 2} }

const maxQueues = 16

// ParseSenders reads a list of sender names; they stand for StandardSenders, in the same order.
func ParseSenders(names []string) (list []Senders, err error) {
	for _, name := range names {
		i := slices.Index(senderNames[:], name)
		if i < 0 {
			return nil, fmt.Errorf("senders %q: there are %v", name, senderNames)
		}
		list = append(list, StandardSenders()[i])
	}
	return list, nil
}

var senderNames = [...]string{"one-queue", "two-queues", "every-cpu"}

// String describes the senders for the heading of a table.
func (s Senders) String() string {
	return fmt.Sprintf("packets from CPUs %v, %d queues", s.CPUs, s.Queues)
}

func (s Senders) check() error {
	switch {
	case s.Queues < 1 || s.Queues > maxQueues:
		return fmt.Errorf("%d queues: 1 to %d are possible", s.Queues, maxQueues)
	case len(s.CPUs) == 0 || slices.Max(s.CPUs) >= numCPU || slices.Min(s.CPUs) < 0:
		return fmt.Errorf("sender CPUs %v: this machine has 0 to %d", s.CPUs, numCPU-1)
	case s.Queues < len(s.CPUs):
		return errors.New("more sender CPUs than queues: a CPU without a queue sends nothing")
	}
	return nil
}

// quiet returns the CPUs on which no packet arrives; possibly none.
func (s Senders) quiet() (cpus []int) {
	for cpu := range numCPU {
		if !slices.Contains(s.CPUs, cpu) {
			cpus = append(cpus, cpu)
		}
	}
	return cpus
}

// freeCPUs returns the CPUs on which no packet arrives; all CPUs if packets arrive on all.
func (s Senders) freeCPUs() []int {
	if cpus := s.quiet(); cpus != nil {
		return cpus
	}
	return s.CPUs
}

// fewCPUs returns the CPUs on which forwarders have one worker each: at most one per queue.
func (s Senders) fewCPUs() []int {
	free := s.freeCPUs()
	return free[:min(len(free), s.Queues)]
}

// waiting is how a forwarder with workers on fewCPUs waits for packets. As in the gateway, on CPUs
// on which packets arrive the workers leave the CPU to the receiving softirqs.
func (c *Config) waiting(s Senders) config.Waiting {
	if c.BothWays || c.Bulk || s.quiet() == nil {
		return config.WaitingShared
	}
	return config.WaitingDedicated
}

// workerCPUs returns the CPUs of forwarders that have a worker per queue.
func (s Senders) workerCPUs() (cpus []int) {
	free := s.freeCPUs()
	for q := range s.Queues {
		cpus = append(cpus, free[q%len(free)])
	}
	return cpus
}

// mask is the CPU mask of an RPS variant, in the format of rps_cpus; 0 turns RPS off. ok is false
// if there is no such CPU.
func (s Senders) mask(r rps) (mask uint64, ok bool) {
	switch r {
	case rpsAll:
		return 1<<min(63, numCPU) - 1, true
	case rpsFree:
		for _, cpu := range s.quiet() {
			mask |= 1 << min(63, cpu)
		}
		return mask, mask != 0
	}
	return 0, true
}

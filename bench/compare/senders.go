package compare

import (
	"errors"
	"fmt"
	"runtime"
	"slices"

	"sluice.dev/sluice/config"
)

// numCPU is how many CPUs the machine has.
var numCPU = runtime.NumCPU()

// Senders are where packets come from: the generator's threads, one for each queue, in turn on some
// CPUs. An interface's interrupts are there too, because a veth has no others.
type Senders struct {
	CPUs   []int
	Queues int // of every interface
}

// StandardSenders are what a comparison has unless told otherwise: one CPU of several, as on a
// machine whose NIC interrupts one core, with one queue and with two; and each CPU with a queue of
// its own, as behind a NIC whose interrupts are spread.
func StandardSenders() []Senders {
	every := Senders{Queues: min(numCPU, maxQueues)}
	for cpu := range every.Queues {
		every.CPUs = append(every.CPUs, cpu)
	}
	return []Senders{{[]int{0}, 1}, twoQueues(), every}
}

// twoQueues are the senders of what is measured from one place only.
func twoQueues() Senders { return Senders{[]int{0}, 2} }

const maxQueues = 16

// ParseSenders reads a list of names: what they are is in StandardSenders, in this order.
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

// String says where packets come from, as tables are headed.
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

// quiet are the CPUs on which no packet arrives; there may be none.
func (s Senders) quiet() (cpus []int) {
	for cpu := range numCPU {
		if !slices.Contains(s.CPUs, cpu) {
			cpus = append(cpus, cpu)
		}
	}
	return cpus
}

// freeCPUs are those on which no packet arrives; all, if packets arrive on all.
func (s Senders) freeCPUs() []int {
	if cpus := s.quiet(); cpus != nil {
		return cpus
	}
	return s.CPUs
}

// fewCPUs are where forwarders have a worker each: no more than there are queues.
func (s Senders) fewCPUs() []int {
	free := s.freeCPUs()
	return free[:min(len(free), s.Queues)]
}

// waiting is how a forwarder waits whose workers are on fewCPUs, as the gateway's do: where packets
// arrive they leave the CPU to those who receive them.
func (c *Config) waiting(s Senders) config.Waiting {
	if c.BothWays || s.quiet() == nil {
		return config.WaitingShared
	}
	return config.WaitingDedicated
}

// workerCPUs is where forwarders with a worker per queue have them.
func (s Senders) workerCPUs() (cpus []int) {
	free := s.freeCPUs()
	for q := range s.Queues {
		cpus = append(cpus, free[q%len(free)])
	}
	return cpus
}

// mask is where packets are steered to, as rps_cpus has it; 0 is nowhere. ok is false if there is
// no such CPU.
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

package doctor

import (
	"fmt"
	"slices"
	"strings"

	"sluice.dev/sluice/host/nic/irq"
	"sluice.dev/sluice/host/placement"
	"sluice.dev/sluice/internal/wording"
)

// pinned returns the worker of each CPU that a worker is pinned to: as the daemon reports, or as it
// would place them.
func (e *examination) pinned() map[int]int {
	workerOf := map[int]int{}
	if e.daemon != nil && len(e.f.Workers) > 0 {
		for _, w := range e.f.Workers {
			if w.CPU >= 0 {
				workerOf[w.CPU] = w.Worker
			}
		}
		return workerOf
	}
	n, _ := e.workerCount()
	for w, cpu := range e.placed(n).CPUs {
		if _, taken := workerOf[cpu]; cpu >= 0 && !taken {
			workerOf[cpu] = w
		}
	}
	return workerOf
}

// placed returns where the daemon would place workers when it starts.
func (e *examination) placed(workers int) placement.Placement {
	m := e.f.Machine
	m.Allowed, m.Interrupts = e.f.Host.CPUs, nil
	for i := range e.f.Interfaces {
		m.Interrupts = irq.Add(m.Interrupts, e.f.Interfaces[i].Interrupts)
	}
	p, _ := placement.First(&m, workers, e.f.Config.WorkerCPUs, e.f.Config.Sockets.BusyPoll > 0)
	return p
}

// mostInterrupts bounds the number of interrupts in a finding.
const mostInterrupts = 4

// interrupts checks whether interrupts of used queues are delivered to a CPU that a worker is
// pinned to. With busy polling they should be: worker and poll take turns on one CPU.
func (e *examination) interrupts() {
	workerOf := e.pinned()
	var free []int // CPUs for interrupts
	for _, cpu := range e.f.Host.CPUs {
		if _, taken := workerOf[cpu]; !taken {
			free = append(free, cpu)
		}
	}
	for i := range e.f.Interfaces {
		e.interruptsOf(&e.f.Interfaces[i], workerOf, free)
	}
}

func (e *examination) interruptsOf(d *Interface, workerOf map[int]int, free []int) {
	var shared, commands []string
	n, ofQueues := 0, 0
	for _, irq := range d.Interrupts {
		if irq.Queue < 0 || irq.Queue >= e.queuesUsed(d) {
			continue
		}
		ofQueues++
		at := slices.IndexFunc(irq.CPUs, func(cpu int) bool { _, taken := workerOf[cpu]; return taken })
		if at < 0 {
			continue
		}
		if n++; n <= mostInterrupts {
			cpu := irq.CPUs[at]
			shared = append(shared,
				fmt.Sprintf("%d (%s) on CPU %d of worker %d", irq.Number, irq.Name, cpu, workerOf[cpu]))
			if len(free) > 0 {
				commands = append(commands,
					fmt.Sprintf("echo %d > /proc/irq/%d/smp_affinity_list", free[(n-1)%len(free)], irq.Number))
			}
		}
	}
	if n > mostInterrupts {
		shared = append(shared, fmt.Sprintf("and %d more", n-mostInterrupts))
	}
	found := "interrupts of used queues: " + strings.Join(shared, ", ")
	switch {
	case ofQueues == 0: // a virtual device, or a driver whose interrupt names do not tell the queue
	case n == 0:
		e.ok("irq-affinity", d.Name, "no interrupt of a used queue is delivered to a worker's CPU")
	case e.f.Config.Sockets.BusyPoll != 0:
		e.ok("irq-affinity", d.Name, found+", as intended with sockets.busyPoll")
	case len(free) == 0 && (len(e.f.Config.WorkerCPUs) > 0 || len(e.f.Host.CPUs) < 2):
		e.ok("irq-affinity", d.Name, found+"; every CPU has a worker, so no CPU is free")
	case len(free) == 0:
		e.add(Warn, "irq-affinity", d.Name, found+": every CPU has a worker and gets interrupts, which take turns",
			"deliver the interrupts of all interfaces to CPU "+
				wording.Numbers(e.f.Host.CPUs[:len(e.f.Host.CPUs)/2], ",")+
				" (/proc/irq/N/smp_affinity_list), and keep irqbalance from moving them (--banirq): "+
				"workers then move to the other CPUs")
	default:
		e.add(Warn, "irq-affinity", d.Name, found+": the kernel's receive work and the worker take turns on that CPU",
			strings.Join(commands, "; ")+", each on a CPU of its NUMA node, and keep irqbalance from moving them "+
				"(--banirq); or set workerCPUs")
	}
}

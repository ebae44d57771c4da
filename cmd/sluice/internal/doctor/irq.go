package doctor

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Interrupt is one of an interface, and the CPUs that it is delivered to.
type Interrupt struct {
	Number int
	Name   string // the driver's, such as eth0-TxRx-0; empty if it is not requested
	Queue  int    // that the name is of; -1 if it does not tell
	CPUs   []int
}

// irqRoots are the directories that readInterrupts reads.
type irqRoots struct{ sys, proc string }

// readInterrupts lists the requested interrupts of an interface (msi_irqs in
// Documentation/ABI/testing/sysfs-bus-pci; Documentation/core-api/irq/irq-affinity.rst). A virtio
// device has them one level higher, at its PCI device. What cannot be read is left out: the check
// is advice.
func (r irqRoots) readInterrupts(name string) (list []Interrupt) {
	device := filepath.Join(r.sys, "class/net", name, "device")
	entries, err := os.ReadDir(filepath.Join(device, "msi_irqs"))
	if err != nil {
		if device, err = filepath.EvalSymlinks(device); err != nil {
			return nil
		}
		if entries, err = os.ReadDir(filepath.Join(filepath.Dir(device), "msi_irqs")); err != nil {
			return nil
		}
	}
	for _, e := range entries {
		number, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		dir := filepath.Join(r.proc, "irq", e.Name())
		text, err := os.ReadFile(filepath.Join(dir, "effective_affinity_list"))
		if err != nil {
			continue
		}
		action := actionOf(dir)
		if action == "" {
			continue
		}
		list = append(list, Interrupt{
			Number: number, Name: action, Queue: queueOf(action), CPUs: parseCPUs(strings.TrimSpace(string(text))),
		})
	}
	slices.SortFunc(list, func(a, b Interrupt) int { return a.Number - b.Number })
	return list
}

// actionOf returns the name under which an interrupt was requested: a directory beside its files
// (register_handler_proc of kernel/irq/proc.c). It is empty if nobody requested it.
func actionOf(dir string) string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return ""
	}
	for _, e := range entries {
		if e.IsDir() {
			return e.Name()
		}
	}
	return ""
}

// queueName matches the names that drivers give to the interrupts of a queue: eth0-TxRx-0 (igb,
// ixgbe, igc), i40e-eth0-TxRx-0, ice-eth0-TxRx-0, mlx5_comp0@pci:..., virtio2-input.0,
// virtio2-output.0, eth0-Tx-Rx-0 (ena), eth0-rxtx-0 (vmxnet3), eth0-rx-0, nfp-eth0-rxtx-0.
var queueName = regexp.MustCompile(`(?i)(?:tx-?rx|rx-?tx|rx|tx|comp|input|output)[-.]?(\d+)(?:@|$)`)

// queueOf returns the queue that an interrupt's name is of; -1 if it does not tell.
func queueOf(name string) int {
	m := queueName.FindStringSubmatch(name)
	if m == nil {
		return -1
	}
	n, err := strconv.Atoi(m[1])
	if err != nil {
		return -1
	}
	return n
}

// parseCPUs parses a list of CPUs such as 0-3,8 (lib/vsprintf.c, %*pbl). What is malformed is left
// out.
func parseCPUs(list string) (cpus []int) {
	for part := range strings.SplitSeq(list, ",") {
		low, high, isRange := strings.Cut(part, "-")
		first, err := strconv.Atoi(low)
		last := first
		if err == nil && isRange {
			last, err = strconv.Atoi(high)
		}
		if err != nil || last-first > maxCPUs {
			continue
		}
		for cpu := first; cpu <= last; cpu++ {
			cpus = append(cpus, cpu)
		}
	}
	return cpus
}

// maxCPUs bounds a range of CPUs (NR_CPUS is at most 8192 on x86-64).
const maxCPUs = 8192

// pinned returns the CPUs that workers are pinned to, with the worker of each: by the daemon, or by
// its own rule.
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
	for w, cpu := range e.f.Config.WorkerPins(n, e.f.Host.CPUs) {
		if _, taken := workerOf[cpu]; cpu >= 0 && !taken {
			workerOf[cpu] = w
		}
	}
	return workerOf
}

// mostInterrupts bounds the list of interrupts in a finding.
const mostInterrupts = 4

// interrupts checks whether interrupts of the queues in use are delivered to a CPU that a worker is
// pinned to. With busy polling that is right: worker and poll take turns on one CPU.
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
	found := "interrupts of queues in use: " + strings.Join(shared, ", ")
	switch {
	case ofQueues == 0: // a virtual device, or a driver whose names do not tell
	case n == 0:
		e.ok("irq-affinity", d.Name, "no interrupt of a queue in use is on a worker's CPU")
	case e.f.Config.Sockets.BusyPoll != 0:
		e.ok("irq-affinity", d.Name, found+", as it should be with sockets.busyPoll")
	case len(free) == 0:
		e.ok("irq-affinity", d.Name, found+"; every CPU has a worker, so there is no other")
	default:
		e.add(Warn, "irq-affinity", d.Name, found+": the kernel's receive work and the worker take turns there",
			strings.Join(commands, "; ")+", each on a CPU of its NUMA node, and keep irqbalance from moving them "+
				"(--banirq); or set workerCPUs")
	}
}

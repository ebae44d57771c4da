// Package irq reads the interrupts of interfaces, and the CPUs that they are delivered to.
package irq

import (
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
	Queue  int    // queue in the name; -1 if the name has none
	CPUs   []int
}

// Roots are the directories that are read.
type Roots struct{ Sys, Proc string }

// Host has the directories of this machine.
var Host = Roots{"/sys", "/proc"}

// Read lists the requested interrupts of an interface (msi_irqs in
// Documentation/ABI/testing/sysfs-bus-pci; Documentation/core-api/irq/irq-affinity.rst). A virtio
// device has them one level higher, at its PCI device. Read leaves out unreadable ones: callers
// give advice, or have other sources.
func (r Roots) Read(name string) (list []Interrupt) {
	device := filepath.Join(r.Sys, "class/net", name, "device")
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
		dir := filepath.Join(r.Proc, "irq", e.Name())
		text, err := os.ReadFile(filepath.Join(dir, "effective_affinity_list"))
		if err != nil {
			continue
		}
		action := actionOf(dir)
		if action == "" {
			continue
		}
		list = append(list, Interrupt{
			Number: number, Name: action, Queue: queueOf(action), CPUs: ParseCPUs(strings.TrimSpace(string(text))),
		})
	}
	slices.SortFunc(list, func(a, b Interrupt) int { return a.Number - b.Number })
	return list
}

// Add adds to cpus the CPUs to which interrupts of queues are delivered, and returns all of them in
// ascending order.
func Add(cpus []int, list []Interrupt) []int {
	for _, i := range list {
		if i.Queue >= 0 {
			cpus = append(cpus, i.CPUs...)
		}
	}
	slices.Sort(cpus)
	return slices.Compact(cpus)
}

// actionOf returns the name under which an interrupt was requested: a directory beside its files
// (register_handler_proc of kernel/irq/proc.c). It is empty if the interrupt was not requested.
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

// queueOf returns the queue in an interrupt's name; -1 if there is none.
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

// ParseCPUs parses a list of CPUs such as 0-3,8 (lib/vsprintf.c, %*pbl). It leaves out malformed
// elements.
func ParseCPUs(list string) (cpus []int) {
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

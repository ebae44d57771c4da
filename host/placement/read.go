package placement

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/host/nic/irq"
)

// Read reads the machine, for workers of some interfaces on the CPUs that the process may use. It
// leaves out unreadable facts: they improve a choice, but none is required.
func Read(r irq.Roots, interfaces []string, allowed []int) Machine {
	m := Machine{Allowed: allowed, Core: map[int]int{}}
	cpus := filepath.Join(r.Sys, "devices/system/cpu")
	for _, cpu := range readCPUs(filepath.Join(cpus, "isolated")) {
		if slices.Contains(allowed, cpu) || mayUse(cpu) {
			m.Isolated = append(m.Isolated, cpu)
		}
	}
	for _, cpu := range slices.Concat(m.Allowed, m.Isolated) {
		threads := readCPUs(filepath.Join(cpus, "cpu"+strconv.Itoa(cpu), "topology/thread_siblings_list"))
		for _, thread := range threads {
			m.Core[thread] = threads[0]
		}
	}
	for _, name := range interfaces {
		m.Interrupts = irq.Add(m.Interrupts, r.Read(name))
		node, err := os.ReadFile(filepath.Join(r.Sys, "class/net", name, "device/numa_node"))
		if at := strings.TrimSpace(string(node)); err == nil && at != "-1" {
			m.Near = append(m.Near, readCPUs(filepath.Join(r.Sys, "devices/system/node/node"+at, "cpulist"))...)
		}
	}
	return m
}

// readCPUs reads a list of CPUs; none if it cannot.
func readCPUs(path string) []int {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	return irq.ParseCPUs(strings.TrimSpace(string(text)))
}

// mayUse reports whether the process may have threads on a CPU that is not in its mask: the mask
// leaves isolated ones out, and the cpuset may have them.
func mayUse(cpu int) bool {
	may := make(chan bool)
	go func() {
		runtime.LockOSThread() // and ends with its thread, whose mask was changed
		var set unix.CPUSet
		set.Set(cpu)
		may <- unix.SchedSetaffinity(0, &set) == nil
	}()
	return <-may
}

package doctor

import (
	"strings"
	"testing"

	"sluice.dev/sluice/host/nic/irq"
	"sluice.dev/sluice/serve/status"
)

// TestInterrupts: what is said of where interrupts are delivered to.
func TestInterrupts(t *testing.T) {
	on := func(cpus ...int) func(*Facts) {
		return func(f *Facts) {
			f.Host.CPUs, f.Config.WorkerCPUs = []int{0, 1, 2, 3, 4, 5, 6, 7}, []int{4, 5, 6, 7}
			for q, cpu := range cpus {
				f.Interfaces[0].Interrupts = append(f.Interfaces[0].Interrupts,
					irq.Interrupt{Number: 40 + q, Name: "eth0-TxRx-" + string(rune('0'+q)), Queue: q, CPUs: []int{cpu}})
			}
		}
	}
	const check = "irq-affinity"
	for _, c := range []struct {
		name      string
		change    func(*Facts)
		level     Level // empty: nothing is said
		found, do string
	}{
		{"not read", func(*Facts) {}, "", "", ""},
		{"apart", on(0, 1, 2, 3), OK, "no interrupt", ""},
		{"another interrupt", func(f *Facts) {
			on()(f)
			f.Interfaces[0].Interrupts = []irq.Interrupt{{Number: 40, Name: "eth0", Queue: -1, CPUs: []int{4}}}
		}, "", "", ""},
		{"another queue", on(0, 1, 2, 3, 4), OK, "no interrupt", ""},
		{"shared", on(0, 1, 7, 4), Warn, "42 (eth0-TxRx-2) on CPU 7 of worker 3, 43 (eth0-TxRx-3) on CPU 4 of worker 0",
			"echo 0 > /proc/irq/42/smp_affinity_list; echo 1 > /proc/irq/43/smp_affinity_list, each"},
		{"many", func(f *Facts) {
			on(4, 5, 6, 7)(f)
			on(4)(f)
		}, Warn, "and 1 more", "/proc/irq/43/"},
		{"busy polling", func(f *Facts) { on(4, 5, 6, 7)(f); f.Config.Sockets.BusyPoll = 20_000 }, OK,
			"as intended", ""},
		{"no other CPU", func(f *Facts) {
			on(0, 1, 2, 3)(f)
			f.Host.CPUs, f.Config.WorkerCPUs = []int{0, 1, 2, 3}, nil
		}, Warn, "every CPU has a worker and gets interrupts", "to CPU 0,1 ("},
		{"no other CPU, and it was chosen", func(f *Facts) {
			on(0, 1, 2, 3)(f)
			f.Host.CPUs, f.Config.WorkerCPUs = []int{0, 1, 2, 3}, []int{0, 1, 2, 3}
		}, OK, "every CPU has a worker", ""},
		{"the daemon's choice", func(f *Facts) {
			on(0, 1, 0, 1)(f)
			f.Config.WorkerCPUs = nil
		}, OK, "no interrupt", ""},
		{"the daemon's choice, isolated CPUs", func(f *Facts) {
			on(0, 1, 2, 3)(f)
			f.Host.CPUs, f.Config.WorkerCPUs = []int{0, 1, 2, 3}, nil
			f.Machine.Isolated = []int{4, 5, 6, 7}
		}, OK, "no interrupt", ""},
		{"the daemon's pins", func(f *Facts) {
			on(0, 1, 2, 3)(f)
			f.Running = &status.StatusView{Ready: true}
			f.Workers = []status.WorkerView{{Worker: 0, CPU: 2}, {Worker: 1, CPU: -1}}
		}, Warn, "42 (eth0-TxRx-2) on CPU 2 of worker 0", "echo 0 >"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := healthy()
			c.change(f)
			var found []Finding
			for _, finding := range Examine(f) {
				if finding.Check == check {
					found = append(found, finding)
				} else if finding.Level != OK {
					t.Errorf("%+v", finding)
				}
			}
			if c.level == "" && found == nil {
				return
			}
			if len(found) != 1 || found[0].Level != c.level || !strings.Contains(found[0].Found, c.found) ||
				!strings.Contains(found[0].Do, c.do) || (c.do == "") != (found[0].Do == "") {
				t.Errorf("%+v, want %s %q %q", found, c.level, c.found, c.do)
			}
		})
	}
}

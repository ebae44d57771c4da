package doctor

import (
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"sluice.dev/sluice/control/config"
	"sluice.dev/sluice/control/status"
)

// tree writes files by path below a new directory; a path that ends in / is an empty directory.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for path, text := range files {
		dir, file := filepath.Split(filepath.Join(root, path))
		if strings.HasSuffix(path, "/") {
			dir, file = filepath.Join(dir, file), ""
		}
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if file == "" {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// TestReadInterrupts: those of a PCI device and of a virtio device, whose PCI device is above it.
func TestReadInterrupts(t *testing.T) {
	irqs := map[string]string{
		"proc/irq/40/effective_affinity_list": "0\n", "proc/irq/40/eth0/": "",
		"proc/irq/41/effective_affinity_list": "1\n", "proc/irq/41/eth0-TxRx-0/": "",
		"proc/irq/42/effective_affinity_list": "0-1,3\n", "proc/irq/42/eth0-TxRx-1/": "",
		"proc/irq/43/effective_affinity_list": "\n", // not requested
	}
	const pci = "sys/devices/pci0000:00/0000:00:03.0/"
	for _, n := range []string{"40", "41", "42", "43", "44"} {
		irqs[pci+"msi_irqs/"+n] = "msix\n"
	}
	want := []Interrupt{{40, "eth0", -1, []int{0}}, {41, "eth0-TxRx-0", 0, []int{1}},
		{42, "eth0-TxRx-1", 1, []int{0, 1, 3}}}
	for name, device := range map[string]string{"PCI": pci, "virtio": pci + "virtio2/"} {
		files := maps.Clone(irqs)
		files[device+"net/eth0/address"] = ""
		files["sys/class/net/eth0/ifindex"] = "2\n"
		root := tree(t, files)
		link := filepath.Join(root, "sys/class/net/eth0/device")
		if err := os.Symlink(filepath.Join(root, device), link); err != nil {
			t.Fatal(err)
		}
		roots := irqRoots{filepath.Join(root, "sys"), filepath.Join(root, "proc")}
		if got := roots.readInterrupts("eth0"); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
		if got := roots.readInterrupts("eth1"); got != nil {
			t.Errorf("%s: no such device: %+v", name, got)
		}
	}
}

// TestQueueOf: names as drivers of Linux 6.12 make them.
func TestQueueOf(t *testing.T) {
	for name, want := range map[string]int{
		"eth0-TxRx-3": 3, "i40e-eth0-TxRx-12": 12, "ice-enp1s0f0-TxRx-0": 0, "eth0-Tx-Rx-7": 7, "eth0-rxtx-1": 1,
		"mlx5_comp5@pci:0000:01:00.0": 5, "virtio2-input.0": 0, "virtio2-output.1": 1, "eth0-rx-2": 2, "eth0-tx-2": 2,
		"virtio2-config": -1, "eth0": -1, "mlx5_async0@pci:0000:01:00.0": -1, "ena-mgmnt@pci:0000:00:05.0": -1,
		"i40e-0000:01:00.0:misc": -1, "eth0-TxRx-99999999999999999999": -1,
	} {
		if got := queueOf(name); got != want {
			t.Errorf("%s: %d, want %d", name, got, want)
		}
	}
}

// TestInterrupts: what is said of where interrupts are delivered to.
func TestInterrupts(t *testing.T) {
	on := func(cpus ...int) func(*Facts) {
		return func(f *Facts) {
			f.Host.CPUs, f.Config.WorkerCPUs = []int{0, 1, 2, 3, 4, 5, 6, 7}, []int{4, 5, 6, 7}
			for q, cpu := range cpus {
				f.Interfaces[0].Interrupts = append(f.Interfaces[0].Interrupts,
					Interrupt{40 + q, "eth0-TxRx-" + string(rune('0'+q)), q, []int{cpu}})
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
			f.Interfaces[0].Interrupts = []Interrupt{{40, "eth0", -1, []int{4}}}
		}, "", "", ""},
		{"another queue", on(0, 1, 2, 3, 4), OK, "no interrupt", ""},
		{"shared", on(0, 1, 7, 4), Warn, "42 (eth0-TxRx-2) on CPU 7 of worker 3, 43 (eth0-TxRx-3) on CPU 4 of worker 0",
			"echo 0 > /proc/irq/42/smp_affinity_list; echo 1 > /proc/irq/43/smp_affinity_list, each"},
		{"many", func(f *Facts) {
			on(4, 5, 6, 7)(f)
			on(4)(f)
		}, Warn, "and 1 more", "/proc/irq/43/"},
		{"busy polling", func(f *Facts) { on(4, 5, 6, 7)(f); f.Config.Sockets.BusyPoll = 20_000 }, OK,
			"as it should be", ""},
		{"no other CPU", func(f *Facts) {
			on(0, 1, 2, 3)(f)
			f.Host.CPUs, f.Config.WorkerCPUs = []int{0, 1, 2, 3}, nil
		}, OK, "every CPU has a worker", ""},
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

// TestWorkerPins is beside what depends on it: the daemon pins by the same rule.
func TestWorkerPins(t *testing.T) {
	c := config.Default()
	for _, tt := range []struct{ configured, allowed, want []int }{
		{nil, []int{2, 3}, []int{2, 3, 2}}, {[]int{5}, []int{2, 3, 5}, []int{5, 5, 5}}, {nil, nil, []int{-1, -1, -1}},
	} {
		if c.WorkerCPUs = tt.configured; !reflect.DeepEqual(c.WorkerPins(3, tt.allowed), tt.want) {
			t.Errorf("%v of %v: %v, want %v", tt.configured, tt.allowed, c.WorkerPins(3, tt.allowed), tt.want)
		}
	}
}

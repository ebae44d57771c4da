package irq

import (
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
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

// TestRead: reads the interrupts of a PCI device and of a virtio device, whose PCI device is above
// it.
func TestRead(t *testing.T) {
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
		roots := Roots{filepath.Join(root, "sys"), filepath.Join(root, "proc")}
		if got := roots.Read("eth0"); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
		if got := roots.Read("eth1"); got != nil {
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

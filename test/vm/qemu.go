package vm

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"sluice.dev/sluice/test/vm/pid1"
)

// NIC is an emulated network interface.
type NIC struct {
	Name  string // its name in the guest
	Model string // of Models
	// Hub is the wire it is plugged into, by name. NICs of one hub hear each other.
	Hub string
}

// model is what QEMU and Linux call a NIC.
type model struct {
	device, driver string
	// conventional is for a device of PCI, which no root port of PCI Express takes.
	conventional bool
}

var models = map[string]model{
	// Its virtual functions take the slots beside it, so that it needs a root port of its own; the
	// others have one, too.
	"igb": {device: "igb", driver: "igb"},
	// Zero-copy needs the DMA API, which the driver goes round without these two.
	"virtio-net": {device: "virtio-net-pci,disable-legacy=on,iommu_platform=on", driver: "virtio_net"},
	"e1000e":     {device: "e1000e", driver: "e1000e"},
	"e1000":      {device: "e1000", driver: "e1000", conventional: true},
	"vmxnet3":    {device: "vmxnet3", driver: "vmxnet3"},
}

// ParsePair reads NAME=MODEL and returns two NICs that face each other: NAME, and NAME-peer, a
// virtio-net.
func ParsePair(s string) ([]NIC, error) {
	name, m, ok := strings.Cut(s, "=")
	if !ok || name == "" {
		return nil, fmt.Errorf("pair %q: want NAME=MODEL, left=igb for instance", s)
	}
	return []NIC{{Name: name, Model: m, Hub: name}, {Name: name + "-peer", Model: "virtio-net", Hub: name}},
		checkNICs(name+"-peer", m)
}

// ParseNIC reads NAME=MODEL@HUB.
func ParseNIC(s string) (NIC, error) {
	name, rest, ok := strings.Cut(s, "=")
	m, hub, ok2 := strings.Cut(rest, "@")
	if !ok || !ok2 || name == "" || hub == "" {
		return NIC{}, fmt.Errorf("NIC %q: want NAME=MODEL@HUB, left=igb@wire for instance", s)
	}
	return NIC{Name: name, Model: m, Hub: hub}, checkNICs(name, m)
}

// nameLimit is IFNAMSIZ of include/uapi/linux/if.h less the final zero.
const nameLimit = 15

func checkNICs(name, of string) error {
	if _, ok := models[of]; !ok {
		return fmt.Errorf("no NIC model %q: there are igb, virtio-net, e1000e, e1000, vmxnet3", of)
	}
	if len(name) > nameLimit {
		return fmt.Errorf("an interface's name has at most %d characters, and %s is longer", nameLimit, name)
	}
	return nil
}

func (n NIC) driver() string { return models[n.Model].driver }

// mac is the address of NIC number i: locally administered, of the range that QEMU uses.
func mac(i int) string { return fmt.Sprintf("52:54:00:53:4c:%02x", i+1) }

// args is QEMU's command line.
func (g guest) args() []string {
	share := filepath.Join(g.Cache.tools(), "usr/share")
	args := []string{
		"-L", filepath.Join(share, "qemu"), "-L", filepath.Join(share, "seabios"),
		"-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max",
		"-smp", strconv.Itoa(g.CPUs), "-m", g.Memory,
		"-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-monitor", "none",
		"-kernel", g.Kernel.Image(), "-initrd", g.initramfs(),
		"-append", "console=ttyS0 quiet panic=-1 net.ifnames=0",
		"-serial", "file:" + g.console(),
		"-device", fmt.Sprintf("isa-debug-exit,iobase=%#x,iosize=1", pid1.ExitPort),
		"-virtfs", "local,path=/,mount_tag=" + pid1.RootTag + ",security_model=none,readonly=on,multidevs=remap",
		"-device", "virtio-serial-pci",
	}
	if g.Share != "" {
		args = append(args, "-virtfs", "local,path="+comma(g.Share)+",mount_tag="+pid1.ShareTag+
			",security_model=none,multidevs=remap")
	}
	for name, path := range map[string]string{
		pid1.PortOut: "/dev/fd/3", pid1.PortErr: "/dev/fd/4", pid1.PortStatus: comma(g.status()),
	} {
		args = append(args, "-chardev", "file,id="+name+",path="+path, "-device", "virtserialport,chardev="+name+
			",name="+name)
	}
	return append(args, g.nicArgs()...)
}

// comma is a path as an option of QEMU has it.
func comma(path string) string { return strings.ReplaceAll(path, ",", ",,") }

func (g guest) nicArgs() (args []string) {
	hubs := map[string]int{}
	for i, n := range g.NICs {
		hub, ok := hubs[n.Hub]
		if !ok {
			hub = len(hubs)
			hubs[n.Hub] = hub
		}
		m := models[n.Model]
		args = append(args, "-netdev", fmt.Sprintf("hubport,id=net%d,hubid=%d", i, hub))
		bus := ""
		if !m.conventional {
			args = append(args, "-device", fmt.Sprintf("pcie-root-port,id=port%d,chassis=%d,slot=%d", i, i+1, i+1))
			bus = fmt.Sprintf(",bus=port%d", i)
		}
		args = append(args, "-device", fmt.Sprintf("%s,netdev=net%d,mac=%s,romfile=%s", m.device, i, mac(i), bus))
	}
	return args
}

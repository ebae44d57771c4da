// Package matrix defines the guests in which the gateway is tested, runs them one after another,
// and makes a table of the results: NIC x kernel x mode x test.
package matrix

import (
	"fmt"
	"slices"
	"strings"

	"sluice.dev/sluice/test/vm"
	"sluice.dev/sluice/test/vm/guest"
)

// Row is one guest: a kernel, the models of the gateway's two NICs, and its cases.
type Row struct {
	Kernel      string // suite
	Left, Right string // models
	Name        string // of what differs from a gateway with defaults; empty for none
	Options     string // of the gateway's configuration
	MTU         int    // of both segments; 0 is 1500
	VLAN        guest.VLAN
	Cases       []string
	Megabytes   int64 // of each TCP transfer
	Kills       int
	TakeOvers   int
	// Command is a command of sluice-bench that runs instead, in a guest without NICs; its status
	// is the result.
	Command []string
}

func (r *Row) String() string {
	s := r.Kernel + " " + r.nics()
	if r.Name != "" {
		s += " " + r.Name
	}
	return s
}

// Set is a number of rows, by the name of its target in the Makefile.
type Set string

// The sets.
const (
	CI    Set = "ci"    // regression tests: minutes
	Short Set = "short" // a quarter of an hour
	Full  Set = "full"  // all there is
)

// Sets are all sets.
var Sets = []Set{CI, Short, Full}

// nics are the models, or that there are none.
func (r *Row) nics() string {
	if r.Left == "" {
		return "veth"
	}
	return r.Left + "+" + r.Right
}

var (
	all = around("connect", "udp4", "udp6", "tcp4", "tcp6", "local", "kill", "link")
	// regression are the cases that failed where zero-copy was first tried: the daemon did not
	// start on NICs of which one does zero-copy and the other, or the host link, does not; and igb
	// lost every packet of more than 1 KiB.
	regression = around("connect", "udp4", "udp6", "local", "kill")
)

// around returns cases with the cases before and after all of them.
func around(cases ...string) []string {
	return slices.Concat([]string{"doctor", "start"}, cases, []string{"laws", "stop"})
}

// newest and oldest are the kernels between which README promises the gateway to run; both do the
// same in principle.
const (
	newest = "trixie-backports"
	other  = "sid"
	oldest = "bookworm-backports"

	refused = "bookworm" // 6.1
)

// Rows returns the rows of a set.
func Rows(s Set) ([]Row, error) {
	ci := []Row{
		{Kernel: newest, Left: "igb", Right: "igb", Cases: regression, Megabytes: 4, Kills: 2},
		{Kernel: newest, Left: "igb", Right: "e1000e", Cases: regression, Megabytes: 4, Kills: 1},
	}
	short := []Row{
		{Kernel: newest, Left: "igb", Right: "igb", Cases: all, Megabytes: 100, Kills: 10},
		{Kernel: newest, Left: "virtio-net", Right: "virtio-net", Cases: all, Megabytes: 100, Kills: 10},
		{Kernel: newest, Left: "igb", Right: "e1000e", Cases: all, Megabytes: 10, Kills: 3},
		{Kernel: newest, Left: "vmxnet3", Right: "virtio-net", Cases: all, Megabytes: 10, Kills: 3},
		{Kernel: newest, Left: "e1000e", Right: "vmxnet3", Cases: all, Megabytes: 10, Kills: 3},
	}
	more := []Row{
		{Kernel: newest, Left: "virtio-net", Right: "igb", Cases: all, Megabytes: 10, Kills: 3},
		{Kernel: other, Left: "igb", Right: "virtio-net", Cases: all, Megabytes: 100, Kills: 10},
		{Kernel: oldest, Left: "igb", Right: "igb", Cases: all, Megabytes: 100, Kills: 10},
		{Kernel: oldest, Left: "virtio-net", Right: "virtio-net", Cases: all, Megabytes: 100, Kills: 10},
		{Kernel: oldest, Left: "e1000e", Right: "vmxnet3", Cases: all, Megabytes: 10, Kills: 3},
	}
	more = append(more, jumbo()...)
	more = append(more, tagged()...)
	more = append(more,
		Row{Kernel: newest, Left: "igb", Right: "igb", Name: "changes", Cases: around("connect", "rings", "rss",
			"spread", "queues", "mtu"), Megabytes: 2},
		Row{Kernel: newest, Left: "igb", Right: "igb", Name: "upgrades", Cases: around("upgrade"), TakeOvers: 10},
		Row{Kernel: newest, Left: "virtio-net", Right: "virtio-net", Name: "upgrades", Cases: around("upgrade"),
			TakeOvers: 10},
		Row{Kernel: newest, Left: "e1000e", Right: "vmxnet3", Name: "upgrades", Cases: around("upgrade"),
			TakeOvers: 10},
		Row{Kernel: oldest, Left: "igb", Right: "virtio-net", Name: "upgrades", Cases: around("upgrade"),
			TakeOvers: 10},
		Row{Kernel: newest, Left: "igb", Right: "igb", Name: "unbind", Cases: around("connect", "unbind")},
		Row{Kernel: newest, Left: "virtio-net", Right: "igb", Name: "unbind", Cases: around("connect", "unbind")},
		Row{Kernel: newest, Left: "igb", Right: "igb", Name: "one queue",
			Cases: slices.Concat([]string{"one"}, around("connect", "udp4", "tcp4", "kill", "more")), Megabytes: 10,
			Kills: 2},
		Row{Kernel: newest, Left: "igb", Right: "virtio-net", Name: "generic",
			Cases: slices.Concat([]string{"generic"}, around("connect", "udp4")), Megabytes: 2},
		Row{Kernel: newest, Name: "demo", Command: []string{"demo"}},
		Row{Kernel: oldest, Name: "demo", Command: []string{"demo"}},
	)
	// On older kernels the daemon must report why it does not start.
	more = append(more, Row{Kernel: refused, Left: "igb", Right: "virtio-net", Cases: []string{"refused"}})
	switch s {
	case CI:
		return ci, nil
	case Short:
		return short, nil
	case Full:
		return slices.Concat(short, more), nil
	}
	return nil, fmt.Errorf("no set %q: there are ci, short and full", s)
}

// jumbo are rows with long packets, on each NIC.
func jumbo() (rows []Row) {
	const mtu = 9000
	for _, nics := range [...][2]string{{"igb", "virtio-net"}, {"e1000e", "vmxnet3"}} {
		rows = append(rows, Row{
			Kernel: newest, Left: nics[0], Right: nics[1], Name: fmt.Sprint("MTU ", mtu), MTU: mtu,
			Cases: around("connect", "udp4", "udp6", "tcp4", "tcp6", "kill"), Megabytes: 20, Kills: 3,
		})
	}
	for _, left := range [...]string{"igb", "vmxnet3"} {
		rows = append(rows, Row{Kernel: newest, Left: left, Right: "virtio-net", Name: "native at MTU 9000", MTU: mtu,
			Cases: []string{"native"}})
	}
	return rows
}

// tagged are rows with VLAN devices.
func tagged() (rows []Row) {
	cases := around("connect", "udp4", "udp6", "tcp4", "tcp6", "kill", "link")
	for _, r := range [...]Row{
		{Left: "igb", Right: "virtio-net", Name: "tagged", VLAN: guest.Gateway},
		{Left: "e1000e", Right: "vmxnet3", Name: "tagged", VLAN: guest.Gateway},
		{Left: "igb", Right: "virtio-net", Name: "VLAN devices", VLAN: guest.Devices},
	} {
		r.Kernel, r.Cases, r.Megabytes, r.Kills = newest, cases, 10, 3
		if r.VLAN == guest.Devices {
			r.Cases = slices.Concat([]string{"gro"}, cases)
		}
		rows = append(rows, r)
	}
	return rows
}

// Kernels are the suites that rows need.
func Kernels(rows []Row) (suites []string) {
	for _, r := range rows {
		if !slices.Contains(suites, r.Kernel) {
			suites = append(suites, r.Kernel)
		}
	}
	return suites
}

// frameMTU is the largest that one frame takes.
const frameMTU = 3818

// zeroCopySince is the release of Linux since which a driver has AF_XDP zero-copy.
var zeroCopySince = map[string][2]int{
	"igb":        {6, 14}, // "igb: Add AF_XDP zero-copy Rx support", drivers/net/ethernet/intel/igb/igb_xsk.c
	"virtio-net": {6, 13}, // "virtio_net: enable AF_XDP zero-copy Tx", drivers/net/virtio_net.c
}

// Expected is the mode that a NIC of a model must be in on a kernel, in a row's conditions.
func (r *Row) Expected(model string, k vm.Kernel) guest.Mode {
	var major, minor int
	switch {
	case r.VLAN == guest.Devices, // they have no native XDP
		slices.Contains(r.Cases, "generic"):
		return guest.Generic
	// the only one of them whose driver hands programs packets in several buffers
	case r.MTU > frameMTU && model != "virtio-net":
		return guest.Generic
	case r.MTU > frameMTU:
		return guest.Copy
	}
	if _, err := fmt.Sscanf(k.Release, "%d.%d", &major, &minor); err != nil {
		return guest.Copy // and the case reports its mode
	}
	since, ok := zeroCopySince[model]
	switch {
	case ok && (major > since[0] || major == since[0] && minor >= since[1]):
		return guest.ZeroCopy
	case strings.HasPrefix(model, "e1000"), model == "vmxnet3": // no native XDP, or none after the link was down
		return guest.Generic
	}
	return guest.Copy
}

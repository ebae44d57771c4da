package topo

import (
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
)

// spreadFlows gives a port of a bridge receive-side scaling, as a NIC has it. The port's transmit
// queue is its peer's receive queue, so choosing the one by the packet's flow hash spreads flows
// over the other.
//
// Left alone everything would arrive in queue 0 of two. A veth without NAPI does
// not record the receive queue, so a forwarded packet still carries the transmit
// queue of its sender, and __netdev_pick_tx (net/core/dev.c) reads that field as
// "receive queue plus one": 1 means queue 0; and 0 means none recorded, so the
// queue is found by the hash, which had given queue 0 before.
//
// The program writes that field. It runs in the calling thread's namespace and
// lives as long as the link that is returned.
func spreadFlows(dev string, queues int) (link.Link, error) {
	const queueMapping = 12 // offset in struct __sk_buff, include/uapi/linux/bpf.h
	const tcxNext = -1
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "topo_spread", Type: ebpf.SchedCLS, AttachType: ebpf.AttachTCXEgress, License: "Apache-2.0",
		Instructions: asm.Instructions{
			asm.Mov.Reg(asm.R6, asm.R1),
			asm.FnGetHashRecalc.Call(),
			asm.Mod.Imm32(asm.R0, int32(queues)),
			asm.Add.Imm(asm.R0, 1),
			asm.StoreMem(asm.R6, queueMapping, asm.R0, asm.Word),
			asm.Mov.Imm(asm.R0, tcxNext),
			asm.Return(),
		},
	})
	if err != nil {
		return nil, fmt.Errorf("load the program that spreads flows: %w", err)
	}
	defer program.Close()
	l, err := netlink.LinkByName(dev)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dev, err)
	}
	attached, err := link.AttachTCX(link.TCXOptions{
		Interface: l.Attrs().Index, Program: program, Attach: ebpf.AttachTCXEgress,
	})
	if err != nil {
		return nil, fmt.Errorf("%s: attach the program that spreads flows (Linux 6.12 is needed): %w", dev, err)
	}
	return attached, nil
}

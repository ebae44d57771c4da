package l2fwd

import (
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"sluice.dev/sluice/fastpath/xsk"
	"sluice.dev/sluice/test/bed/xdp"
)

// attach redirects IPv4 and IPv6 packets of an interface to sockets, by queue. Packets of a queue
// without a socket pass.
func attach(ifindex int, sockets []*xsk.Socket) (*xdp.Program, error) {
	var descriptors []int
	for _, s := range sockets {
		descriptors = append(descriptors, s.FD())
	}
	return xdp.Attach(ifindex, 0, xdp.Sockets(descriptors...), redirectIP)
}

// redirectIP is, in struct xdp_md's terms:
//
//	if data + 14 > data_end                  return XDP_PASS
//	if ethertype is neither IPv4 nor IPv6    return XDP_PASS
//	return bpf_redirect_map(&xsks, rx_queue_index, XDP_PASS)
func redirectIP(xsks *ebpf.Map) asm.Instructions {
	const (
		data, dataEnd, rxQueueIndex = 0, 4, 16 // struct xdp_md
		xdpPass                     = 2        // enum xdp_action
		etherTypeAt, etherLen       = 12, 14
		ipv4, ipv6                  = 0x0008, 0xdd86 // as loaded on little-endian machines
	)
	return asm.Instructions{
		asm.LoadMem(asm.R2, asm.R1, data, asm.Word),
		asm.LoadMem(asm.R3, asm.R1, dataEnd, asm.Word),
		asm.Mov.Reg(asm.R4, asm.R2),
		asm.Add.Imm(asm.R4, etherLen),
		asm.JGT.Reg(asm.R4, asm.R3, "pass"),
		asm.LoadMem(asm.R4, asm.R2, etherTypeAt, asm.Half),
		asm.JEq.Imm(asm.R4, ipv4, "redirect"),
		asm.JNE.Imm(asm.R4, ipv6, "pass"),
		asm.LoadMem(asm.R2, asm.R1, rxQueueIndex, asm.Word).WithSymbol("redirect"),
		asm.LoadMapPtr(asm.R1, xsks.FD()),
		asm.Mov.Imm(asm.R3, xdpPass),
		asm.FnRedirectMap.Call(),
		asm.Return(),
		asm.Mov.Imm(asm.R0, xdpPass).WithSymbol("pass"),
		asm.Return(),
	}
}

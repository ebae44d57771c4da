package l2fwd

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"sluice.dev/sluice/fastpath/xsk"
)

// steering is the XDP program of an interface, and the sockets that it redirects to.
type steering struct {
	xsks *ebpf.Map
	prog *ebpf.Program
	xdp  link.Link
}

// attach redirects IPv4 and IPv6 of an interface to sockets, by queue. Packets of
// a queue without one pass.
func attach(ifindex int, sockets []*xsk.Socket) (s *steering, err error) {
	s = new(steering)
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("l2fwd: XDP program on interface %d: %w", ifindex, err), s.close())
		}
	}()
	s.xsks, err = ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.XSKMap, KeySize: 4, ValueSize: 4,
		MaxEntries: uint32(len(sockets))})
	if err != nil {
		return s, err
	}
	for q, socket := range sockets {
		if err := s.xsks.Put(uint32(q), uint32(socket.FD())); err != nil {
			return s, err
		}
	}
	s.prog, err = ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, License: "Apache-2.0",
		Instructions: redirectIP(s.xsks)})
	if err != nil {
		return s, err
	}
	s.xdp, err = link.AttachXDP(link.XDPOptions{Program: s.prog, Interface: ifindex})
	return s, err
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
		ipv4, ipv6                  = 0x0008, 0xdd86 // as little-endian machines load them
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

func (s *steering) close() error {
	var errs []error
	if s.xdp != nil {
		errs = append(errs, s.xdp.Close())
	}
	if s.prog != nil {
		errs = append(errs, s.prog.Close())
	}
	if s.xsks != nil {
		errs = append(errs, s.xsks.Close())
	}
	return errors.Join(errs...)
}

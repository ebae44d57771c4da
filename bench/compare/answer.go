package compare

import (
	"errors"
	"net"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"sluice.dev/sluice/test/bed/stateless"
	"sluice.dev/sluice/test/bed/topo"
	"sluice.dev/sluice/test/bed/xdp"
)

// answering makes the server's interface return each packet to its sender while use runs: the
// client then receives packets that were translated twice. A veth delivers packets of XDP_TX only
// to a peer that has an XDP program (veth_xdp_flush in drivers/net/veth.c). Systems in the kernel
// have none; for them the gateway's interface gets a program that passes every packet.
func (s *stage) answering(x *subject, use func() error) (err error) {
	if kindHasTwins(x.kind.base()) {
		pass, err := attach(x.place.gateway, backDev, passAll)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, pass.Close()) }()
	}
	program, err := attach(x.place.server, "eth0", answer())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, program.Close()) }()
	return use()
}

// passAll gives every packet to the kernel.
var passAll = asm.Instructions{asm.Mov.Imm(asm.R0, xdpPass).WithSymbol("pass_all"), asm.Return()}

// attach attaches a program to a host's interface.
func attach(h *topo.Host, name string, list asm.Instructions) (p *xdp.Program, err error) {
	unused := &ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1}
	err = h.Run(func() error {
		dev, err := net.InterfaceByName(name)
		if err != nil {
			return err
		}
		p, err = xdp.Attach(dev.Index, 0, unused, func(*ebpf.Map) asm.Instructions { return list })
		return err
	})
	return p, err
}

const xdpPass, xdpTx = 2, 3 // enum xdp_action

// answer is a program that returns UDP over IPv4 without options, and passes all other packets.
func answer() asm.Instructions {
	const (
		etherType, version, protocol = 12, 14, 23
		end                          = 42
	)
	list := asm.Instructions{
		asm.LoadMem(asm.R6, asm.R1, 0, asm.Word).WithSymbol("answer"), // data
		asm.LoadMem(asm.R7, asm.R1, 4, asm.Word),                      // data_end
		asm.Mov.Reg(asm.R2, asm.R6),
		asm.Add.Imm(asm.R2, end),
		asm.JGT.Reg(asm.R2, asm.R7, "pass"),
		asm.LoadMem(asm.R2, asm.R6, etherType, asm.Half),
		asm.JNE.Imm(asm.R2, 0x0008, "pass"), // EtherType IPv4 (0x0800, read as little-endian)
		asm.LoadMem(asm.R2, asm.R6, version, asm.Byte),
		asm.JNE.Imm(asm.R2, 0x45, "pass"),
		asm.LoadMem(asm.R2, asm.R6, protocol, asm.Byte),
		asm.JNE.Imm(asm.R2, 17, "pass"),
	}
	for _, pair := range [...]struct {
		a, b int16
		size asm.Size
	}{{0, 6, asm.Word}, {4, 10, asm.Half}, {26, 30, asm.Word}, {34, 36, asm.Half}} { // MAC, IP addresses, ports
		list = append(list,
			asm.LoadMem(asm.R2, asm.R6, pair.a, pair.size),
			asm.LoadMem(asm.R3, asm.R6, pair.b, pair.size),
			asm.StoreMem(asm.R6, pair.a, asm.R3, pair.size),
			asm.StoreMem(asm.R6, pair.b, asm.R2, pair.size))
	}
	return append(list,
		asm.Mov.Imm(asm.R0, xdpTx),
		asm.Return(),
		asm.Mov.Imm(asm.R0, xdpPass).WithSymbol("pass"),
		asm.Return())
}

// receiver is the configuration of the receiver: the interface and the method of counting.
func (s *stage) receiver(x *subject, method stateless.Method) stateless.Rx {
	at := x.place.server
	if s.BothWays {
		at = x.place.client
	}
	r := stateless.Rx{Port: stateless.Port{Interface: "eth0", Namespace: at}, Method: method}
	if method == stateless.Timed {
		r.Keep = s.keep
	}
	return r
}

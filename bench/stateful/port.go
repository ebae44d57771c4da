package stateful

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/fastpath/xsk"
	"sluice.dev/sluice/host/nic/ethtool"
	"sluice.dev/sluice/test/bed/stateless"
	"sluice.dev/sluice/test/bed/xdp"
)

// Port is an interface that an engine takes over while it runs.
type Port = stateless.Port

// line is an open Port: an AF_XDP socket, its memory, and the program that redirects all packets to
// it.
type line struct {
	mac     [6]byte
	own4    netip.Addr // invalid without one
	own6    netip.Addr
	umem    *xsk.UMEM
	pool    *fastpath.Pool
	socket  *xsk.Socket
	program *xdp.Program
}

const (
	lineRing   = 4096
	lineFrames = 4 * lineRing
)

// openLine opens the socket and redirects the interface's traffic to it.
func openLine(ctx context.Context, p *Port) (l *line, err error) {
	l = &line{}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("interface %s: %w", p.Interface, err), l.close())
		}
	}()
	if l.umem, err = xsk.NewUMEM(xsk.UMEMConfig{Frames: lineFrames, FrameSize: 2048}); err != nil {
		return l, err
	}
	l.pool = fastpath.NewPool(lineFrames, 2048)
	return l, p.Run(func() error {
		ifi, err := l.inspect(p.Interface)
		if err != nil {
			return err
		}
		l.socket, err = xsk.Open(ctx, xsk.Config{
			Interface: p.Interface, UMEM: l.umem,
			RxSize: lineRing, TxSize: lineRing, FillSize: lineRing, CompletionSize: lineRing,
		})
		if err != nil {
			return err
		}
		l.socket.Refill(l.pool)
		l.program, err = xdp.Attach(ifi.Index, 0, xdp.Sockets(l.socket.FD()), redirect)
		return err
	})
}

// inspect reads the interface's properties, and returns an error for an interface that the engine
// cannot use alone.
func (l *line) inspect(name string) (*net.Interface, error) {
	ifi, err := net.InterfaceByName(name)
	if err != nil {
		return nil, err
	}
	if len(ifi.HardwareAddr) != len(l.mac) {
		return nil, errors.New("is no Ethernet")
	}
	copy(l.mac[:], ifi.HardwareAddr)
	addresses, err := ifi.Addrs()
	if err != nil {
		return nil, err
	}
	for _, a := range addresses {
		prefix, err := netip.ParsePrefix(a.String())
		if err != nil {
			return nil, err
		}
		switch addr := prefix.Addr(); {
		case addr.Is4() && !l.own4.IsValid():
			l.own4 = addr
		case addr.Is6() && !addr.IsLinkLocalUnicast() && !l.own6.IsValid():
			l.own6 = addr
		}
	}
	c, err := ethtool.ReadChannels(name)
	if rx, _ := c.Queues(); err == nil && rx > 1 {
		return nil, fmt.Errorf("has several receive queues and an engine has one: set one with `ethtool -L %s "+
			"combined 1`, or `rx 1` where queues are not combined", name)
	}
	return ifi, nil
}

// redirect gives every packet to the first socket.
func redirect(sockets *ebpf.Map) asm.Instructions {
	const xdpDrop = 1 // enum xdp_action: drops packets that are not redirected
	return asm.Instructions{
		asm.LoadMapPtr(asm.R1, sockets.FD()),
		asm.Mov.Imm(asm.R2, 0),
		asm.Mov.Imm(asm.R3, xdpDrop),
		asm.FnRedirectMap.Call(),
		asm.Return(),
	}
}

func (l *line) close() error {
	errs := []error{l.program.Close()}
	if l.socket != nil {
		errs = append(errs, l.socket.Close(l.pool))
	}
	if l.umem != nil {
		errs = append(errs, l.umem.Close())
	}
	return errors.Join(errs...)
}

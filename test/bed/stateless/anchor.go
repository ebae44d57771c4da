package stateless

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"sluice.dev/sluice/test/bed/topo"
)

// anchor holds a program in the kernel's XDP dispatcher. Each run of a program that
// is not there puts it there and takes it out again (bpf_prog_change_xdp, called by
// bpf_prog_test_run_xdp in net/bpf/test_run.c): machine code is patched, all CPUs are
// interrupted, and a grace period passes; milliseconds each time. A program that is
// attached to some device stays, so this attaches it to one that carries nothing: the
// loopback device, which is down, of a namespace of its own.
type anchor struct {
	space *topo.Space
	xdp   link.Link
}

func newAnchor(p *ebpf.Program) (*anchor, error) {
	space, err := topo.NewSpace()
	if err != nil {
		return nil, err
	}
	a := &anchor{space: space}
	err = space.Run(func() error {
		const loopbackIndex = 1 // LOOPBACK_IFINDEX, in every namespace
		a.xdp, err = link.AttachXDP(link.XDPOptions{Program: p, Interface: loopbackIndex, Flags: link.XDPGenericMode})
		return err
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("keep the program of the sender in place: %w", err), space.Close())
	}
	return a, nil
}

func (a *anchor) close() error { return errors.Join(a.xdp.Close(), a.space.Close()) }

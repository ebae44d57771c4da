package xdpprog

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
)

// Errors of Port.Check and Attach.
var (
	// ErrDeviceGone: the interface no longer exists in this network namespace.
	ErrDeviceGone = errors.New("the interface is gone")
	// ErrDetached: this gateway's program was detached; Attach again.
	ErrDetached = errors.New("the program is not attached any more")
	// ErrForeign: the hook holds another process's program.
	ErrForeign = errors.New("another XDP program is attached")
	// ErrAttached: this Steering has already attached to the interface; call Port.Close first.
	ErrAttached = errors.New("attached already")
)

// Lost reports whether an error of Port.Check means that the interface no longer runs this
// gateway's programs. Every other error means that the state could not be read.
func Lost(err error) bool {
	return errors.Is(err, ErrDeviceGone) || errors.Is(err, ErrDetached) || errors.Is(err, ErrForeign)
}

// hook is the state of an interface's XDP hook as rtnetlink reports it: unlike the lookup of a
// program or link by id, this needs no capability.
type hook struct {
	program ebpf.ProgramID // zero if the hook is free
	generic bool
}

// xdpAttachedSKB is XDP_ATTACHED_SKB of include/uapi/linux/if_link.h.
const xdpAttachedSKB = 2

func readHook(ifindex int) (hook, error) {
	l, err := netlink.LinkByIndex(ifindex)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return hook{}, ErrDeviceGone
	}
	if err != nil {
		return hook{}, fmt.Errorf("read XDP state: %w", err)
	}
	x := l.Attrs().Xdp
	if x == nil || !x.Attached {
		return hook{}, nil
	}
	return hook{program: ebpf.ProgramID(x.ProgId), generic: x.AttachMode == xdpAttachedSKB}, nil
}

// foreign returns an ErrForeign that names the attached program and the remedies.
func (h hook) foreign(name string) error {
	who := ""
	if p, err := ebpf.NewProgramFromID(h.program); err == nil {
		if info, err := p.Info(); err == nil {
			who = fmt.Sprintf(" (%q)", info.Name)
		}
		p.Close()
	}
	return fmt.Errorf("%w: program id %d%s; stop its owner, or remove it with `ip link set dev %s xdp off` or, if a "+
		"link holds it, `bpftool link detach`",
		ErrForeign, h.program, who, name)
}

// Replaceable returns the error with which Attach would reject an interface because of the program
// that is attached now: an ErrForeign, if no link in pinDir holds that program. It changes nothing.
func Replaceable(pinDir string, ifindex int, name string) error {
	h, err := readHook(ifindex)
	if err != nil || h.program == 0 {
		return err
	}
	l, err := openPinned(linkPin(pinDir, hookXDP, ifindex))
	if err != nil {
		return err
	}
	if l == nil {
		return h.foreign(name)
	}
	defer l.Close()
	info, err := l.Info()
	if err == nil && info.Program != h.program {
		err = h.foreign(name)
	}
	return err
}

package xdpprog

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// AttachMode is the place in the receive path where the XDP program runs.
type AttachMode uint8

const (
	// Auto uses Native if the driver supports it, and Generic otherwise. If an earlier process
	// left a program attached, its mode stays.
	Auto AttachMode = iota
	// Native: in the driver.
	Native
	// Generic: in the stack, after the kernel has made an skb; works on every device.
	Generic
	// PreferNative is Auto, but it replaces a predecessor's generic attachment by a native one if
	// the driver supports that. The two cannot be attached at once, so packets pass to the kernel
	// in between.
	PreferNative
)

// String returns the name used in configuration and status.
func (m AttachMode) String() string {
	return [...]string{"auto", "native", "generic", "prefer native"}[m]
}

func (m AttachMode) flags() link.XDPAttachFlags {
	if m == Generic {
		return link.XDPGenericMode
	}
	return link.XDPDriverMode
}

// replaces reports whether mode m requires replacing a predecessor's attachment in mode have.
func (m AttachMode) replaces(have AttachMode) bool {
	switch m {
	case Auto:
		return false
	case PreferNative:
		return have == Generic
	}
	return m != have
}

// Port is one interface with its XDP program and its sockets.
type Port struct {
	s       *Steering
	ifindex int
	name    string
	mode    AttachMode
	reason  string
	link    link.Link
	program *ebpf.Program
	id      ebpf.ProgramID
	xsks    *ebpf.Map
	queues  *ebpf.Map
	macs    *ebpf.Map
	vlans   *ebpf.Map
}

// Attach attaches the steering program to an interface. It replaces a predecessor's program
// atomically. If any other program is attached, it fails with ErrForeign.
func (s *Steering) Attach(ifindex int, name string, mode AttachMode) (*Port, error) {
	return s.attach(steerProgSteer, ifindex, name, mode, nil)
}

// AttachHostLink attaches the program that steers every packet to the user-space end of the host
// link.
func (s *Steering) AttachHostLink(ifindex int, name string) (*Port, error) {
	return s.attach(steerProgHostLink, ifindex, name, Auto, nil)
}

// AttachOver is Attach, or AttachHostLink for the host link, for an interface with a predecessor's
// program, whose sockets this process has taken over. It calls fill to give the new program its
// sockets and other state before the program replaces the predecessor's. So every packet finds a
// socket.
func (s *Steering) AttachOver(ifindex int, name string, hostLink bool, fill func(*Port) error) (*Port, error) {
	program := steerProgSteer
	if hostLink {
		program = steerProgHostLink
	}
	return s.attach(program, ifindex, name, Auto, fill)
}

func (s *Steering) attach(
	program string, ifindex int, name string, mode AttachMode, fill func(*Port) error,
) (*Port, error) {
	if s.ports[ifindex] != nil {
		return nil, fmt.Errorf("attach XDP to %s: %w", name, ErrAttached)
	}
	p := &Port{s: s, ifindex: ifindex, name: name}
	c, err := s.instance(program)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	p.program, p.xsks, p.queues = c.DetachProgram(program), c.DetachMap(steerMapXsks), c.DetachMap(steerMapQueues)
	p.macs, p.vlans = c.DetachMap(steerMapMacs), c.DetachMap(steerMapVlans)
	info, err := p.program.Info()
	if err == nil {
		p.id, _ = info.ID()
		if fill != nil {
			err = fill(p)
		}
		if err == nil {
			err = p.attach(mode)
		}
	}
	if err != nil {
		err = fmt.Errorf("attach XDP to %s: %w", name, err)
		return nil, errors.Join(err, p.close())
	}
	s.mu.Lock()
	s.ports[ifindex] = p
	s.mu.Unlock()
	s.config.Logger.Info(
		"attached XDP program", "program", program, "interface", name, "mode", p.mode, "reason", p.reason,
	)
	return p, nil
}

func (p *Port) attach(mode AttachMode) error {
	h, err := readHook(p.ifindex)
	if err != nil {
		return err
	}
	taken, err := p.takeOver(h, mode)
	if err != nil || taken {
		return err
	}
	if h, err = readHook(p.ifindex); err != nil {
		return err
	}
	if h.program != 0 {
		return h.foreign(p.name)
	}
	if mode == PreferNative {
		mode = Auto
	}
	if err := p.attachNew(mode); err != nil {
		return err
	}
	return pin(p.link, p.pinPath())
}

// takeOver replaces the program of a predecessor's pinned link. It returns false if there is no
// usable link; then a new link can be made.
func (p *Port) takeOver(h hook, mode AttachMode) (bool, error) {
	l, err := openPinned(p.pinPath())
	if l == nil || err != nil {
		return false, err
	}
	info, err := l.Info()
	if err != nil {
		return false, errors.Join(err, l.Close())
	}
	have := Native
	if h.generic {
		have = Generic
	}
	attachedTo := info.XDP().Ifindex
	if attachedTo == 0 { // its device was deleted, or it was detached
		return false, dropLink(l)
	}
	if h.program != info.Program {
		return false, errors.Join(fmt.Errorf("%s is the link of interface %d in another network namespace; "+
			"every gateway needs a pin directory of its own", p.pinPath(), attachedTo), l.Close())
	}
	if mode.replaces(have) {
		return false, dropLink(l)
	}
	if err := l.Update(p.program); err != nil {
		return false, errors.Join(fmt.Errorf("replace the predecessor's program: %w", err), l.Close())
	}
	p.link, p.mode, p.reason = l, have, "taken over from the previous process"
	return true, nil
}

func (p *Port) attachNew(mode AttachMode) error {
	p.reason = "configured"
	if mode == Generic {
		return p.hook(Generic)
	}
	native := p.hook(Native)
	switch {
	case native == nil && mode == Auto:
		p.reason = "the driver supports it"
		return nil
	case native == nil || noModeHelps(native):
		return native
	case mode == Native:
		return fmt.Errorf(
			"the driver refuses native mode, choose auto or generic, or look at its MTU and queues: %w", native,
		)
	}
	if err := p.hook(Generic); err != nil {
		return errors.Join(native, err)
	}
	p.reason = "the driver refuses native mode: " + native.Error()
	return nil
}

// noModeHelps reports whether an attach error has nothing to do with the driver, so that no other
// mode can succeed.
func noModeHelps(err error) bool {
	for _, e := range []error{unix.EPERM, unix.EBUSY, unix.EEXIST, unix.ENODEV, unix.EMFILE, unix.ENFILE} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func (p *Port) hook(m AttachMode) (err error) {
	p.mode = m
	p.link, err = link.AttachXDP(link.XDPOptions{Program: p.program, Interface: p.ifindex, Flags: m.flags()})
	if errors.Is(err, unix.EPERM) {
		return explain(err)
	}
	return err
}

// Mode returns Native or Generic.
func (p *Port) Mode() AttachMode { return p.mode }

// Reason returns why the mode was chosen.
func (p *Port) Reason() string { return p.reason }

// SetQueues records that the first n receive queues have a socket or will have one. Service packets
// of other queues pass to the kernel at once; otherwise they would be dropped for as long as the
// daemon lives, because the heartbeat stays young. There are other queues if the device has more
// queues than the daemon uses, or is given more (ethtool -L). Before SetQueues, and if n is 0, the
// program expects a socket for every queue.
func (p *Port) SetQueues(n int) error {
	if err := p.queues.Put(uint32(0), uint32(n)); err != nil {
		return fmt.Errorf("served queues of %s: %w", p.name, err)
	}
	return nil
}

// SetSocket redirects the packets of a receive queue to an AF_XDP socket, which must be bound to
// that queue. The kernel removes the entry when the socket is closed.
func (p *Port) SetSocket(queue int, fd int) error {
	if err := p.xsks.Put(uint32(queue), uint32(fd)); err != nil {
		return fmt.Errorf("socket of %s queue %d: %w", p.name, queue, err)
	}
	return nil
}

// KeepSocket is SetSocket for a queue whose socket is already set. It reports whether the entry was
// missing, because another tool emptied the map. An XSKMAP cannot be read, but an update with
// BPF_EXIST fails if the entry is missing (xsk_map_update_elem, net/xdp/xskmap.c). If the entry has
// another socket, KeepSocket replaces it and does not report that.
func (p *Port) KeepSocket(queue int, fd int) (lost bool, err error) {
	err = p.xsks.Update(uint32(queue), uint32(fd), ebpf.UpdateExist)
	if err == nil {
		return false, nil
	}
	if !errors.Is(err, ebpf.ErrKeyNotExist) {
		return false, fmt.Errorf("socket of %s queue %d: %w", p.name, queue, err)
	}
	return true, p.SetSocket(queue, fd)
}

// Check returns nil if the interface still runs this gateway's programs, an error for which Lost
// returns true if it does not, and any other error if the state could not be read.
func (p *Port) Check() error {
	h, err := readHook(p.ifindex)
	if err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	if h.program != 0 && h.program != p.id {
		return fmt.Errorf("%s: %w", p.name, h.foreign(p.name))
	}
	if h.program == 0 {
		return fmt.Errorf("%s: XDP: %w", p.name, ErrDetached)
	}
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	return p.checkEgress()
}

// Linked reports whether this gateway's links hold the interface with its programs. While they do,
// no other program can replace them (dev_xdp_attach, net/core/dev.c). Linked costs one system call
// for each link, and so is cheaper than Check, which lists all attributes of the device by
// rtnetlink. Unlike Check, it does not detect that the device was moved to another network
// namespace.
func (p *Port) Linked() bool {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	if p.s.ports[p.ifindex] != p {
		return false
	}
	info, err := p.link.Info()
	if err != nil || info.Program != p.id {
		return false
	}
	xdp := info.XDP()
	return xdp != nil && xdp.Ifindex == uint32(p.ifindex) && p.checkEgress() == nil
}

// checkEgress returns an error if there is an egress program and it is not attached. p.s.mu must be
// held.
func (p *Port) checkEgress() error {
	if e := p.s.egress[p.ifindex]; e != nil {
		if err := e.check(); err != nil {
			return fmt.Errorf("%s: egress: %w", p.name, err)
		}
	}
	return nil
}

// Close detaches all programs from the interface, including the egress program.
func (p *Port) Close() error {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	if p.s.ports[p.ifindex] != p {
		return nil
	}
	delete(p.s.ports, p.ifindex)
	err := p.release(true)
	if e := p.s.egress[p.ifindex]; e != nil {
		delete(p.s.egress, p.ifindex)
		err = errors.Join(err, e.release(true))
	}
	return err
}

// release closes this process's descriptors, and also detaches the program if detach is set.
func (p *Port) release(detach bool) error {
	return errors.Join(closeLink(p.link, detach), p.close())
}

func (p *Port) close() error {
	return errors.Join(p.program.Close(), p.xsks.Close(), p.queues.Close(), p.macs.Close(), p.vlans.Close())
}

func (p *Port) pinPath() string { return p.s.linkPin(hookXDP, p.ifindex) }

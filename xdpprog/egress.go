package xdpprog

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// AttachEgress attaches the egress program to an interface, ahead of all other TCX egress programs.
// The program does nothing until Settings name a host link. It does not see frames that Sluice
// sends by AF_XDP: __dev_direct_xmit (net/core/dev.c) runs no queueing discipline and no TCX.
func (s *Steering) AttachEgress(ifindex int, name string) error {
	if s.egress[ifindex] != nil {
		return fmt.Errorf("attach TCX egress to %s: %w", name, ErrAttached)
	}
	prog, err := s.egressProgram()
	if err != nil {
		return err
	}
	e := &egressFilter{prog: prog}
	if err := e.attach(ifindex, s.linkPin(hookTCX, ifindex)); err != nil {
		return errors.Join(fmt.Errorf("attach TCX egress to %s: %w", name, err), e.prog.Close())
	}
	s.mu.Lock()
	s.egress[ifindex] = e
	s.mu.Unlock()
	s.config.Logger.Info("attached TCX program", "program", steerProgEgress, "interface", name)
	return nil
}

// egressProgram returns a descriptor of the egress program, for the caller to close. The program
// has no maps of a single interface, so all interfaces share it, and the verifier checks it only
// once.
func (s *Steering) egressProgram() (*ebpf.Program, error) {
	if s.egressLoaded == nil {
		c, err := s.instance(steerProgEgress)
		if err != nil {
			return nil, err
		}
		defer c.Close()
		s.egressLoaded = c.DetachProgram(steerProgEgress)
	}
	return s.egressLoaded.Clone()
}

// egressFilter is the TCX egress program of one interface.
type egressFilter struct {
	link link.Link
	prog *ebpf.Program
}

func (e *egressFilter) attach(ifindex int, path string) (err error) {
	if e.link, err = openPinned(path); err != nil {
		return err
	}
	if e.link != nil {
		if e.check() == nil {
			return e.link.Update(e.prog)
		}
		if err := dropLink(e.link); err != nil {
			return err
		}
	}
	e.link, err = link.AttachTCX(link.TCXOptions{
		Interface: ifindex, Program: e.prog, Attach: ebpf.AttachTCXEgress, Anchor: link.Head(),
	})
	if err != nil {
		return explain(err)
	}
	return pin(e.link, path)
}

// check returns ErrDetached if the link has no device any more.
func (e *egressFilter) check() error {
	info, err := e.link.Info()
	if err != nil {
		return err
	}
	if info.TCX().Ifindex == 0 {
		return ErrDetached
	}
	return nil
}

func (e *egressFilter) release(detach bool) error {
	return errors.Join(closeLink(e.link, detach), e.prog.Close())
}

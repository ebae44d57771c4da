// Package xdp attaches the small XDP programs of the laboratory, which are written as instructions
// and have one map.
package xdp

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
)

// Program is on an interface until Close.
type Program struct {
	Map     *ebpf.Map
	program *ebpf.Program
	link    link.Link
}

// Attach makes a map and attaches the program that uses it to an interface of the calling thread's
// network namespace. Flags of 0 leave the mode to the kernel: native where the driver can.
func Attach(
	ifindex int, flags link.XDPAttachFlags, m *ebpf.MapSpec, instructions func(*ebpf.Map) asm.Instructions,
) (p *Program, err error) {
	p = new(Program)
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("XDP program on interface %d: %w", ifindex, err), p.Close())
			p = nil
		}
	}()
	if p.Map, err = ebpf.NewMap(m); err != nil {
		return p, err
	}
	p.program, err = ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, License: "Apache-2.0",
		Instructions: instructions(p.Map)})
	if err != nil {
		return p, err
	}
	p.link, err = link.AttachXDP(link.XDPOptions{Program: p.program, Interface: ifindex, Flags: flags})
	return p, err
}

// Sockets is a map that redirects to AF_XDP sockets, given as descriptors: by place, from 0.
func Sockets(descriptors ...int) *ebpf.MapSpec {
	m := &ebpf.MapSpec{Type: ebpf.XSKMap, KeySize: 4, ValueSize: 4, MaxEntries: uint32(len(descriptors))}
	for i, fd := range descriptors {
		m.Contents = append(m.Contents, ebpf.MapKV{Key: uint32(i), Value: uint32(fd)})
	}
	return m
}

// Close takes the program off the interface; a nil program is on none.
func (p *Program) Close() error {
	if p == nil {
		return nil
	}
	var err error
	if p.link != nil {
		err = p.link.Close()
	}
	return errors.Join(err, p.program.Close(), p.Map.Close()) // both take nil
}

package tail

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"os"
	"runtime"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// kind is the type of an event; enum kind of trace.bpf.c has the same values.
type kind uint16

const (
	switched     kind = iota + 1 // thread stopped for a reason (state), other runs now
	waking                       // thread is woken by other
	softirq                      // of a vector (state) begins
	softirqEnd                   //
	interrupt                    // of a source (state) begins
	interruptEnd                 //
	polled                       // a NAPI (id, of interface other in namespace thread) took packets (state)
	call                         // thread begins a system call (state)
	callEnd                      //
	sampled                      // thread ran, with a stack (state)
)

// event is an event recorded by a program.
type event struct {
	at, id               uint64 // CLOCK_MONOTONIC, nanoseconds
	thread, other, state uint32
	kind                 kind
	cpu                  uint16
}

// netRX is the vector of softirqs that receive (NET_RX_SOFTIRQ, include/linux/interrupt.h).
const netRX = 3

// thread describes a thread.
type thread struct {
	process int
	name    string
}

// recording holds the events of an interval.
type recording struct {
	events  []event // by time
	threads map[uint32]thread
	lost    uint64            // events dropped because there was no room
	works   map[uint32]string // the work that sampled stacks show, see workOf
}

// eventBytes is the size of struct event of trace.bpf.c.
const eventBytes = 32

// recorder holds the loaded programs.
type recorder struct {
	objects traceObjects
	cpus    int
	room    int // events per CPU
	links   []link.Link
	// forwarder is the process whose threads are sampled; 0: none.
	forwarder int
	samples   []*os.File
	symbols   symbols
}

// optional are programs whose tracepoints some processors lack.
var optional = map[string]bool{
	traceProgLocalTimerEntry: true, traceProgLocalTimerExit: true,
	traceProgRescheduleEntry: true, traceProgRescheduleExit: true,
	traceProgCallFunctionSingleEntry: true, traceProgCallFunctionSingleExit: true,
}

// openRecorder loads the programs, with room for a number of events per CPU. They record the system
// calls of the generator and of the forwarder, and sample the forwarder's threads; 0: none.
func openRecorder(room, generator, forwarder int) (*recorder, error) {
	spec, err := loadTrace()
	if err != nil {
		return nil, err
	}
	r := &recorder{cpus: runtime.NumCPU(), room: room, forwarder: forwarder}
	if forwarder != 0 {
		if r.symbols, err = symbolsOf(forwarder); err != nil {
			return nil, err
		}
	}
	if all := uint64(room) * uint64(r.cpus); bits.Len64(all*eventBytes) > 32 {
		return nil, fmt.Errorf("%d events on each of %d CPUs need more than 4 GiB: choose a lower rate or a shorter "+
			"duration", room, r.cpus)
	}
	spec.Maps[traceMapEvents].MaxEntries = uint32(room * r.cpus)
	spec.Maps[traceMapCursors].MaxEntries = uint32(r.cpus)
	if err := errors.Join(spec.Variables[traceVarRoom].Set(uint32(room)),
		spec.Variables[traceVarProcesses].Set([2]uint32{uint32(generator), uint32(forwarder)})); err != nil {
		return nil, err
	}
	kernel, err := btf.LoadKernelSpec()
	if err != nil {
		return nil, fmt.Errorf("the kernel's types (/sys/kernel/btf/vmlinux, CONFIG_DEBUG_INFO_BTF): %w", err)
	}
	for name, p := range spec.Programs {
		if name == traceProgSample {
			continue
		}
		var t *btf.Typedef
		if err := kernel.TypeByName("btf_trace_"+p.AttachTo, &t); err == nil {
			continue
		}
		if !optional[name] {
			return nil, fmt.Errorf("this kernel has no tracepoint %s", p.AttachTo)
		}
		// A program that is never attached replaces one that cannot be loaded.
		spec.Programs[name] = spec.Programs[traceProgSoftirqEntry].Copy()
		spec.Programs[name].Name = absent
	}
	if err := spec.LoadAndAssign(&r.objects, nil); err != nil {
		return nil, fmt.Errorf("load the programs on tracepoints (CAP_BPF and CAP_PERFMON are needed): %w", err)
	}
	return r, nil
}

const absent = "absent"

// start starts the recording.
func (r *recorder) start() error {
	p := &r.objects.tracePrograms
	for _, program := range [...]*ebpf.Program{
		p.SchedSwitch, p.SchedWaking, p.SoftirqEntry, p.SoftirqExit, p.IrqHandlerEntry, p.IrqHandlerExit,
		p.LocalTimerEntry, p.LocalTimerExit, p.RescheduleEntry, p.RescheduleExit, p.CallFunctionSingleEntry,
		p.CallFunctionSingleExit, p.NapiPoll, p.SysEnter, p.SysExit,
	} {
		info, err := program.Info()
		if err != nil {
			return err
		}
		if info.Name == absent {
			continue
		}
		l, err := link.AttachTracing(link.TracingOptions{Program: program})
		if err != nil {
			return errors.Join(fmt.Errorf("attach to tracepoint %s: %w", info.Name, err), r.detach())
		}
		r.links = append(r.links, l)
	}
	if r.forwarder == 0 {
		return nil
	}
	var err error
	if r.samples, err = sampleThreads(r.forwarder, p.Sample); err != nil {
		return errors.Join(err, r.detach())
	}
	return nil
}

func (r *recorder) detach() error {
	var errs []error
	for _, l := range r.links {
		errs = append(errs, l.Close())
	}
	for _, f := range r.samples {
		errs = append(errs, f.Close())
	}
	r.links, r.samples = nil, nil
	return errors.Join(errs...)
}

// stop ends the recording and returns it; the buffers are then empty.
func (r *recorder) stop() (*recording, error) {
	if err := r.detach(); err != nil {
		return nil, err
	}
	out, err := r.read()
	if err != nil {
		return nil, err
	}
	for cpu := range r.cpus {
		if err := r.objects.Cursors.Put(uint32(cpu), traceCursor{}); err != nil {
			return nil, fmt.Errorf("forget the events: %w", err)
		}
	}
	return out, nil
}

// read returns the recorded events. While the recorder runs, the last event may be incomplete.
func (r *recorder) read() (*recording, error) {
	out := &recording{threads: map[uint32]thread{}, works: map[uint32]string{}}
	size := (r.room*r.cpus*eventBytes + unix.Getpagesize() - 1) / unix.Getpagesize() * unix.Getpagesize()
	mem, err := unix.Mmap(r.objects.Events.FD(), 0, size, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map the events: %w", err)
	}
	defer func() { _ = unix.Munmap(mem) }()
	for cpu := range r.cpus {
		var c traceCursor
		if err := r.objects.Cursors.Lookup(uint32(cpu), &c); err != nil {
			return nil, fmt.Errorf("read the number of events: %w", err)
		}
		n := min(c.Next, uint64(r.room))
		out.lost += c.Next - n
		out.events = appendEvents(out.events, mem[cpu*r.room*eventBytes:], int(n), uint16(cpu))
	}
	slices.SortStableFunc(out.events, byTime)
	for i := range out.events {
		if e := &out.events[i]; e.kind == sampled {
			if _, ok := out.works[e.state]; !ok {
				out.works[e.state] = workOf(r.functions(e.state))
			}
		}
	}
	var id uint32
	var name traceName
	for list := r.objects.Names.Iterate(); list.Next(&id, &name); {
		out.threads[id] = thread{process: int(name.Process), name: unix.ByteSliceToString(text(name.Text[:]))}
	}
	return out, nil
}

// functions returns the functions of a sampled stack, the innermost first.
func (r *recorder) functions(stack uint32) []string {
	var s traceStack
	if err := r.objects.Stacks.Lookup(stack, &s); err != nil {
		return nil // the stack map was full
	}
	return r.symbols.stack(s.Functions[:])
}

func byTime(a, b event) int {
	switch {
	case a.at < b.at:
		return -1
	case a.at > b.at:
		return 1
	}
	return 0
}

func text(s []int8) []byte {
	b := make([]byte, len(s))
	for i, c := range s {
		b[i] = byte(c)
	}
	return b
}

// appendEvents decodes events of a CPU.
func appendEvents(list []event, mem []byte, n int, cpu uint16) []event {
	list = slices.Grow(list, n)
	for i := range n {
		b := mem[i*eventBytes : (i+1)*eventBytes]
		e := binary.LittleEndian
		list = append(list, event{
			at: e.Uint64(b), id: e.Uint64(b[8:]), thread: e.Uint32(b[16:]), other: e.Uint32(b[20:]),
			state: e.Uint32(b[24:]), kind: kind(e.Uint16(b[28:])), cpu: cpu,
		})
	}
	return list
}

func (r *recorder) close() error { return errors.Join(r.detach(), r.objects.Close()) }

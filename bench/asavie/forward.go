package asavie

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"slices"
	"time"

	"github.com/asavie/xdp"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/fastpath"
)

// ForwardConfig configures Forward.
type ForwardConfig struct {
	// In and Out are interfaces of the calling thread's network namespace. InNext and OutNext are
	// the destinations of the packets sent on them.
	In, Out         string
	InNext, OutNext net.HardwareAddr
	Queues          int
	CPUs            []int // of the workers, one per queue, in turn; empty: not pinned
	Drain           bool  // Config.Drain
}

// Sizes are the gateway's defaults, so that rings make no difference.
const (
	forwardFrames, forwardFrameSize, forwardRing = 8192, 2048, 2048

	forwardBatch = 64
	forwardSpin  = 20 * time.Microsecond
	forwardSleep = 100 // ms
)

// Forward forwards all packets between two interfaces until ctx is done, with the library's means:
// a program that redirects all packets of a queue, and a socket with its own UMEM per queue and
// interface. Packets are copied between the UMEMs, because the library cannot share one.
//
// It is a measured baseline. The library panics when an interface disappears, so Forward belongs in
// a process of its own. Without Drain, packets stay in the transmit ring until later packets push
// them out.
func Forward(ctx context.Context, c ForwardConfig) (err error) {
	var sides [2]*forwardSide
	for i, end := range [...]struct {
		name string
		next net.HardwareAddr
	}{{c.In, c.InNext}, {c.Out, c.OutNext}} {
		if sides[i], err = openSide(end.name, end.next, &c); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, sides[i].close()) }()
	}
	group, ctx := errgroup.WithContext(ctx)
	for q := range c.Queues {
		w := &forwardWorker{cpu: -1, batch: make([]fastpath.Desc, forwardBatch)}
		if len(c.CPUs) > 0 {
			w.cpu = c.CPUs[q%len(c.CPUs)]
		}
		for i, s := range sides {
			w.links[i], w.pools[i], w.macs[i] = s.links[q], fastpath.NewPool(forwardFrames, forwardFrameSize), s.macs
			w.links[i].Refill(w.pools[i])
		}
		group.Go(func() error { return w.run(ctx) })
	}
	for _, s := range sides {
		if err := s.program.Attach(s.ifindex); err != nil {
			return fmt.Errorf("asavie: attach to interface %d: %w", s.ifindex, err)
		}
	}
	return group.Wait()
}

// forwardSide is an interface: its sockets by queue, and the library's program.
type forwardSide struct {
	ifindex int
	macs    [12]byte // of outgoing packets: destination, source
	links   []*Link
	program *xdp.Program
}

func openSide(name string, next net.HardwareAddr, c *ForwardConfig) (s *forwardSide, err error) {
	dev, err := net.InterfaceByName(name)
	if err != nil {
		return nil, fmt.Errorf("asavie: %s: %w", name, err)
	}
	s = &forwardSide{ifindex: dev.Index}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	copy(s.macs[:], next)
	copy(s.macs[6:], dev.HardwareAddr)
	if s.program, err = xdp.NewProgram(c.Queues); err != nil {
		return s, fmt.Errorf("asavie: program: %w", err)
	}
	for q := range c.Queues {
		l, err := Open(Config{
			IfIndex: dev.Index, Queue: q, Frames: forwardFrames, FrameSize: forwardFrameSize, RingSize: forwardRing,
			Drain: c.Drain,
		})
		if err != nil {
			return s, err
		}
		s.links = append(s.links, l)
		if err := s.program.Register(q, l.FD()); err != nil {
			return s, fmt.Errorf("asavie: register queue %d: %w", q, err)
		}
	}
	return s, nil
}

func (s *forwardSide) close() error {
	var errs []error
	if s.program != nil {
		errs = append(errs, s.program.Detach(s.ifindex), s.program.Close())
	}
	for _, l := range s.links {
		errs = append(errs, l.Close())
	}
	return errors.Join(errs...)
}

// forwardWorker forwards one queue in both directions.
type forwardWorker struct {
	links [2]*Link
	pools [2]*fastpath.Pool
	macs  [2][12]byte // of packets sent on the link
	cpu   int
	batch []fastpath.Desc
}

func (w *forwardWorker) run(ctx context.Context) error {
	runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
	if w.cpu >= 0 {
		var set unix.CPUSet
		set.Set(w.cpu)
		if err := unix.SchedSetaffinity(0, &set); err != nil {
			return fmt.Errorf("asavie: pin to CPU %d: %w", w.cpu, err)
		}
	}
	var fds [2]unix.PollFd
	for i, l := range w.links {
		fds[i] = unix.PollFd{Fd: int32(l.FD()), Events: unix.POLLIN}
	}
	last := time.Now()
	for ctx.Err() == nil {
		moved := w.step()
		if now := time.Now(); moved > 0 {
			last = now
		} else if now.Sub(last) >= forwardSpin {
			// An error is EINTR, or the next step reports it.
			_, _ = unix.Poll(fds[:], forwardSleep)
		}
	}
	return nil
}

func (w *forwardWorker) step() (moved int) {
	for i, in := range w.links {
		n := in.Receive(w.batch)
		moved += n
		leaving := w.cross(i, w.batch[:n])
		out, pool := w.links[1-i], w.pools[1-i]
		for _, d := range leaving[out.Transmit(leaving):] {
			pool.Put(d.Addr)
		}
	}
	for i, l := range w.links {
		l.Flush()
		l.Complete(w.pools[i])
		l.Refill(w.pools[i])
	}
	return moved
}

// cross copies packets of link i into frames of the other link, until that link has no free frame,
// and writes their MAC addresses.
func (w *forwardWorker) cross(i int, batch []fastpath.Desc) []fastpath.Desc {
	in, out := w.links[i], w.links[1-i]
	n := 0
	for _, d := range batch {
		if addr, ok := w.pools[1-i].Get(); ok {
			to := fastpath.Desc{Addr: addr, Len: d.Len}
			packet := out.Packet(to)
			copy(packet, in.Packet(d))
			copy(packet, w.macs[1-i][:])
			batch[n] = to
			n++
		}
		w.pools[i].Put(d.Addr)
	}
	return slices.Clip(batch[:n])
}

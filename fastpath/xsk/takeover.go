package xsk

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/flowtable/mapped"
)

// A process can give a UMEM and its sockets to another process, which maps the same files: the
// kernel does not tie them to a process. It takes three steps, and packets wait in the rings
// between the second and the third:
//
//	old process                             new process
//	Shape, and the files             ─────► Take: maps all, changes nothing
//	the worker has stopped
//	Custody: owner of each frame     ─────► Assume: checks it, continues
//	Abandon, or continues itself
//
// Shape stays valid until a socket of the UMEM is opened or closed. Custody has no ring indexes:
// after each call of a Link's method the ring's shared words have the worker's index.

// Shape describes a UMEM and its sockets to a process that takes them over. Traffic does not change
// it.
type Shape struct {
	Frames, FrameSize int
	Bytes             int // of the mapping
	HugePages         bool
	Sockets           []SocketShape
}

// SocketShape describes a socket.
type SocketShape struct {
	Slot           int // index among the UMEM's sockets, which names owners of frames
	Interface      string
	IfIndex, Queue int
	// Rx, Tx, Fill and Completion are the sizes of the rings, in entries.
	Rx, Tx, Fill, Completion uint32
	Mode                     Mode
	Reason                   string // for the mode
	Options                  Options
	Long                     bool
	Without                  bool // the driver has no zero-copy
}

// Custody has the owner of each frame, at a moment when no worker uses the UMEM.
type Custody struct {
	Owners  []byte // by frame, see owners
	Kept    []KeptFrames
	Sockets []SocketCustody // in the order of Shape.Sockets
}

// KeptFrames has the frames that a closed socket could not give back (KeptError).
type KeptFrames struct {
	IfIndex, Queue int
	Addrs          []uint64
}

// SocketCustody is the state of a socket besides its rings.
type SocketCustody struct {
	Done     []uint64        // completed frames that are not in the pool yet
	Partial  []fastpath.Desc // frames of a packet whose last frame has not arrived yet
	Counters Counters
	Down     bool
	Gone     bool
}

// Shape describes the UMEM, and returns the descriptors that Take needs: first the frames', then
// each socket's. The UMEM still owns the descriptors.
func (u *UMEM) Shape() (shape Shape, files []int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	shape = Shape{Frames: u.frames, FrameSize: u.frameSize, Bytes: len(u.mem), HugePages: u.huge}
	files = []int{u.file}
	for _, s := range u.sockets {
		if s == nil {
			continue
		}
		shape.Sockets = append(shape.Sockets, SocketShape{
			Slot: s.slot, Interface: s.name, IfIndex: s.ifindex, Queue: s.queue,
			Rx: s.rx.mask + 1, Tx: s.tx.mask + 1, Fill: s.fill.mask + 1, Completion: s.completion.mask + 1,
			Mode: s.mode, Reason: s.reason, Options: s.options, Long: s.long, Without: s.without,
		})
		files = append(files, s.fd)
	}
	return shape, files
}

// Take maps a UMEM and its sockets, which another process uses until Assume. Take owns the files,
// and closes them after an error.
func Take(shape Shape, files []int) (u *UMEM, sockets []*Socket, err error) {
	if len(files) != 1+len(shape.Sockets) {
		return nil, nil, errors.Join(fmt.Errorf("umem: %d files for %d sockets", len(files), len(shape.Sockets)),
			closeAll(files))
	}
	if u, err = newUMEM(shape.Frames, shape.FrameSize); err != nil {
		return nil, nil, errors.Join(err, closeAll(files))
	}
	u.file, u.huge = files[0], shape.HugePages
	if shape.Bytes < shape.Frames*shape.FrameSize {
		err = fmt.Errorf("umem: %d bytes for %d frames of %d bytes", shape.Bytes, shape.Frames, shape.FrameSize)
	} else if u.mem, err = mapped.Map(u.file, shape.Bytes); err != nil {
		err = fmt.Errorf("umem: mapping %d bytes: %w", shape.Bytes, err)
	}
	if err != nil {
		return nil, nil, errors.Join(err, closeAll(files))
	}
	for i, of := range shape.Sockets {
		s, e := u.take(of, files[1+i])
		if e != nil {
			err = errors.Join(fmt.Errorf("AF_XDP socket on %s queue %d: %w", of.Interface, of.Queue, e),
				u.Abandon(), closeAll(files[1+i:]))
			return nil, nil, err
		}
		sockets = append(sockets, s)
	}
	return u, sockets, nil
}

func closeAll(files []int) (err error) {
	for _, fd := range files {
		err = errors.Join(err, unix.Close(fd))
	}
	return err
}

// take maps the rings of a socket. The socket owns the descriptor if there is no error.
func (u *UMEM) take(of SocketShape, fd int) (*Socket, error) {
	if of.Slot < 0 || of.Slot >= maxSockets || u.sockets[of.Slot] != nil {
		return nil, fmt.Errorf("slot %d is taken or does not exist", of.Slot)
	}
	for _, n := range []uint32{of.Rx, of.Tx, of.Fill, of.Completion} {
		if n == 0 || n&(n-1) != 0 {
			return nil, fmt.Errorf("a ring of %d entries: not a power of two", n)
		}
	}
	s := &Socket{
		fd: fd, umem: u, owners: u.owners, frameShift: u.frameShift, long: of.Long, up: true,
		slot: of.Slot, inFill: fillOwner(of.Slot), inTx: txOwner(of.Slot),
		name: of.Interface, ifindex: of.IfIndex, queue: of.Queue,
		mode: of.Mode, copyMode: of.Mode == Copy, reason: of.Reason, options: of.Options, without: of.Without,
		busyPoll: of.Options.BusyPoll > 0,
	}
	options, err := realKernel.options(fd)
	if err == nil && (options&unix.XDP_OPTIONS_ZEROCOPY != 0) != (of.Mode == ZeroCopy) {
		err = fmt.Errorf("it is not in mode %v", of.Mode)
	}
	if err == nil {
		err = s.layRings(&Config{RxSize: of.Rx, TxSize: of.Tx, FillSize: of.Fill, CompletionSize: of.Completion})
	}
	if err != nil {
		return nil, errors.Join(err, s.unmap())
	}
	u.sockets[of.Slot] = s
	return s, nil
}

// Custody returns the owner of each frame. No worker may use the UMEM meanwhile.
func (u *UMEM) Custody() Custody {
	u.mu.Lock()
	defer u.mu.Unlock()
	c := Custody{Owners: slices.Clone(u.owners)}
	for _, k := range u.keptFrames {
		c.Kept = append(c.Kept, KeptFrames{k.ifindex, k.queue, k.frames})
	}
	for _, s := range u.sockets {
		if s == nil {
			continue
		}
		of := SocketCustody{Done: slices.Clone(s.done), Counters: s.counters, Down: !s.up, Gone: s.gone.Load()}
		for addr, more := s.partial.head.Addr, s.partial.frames > 0; more; addr, more = u.chains.Next(addr) {
			of.Partial = append(of.Partial, fastpath.Desc{Addr: addr, Len: u.chains.First(fastpath.Desc{Addr: addr})})
		}
		c.Sockets = append(c.Sockets, of)
	}
	return c
}

// Assume takes over the UMEM from the process that had it. Afterwards the worker may use the
// sockets. It returns the addresses of the frames that are in no ring: those of the pool and of
// packets that the worker held. After an error nothing has changed, and the other process still
// owns the UMEM.
func (u *UMEM) Assume(c Custody) (addrs []uint64, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	sockets := slices.DeleteFunc(slices.Clone(u.sockets[:]), func(s *Socket) bool { return s == nil })
	if len(c.Owners) != u.frames || len(c.Sockets) != len(sockets) {
		return nil, fmt.Errorf("umem: custody of %d frames and %d sockets, it has %d and %d", len(c.Owners),
			len(c.Sockets), u.frames, len(sockets))
	}
	var given [2*maxSockets + 1]int // number of frames, by owner
	for frame, o := range c.Owners {
		switch {
		case o == userSpace:
			addrs = append(addrs, uint64(frame)<<u.frameShift)
		case o == kept: // checkKept
		case int(o) >= len(given) || u.sockets[(o-1)/2] == nil:
			return nil, fmt.Errorf("umem: frame %d is in a ring of a socket that does not exist", frame)
		default:
			given[o]++
		}
	}
	if err := u.checkKept(&c); err != nil {
		return nil, err
	}
	for _, s := range sockets {
		if err := s.check(given[s.inFill], given[s.inTx]); err != nil {
			return nil, err
		}
	}
	copy(u.owners, c.Owners)
	for _, k := range c.Kept {
		u.keptFrames = append(u.keptFrames, keptFrames{k.IfIndex, k.Queue, k.Addrs})
		u.kept.Add(int64(len(k.Addrs)))
	}
	for i, s := range sockets {
		s.assume(&c.Sockets[i], given[s.inFill]+given[s.inTx])
	}
	return addrs, nil
}

// checkKept checks that each kept frame is in exactly one list, and that the lists have no others.
func (u *UMEM) checkKept(c *Custody) error {
	back := slices.Repeat([]bool{false}, u.frames)
	note := func(addr uint64) error {
		frame := addr >> u.frameShift
		if frame >= uint64(u.frames) || c.Owners[frame] != kept || back[frame] {
			return fmt.Errorf("umem: the frame at %d is in a list of kept frames, but not kept, or listed twice", addr)
		}
		back[frame] = true
		return nil
	}
	var errs []error
	listed := 0
	for i := range c.Kept {
		for _, addr := range c.Kept[i].Addrs {
			errs, listed = append(errs, note(addr)), listed+1
		}
	}
	for i := range c.Sockets {
		for _, addr := range c.Sockets[i].Done {
			errs, listed = append(errs, note(addr)), listed+1
		}
		for _, d := range c.Sockets[i].Partial {
			errs, listed = append(errs, note(d.Addr)), listed+1
		}
	}
	if n := bytes.Count(c.Owners, []byte{kept}); n != listed {
		errs = append(errs, fmt.Errorf("umem: %d frames are kept, %d are in a list", n, listed))
	}
	return errors.Join(errs...)
}

// The kernel does not stop during a handover. It publishes received packets before it publishes
// that it has taken their frames from the fill ring (xsk_flush, net/xdp/xsk.c), so a batch of
// frames is briefly in both rings: for less than a microsecond, or longer if the processor is
// interrupted. check repeats its comparison for up to ringsSettleWithin.
const (
	ringsSettleWithin = 10 * time.Millisecond
	settlePause       = 20 * time.Microsecond
)

// check checks that the rings have no more frames than the owners table has for them.
func (s *Socket) check(inFill, inTx int) error {
	for deadline := time.Now().Add(ringsSettleWithin); ; time.Sleep(settlePause) {
		// The kernel moves frames from fill to rx and from tx to completion. Reading rx and
		// completion first counts no frame twice that moves between the two reads.
		filled := s.rx.pending()
		filled += s.fill.pending()
		sent := s.completion.pending()
		sent += s.tx.pending()
		if int(filled) <= inFill && int(sent) <= inTx {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("umem: %s queue %d: its rings have %d frames to receive into and %d to send, and its "+
				"owner gave them %d and %d", s.name, s.queue, filled, sent, inFill, inTx)
		}
	}
}

// assume gives the socket the state that it had in the former process.
func (s *Socket) assume(c *SocketCustody, given int) {
	s.fill.resume()
	s.tx.resume()
	s.rx.resume()
	s.completion.resume()
	s.counters, s.up = c.Counters, !c.Down
	s.gone.Store(c.Gone)
	s.done = append(make([]uint64, 0, len(c.Done)+int(s.completion.mask+1)), c.Done...)
	for _, d := range c.Partial {
		s.extend(d.Addr, d.Len)
	}
	s.frames = given + len(c.Done) + len(c.Partial)
}

// resume continues at the ring's shared indexes, where another process has stopped.
func (r *producer[T]) resume() {
	r.local, r.seen = atomic.LoadUint32(r.producer), atomic.LoadUint32(r.consumer)
}

func (r *consumer[T]) resume() {
	r.local, r.seen = atomic.LoadUint32(r.consumer), atomic.LoadUint32(r.producer)
}

// Abandon closes the files and unmaps everything. It does not change frames and rings, because
// another process has them. The worker and the sockets must not be used again.
func (u *UMEM) Abandon() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	var errs []error
	for i, s := range u.sockets {
		if s != nil {
			errs = append(errs, s.release())
			s.frames, s.done, s.up = 0, nil, false
			u.sockets[i] = nil
		}
	}
	errs = append(errs, mapped.Unmap(u.mem), unix.Close(u.file))
	u.mem = nil
	return errors.Join(errs...)
}

package xsk

import (
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/flowtable/mapped"
)

// UMEMConfig describes the frames of one worker.
type UMEMConfig struct {
	// Frames is the number of frames. A worker never runs out of frames if there are FillSize +
	// RxSize + TxSize + CompletionSize for each of its sockets, plus the frames that it holds
	// itself.
	Frames int
	// FrameSize is 2048 or 4096 bytes. A packet may be FrameSize - 256 bytes long.
	FrameSize int
	// HugePages requests reserved pages of 2 MiB. If there are none, the UMEM gets transparent huge
	// pages if the kernel makes some (mapped.Collapse), and pages of 4 KiB otherwise.
	HugePages bool
}

const (
	hugePageBytes = 2 << 20
	// packetHeadroom is the room, in bytes, that the kernel leaves before a received packet
	// (XDP_PACKET_HEADROOM); a worker may extend the packet into it.
	packetHeadroom = unix.XDP_PACKET_HEADROOM
)

// UMEM is the memory for packets: frames of equal size, mapped outside the Go heap. One worker owns
// it, and all its sockets share it. The kernel pins it when the first socket is opened. It is a
// file without a name (memfd_create(2)), so that another process can map the same frames (Shape).
type UMEM struct {
	mem        []byte // whole mapping
	file       int    // the memfd
	frames     int
	frameSize  int
	frameShift uint8
	huge       bool
	owners     owners // written by the worker, see owners
	chains     *fastpath.Chains

	kept atomic.Int64 // frames in keptFrames
	// ended is the latest possible end of a registration of the memory, in nanoseconds since 1970.
	// Any goroutine may store and load it; it publishes nothing else.
	ended atomic.Int64

	mu         sync.Mutex // guards the fields below; no Link method takes it
	sockets    [maxSockets]*Socket
	keptFrames []keptFrames
}

// NewUMEM maps the frames. They are locked in memory when the first socket is opened: Open returns
// ErrMemlock if RLIMIT_MEMLOCK is too small.
func NewUMEM(c UMEMConfig) (*UMEM, error) {
	u, err := newUMEM(c.Frames, c.FrameSize)
	if err != nil {
		return nil, err
	}
	size := c.Frames * c.FrameSize
	if c.HugePages {
		rounded := (size + hugePageBytes - 1) &^ (hugePageBytes - 1)
		if u.makeMemory(rounded, unix.MFD_HUGETLB|unix.MFD_HUGE_2MB) == nil {
			u.huge = true
			return u, nil
		}
	}
	if err := u.makeMemory(size, 0); err != nil {
		return nil, fmt.Errorf("umem: %d frames of %d bytes: %w", c.Frames, c.FrameSize, err)
	}
	return u, nil
}

// newUMEM checks the sizes, and returns a UMEM without memory.
func newUMEM(frames, frameSize int) (*UMEM, error) {
	if frames <= 0 || (frameSize != 2048 && frameSize != 4096) {
		return nil, fmt.Errorf(
			"umem: %d frames of %d bytes: want at least one frame, of 2048 or 4096 bytes", frames, frameSize,
		)
	}
	if frameSize > unix.Getpagesize() {
		return nil, fmt.Errorf("umem: frames of %d bytes are larger than this machine's pages", frameSize)
	}
	return &UMEM{
		frames:     frames,
		frameSize:  frameSize,
		frameShift: uint8(bits.TrailingZeros(uint(frameSize))),
		owners:     make(owners, frames),
		chains:     fastpath.NewChains(frames, frameSize),
	}, nil
}

// makeMemory makes a file of the given size and maps it. It seals the size, so that another process
// with the file cannot truncate the mapping.
func (u *UMEM) makeMemory(bytes, flags int) error {
	file, err := unix.MemfdCreate("sluice-umem", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_NOEXEC_SEAL|flags)
	if err != nil {
		return fmt.Errorf("memfd_create: %w", err)
	}
	if err = unix.Ftruncate(file, int64(bytes)); err == nil {
		_, err = unix.FcntlInt(uintptr(file), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW)
	}
	if err == nil {
		u.mem, err = mapped.Map(file, bytes)
	}
	if err != nil {
		return errors.Join(err, unix.Close(file))
	}
	mapped.Collapse(u.mem) // before the first socket pins the pages
	u.file = file
	return nil
}

// Bytes returns the memory of all frames; frame i starts at i * FrameSize.
func (u *UMEM) Bytes() []byte { return u.mem[: u.frames*u.frameSize : u.frames*u.frameSize] }

// Frames counts the frames.
func (u *UMEM) Frames() int { return u.frames }

// FrameSize returns a frame's size in bytes.
func (u *UMEM) FrameSize() int { return u.frameSize }

// Chains returns the packets in several frames. Only the worker and its sockets use them.
func (u *UMEM) Chains() *fastpath.Chains { return u.chains }

// HugePages reports whether the frames got reserved huge pages.
func (u *UMEM) HugePages() bool { return u.huge }

// Kept returns the number of frames that closed sockets could not give back, because the device may
// still read or write them. They belong to no pool and no link until the socket's interface and
// queue are opened again.
//
// It takes no lock: workers call it in every step, and mu is held during system calls.
func (u *UMEM) Kept() int { return int(u.kept.Load()) }

// Close unmaps the frames. All sockets must be closed, and slices of Bytes must not be used
// afterwards.
func (u *UMEM) Close() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, s := range u.sockets {
		if s != nil {
			return fmt.Errorf("umem: %s queue %d is still open: close its socket first", s.name, s.queue)
		}
	}
	if u.mem == nil {
		return errors.New("umem: closed twice")
	}
	err := errors.Join(mapped.Unmap(u.mem), unix.Close(u.file))
	u.mem = nil
	return err
}

// keptFrames has the frames of a closed socket that the kernel may still use. A new pool on the
// same queue proves that it does not: the kernel refuses one (EBUSY) until the old pool has stopped
// the device and its last packet is freed.
type keptFrames struct {
	ifindex, queue int
	frames         []uint64
}

// takeKept removes and returns the kept frames of a queue that is bound again.
func (u *UMEM) takeKept(ifindex, queue int) []uint64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	var frames []uint64
	rest := u.keptFrames[:0]
	for _, g := range u.keptFrames {
		if g.ifindex == ifindex && g.queue == queue {
			frames = append(frames, g.frames...)
		} else {
			rest = append(rest, g)
		}
	}
	u.keptFrames = rest
	u.kept.Add(-int64(len(frames)))
	return frames
}

// add adds a socket to the UMEM's sockets.
func (u *UMEM) add(s *Socket) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	for i := range u.sockets {
		if u.sockets[i] == nil {
			u.sockets[i] = s
			s.slot = i
			s.inFill, s.inTx = fillOwner(i), txOwner(i)
			return nil
		}
	}
	return fmt.Errorf("umem: more than %d sockets", maxSockets)
}

// remove removes a socket that could not be opened.
func (u *UMEM) remove(s *Socket) {
	u.mu.Lock()
	defer u.mu.Unlock()
	_ = s.release() // the caller has a better error
	u.sockets[s.slot] = nil
}

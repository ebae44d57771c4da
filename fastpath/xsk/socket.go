package xsk

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Mode is the way in which packets move between device and UMEM.
type Mode uint8

const (
	Auto     Mode = iota // ZeroCopy if the driver supports it, else Copy
	Copy                 // the kernel copies each packet
	ZeroCopy             // the device reads and writes the UMEM
)

// String returns the mode's name.
func (m Mode) String() string { return [...]string{"auto", "copy", "zero-copy"}[m] }

// Config describes a socket to open. Every field may be zero except for UMEM and either Interface
// or IfIndex.
type Config struct {
	Interface                                string // name, looked up in the calling thread's network namespace
	IfIndex                                  int    // replaces Interface, or must match it
	Queue                                    int
	UMEM                                     *UMEM
	RxSize, TxSize, FillSize, CompletionSize uint32 // powers of two; 2048 if zero

	Mode Mode // other sockets on the UMEM may have another mode
	// CopyReason is the reason that Socket.Mode returns if Mode is Copy: why the caller requested
	// it.
	CopyReason string
	// Long makes the socket accept packets longer than a frame, in several frames (XDP_USE_SG,
	// Linux 6.6); otherwise the kernel drops them. Mode must be Copy.
	Long bool
	// TxBudget is the maximum number of packets that one system call sends in copy mode, 32 to
	// TxSize; TxSize if zero. Kernels before 6.17 send 32, so Flush makes more calls.
	TxBudget int
	// BusyPoll, if not zero, makes the worker poll the device by its own system calls, one or more
	// per step, instead of waiting for interrupts (SO_PREFER_BUSY_POLL; Documentation/
	// networking/napi.rst). It is the kernel's time limit for one poll, with microsecond
	// resolution, though calls that do not block poll once. The device should defer its interrupts,
	// see package napi.
	BusyPoll time.Duration
	// BusyPollBudget is the maximum number of packets of such a poll; 64 if zero.
	BusyPollBudget int
	// RebindFor is how long Open waits for a queue that is taken; three seconds if zero. A closed
	// socket holds its queue for about 20 ms more, and for up to half a second on a busy machine.
	RebindFor time.Duration

	set    setter // unix.SetsockoptInt if nil
	kernel kernel // realKernel if zero
}

const (
	defaultRingSize  = 2048
	defaultRebindFor = 3 * time.Second
)

// check fills in defaults and finds the interface.
func (c *Config) check() (*net.Interface, error) {
	if c.UMEM == nil {
		return nil, errors.New("no UMEM")
	}
	for _, r := range []struct {
		name string
		size *uint32
	}{{"RxSize", &c.RxSize}, {"TxSize", &c.TxSize}, {"FillSize", &c.FillSize}, {"CompletionSize", &c.CompletionSize}} {
		if *r.size == 0 {
			*r.size = defaultRingSize
		}
		if *r.size&(*r.size-1) != 0 {
			return nil, fmt.Errorf("%s %d is not a power of two", r.name, *r.size)
		}
	}
	if c.CompletionSize < c.TxSize {
		return nil, fmt.Errorf(
			"CompletionSize %d is less than TxSize %d: the kernel stops sending when it is full", c.CompletionSize,
			c.TxSize,
		)
	}
	if c.RebindFor == 0 {
		c.RebindFor = defaultRebindFor
	}
	if c.kernel.bind == nil {
		c.kernel = realKernel
	}
	if c.Long && c.Mode != Copy {
		return nil, errors.New("packets in several frames are taken in copy mode only")
	}
	if err := c.checkOptions(); err != nil {
		return nil, err
	}
	if c.Interface == "" {
		return net.InterfaceByIndex(c.IfIndex)
	}
	ifi, err := net.InterfaceByName(c.Interface)
	if err == nil && c.IfIndex != 0 && c.IfIndex != ifi.Index {
		return nil, fmt.Errorf("has index %d now, not %d", ifi.Index, c.IfIndex)
	}
	return ifi, err
}

// Socket is one AF_XDP socket bound to one queue of one device, and its four
// rings. It implements fastpath.Link; the methods of that interface, Probe, Counters and
// Close belong to the worker that owns the UMEM.
type Socket struct {
	fd         int
	umem       *UMEM
	owners     owners
	frameShift uint8

	// One writer each: the worker for fill and tx, the kernel for rx and completion.
	fill       producer[uint64]
	tx         producer[unix.XDPDesc]
	rx         consumer[unix.XDPDesc]
	completion consumer[uint64]

	inFill, inTx uint8 // this socket's two values in owners
	up           bool
	copyMode     bool
	long         bool // accepts packets in several frames
	busyPoll     bool // the worker polls the device, see flushQuiet
	frames       int  // frames given to rings and not taken back
	quiet        int  // Flush calls since the last system call
	unsent       bool // after the last Flush, see Unsent
	// done has completed frames that Flush took out of a full completion ring, which blocked the
	// transmit ring, until the next Complete. It never grows.
	done     []uint64
	counters Counters
	// partial is the packet whose last frames are not in the receive ring yet.
	partial partial

	gone atomic.Bool // written by the worker, read by the goroutine that opens the socket again

	name           string
	ifindex, queue int
	slot           int
	mode           Mode
	reason         string
	options        Options
	registered     bool // it registered the UMEM itself, so it cannot share another registration
	without        bool // the driver has no zero-copy
	maps           [][]byte
}

// Open makes a socket and binds it. Its rings are empty: the worker must call Refill before packets
// are redirected to it.
func Open(ctx context.Context, c Config) (*Socket, error) {
	ifi, err := c.check()
	if err != nil {
		return nil, fmt.Errorf("AF_XDP socket on %s queue %d: %w", describe(c.Interface, c.IfIndex), c.Queue, err)
	}
	s := &Socket{
		fd: -1, umem: c.UMEM, owners: c.UMEM.owners, frameShift: c.UMEM.frameShift,
		long: c.Long, name: ifi.Name, ifindex: ifi.Index, queue: c.Queue, up: true,
	}
	if err := c.UMEM.add(s); err != nil {
		return nil, err
	}
	if err := s.setup(ctx, &c, ifi.MTU); err != nil {
		c.UMEM.remove(s)
		return nil, fmt.Errorf("AF_XDP socket on %s queue %d: %w", s.name, s.queue, err)
	}
	inherited := c.UMEM.takeKept(s.ifindex, s.queue)
	s.done = append(make([]uint64, 0, len(inherited)+int(c.CompletionSize)), inherited...)
	s.frames = len(inherited)
	s.Probe()
	return s, nil
}

func describe(name string, ifindex int) string {
	if name == "" {
		return fmt.Sprintf("interface %d", ifindex)
	}
	return name
}

// setup makes the system calls in the order that the kernel requires: ring sizes, their layout,
// their mappings, and bind last.
func (s *Socket) setup(ctx context.Context, c *Config, mtu int) error {
	if err := s.prepare(c); err != nil {
		return err
	}
	if err := s.bind(ctx, c, mtu); err != nil {
		return err
	}
	s.tune(c)
	return nil
}

// prepare makes the descriptor and does everything that must precede bind.
func (s *Socket) prepare(c *Config) error {
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return explainSocket(err)
	}
	s.fd = fd
	if err := s.mapRings(c); err != nil {
		return err
	}
	s.raiseSendBuffer(c)
	return nil
}

// mapRings sizes the four rings and maps them.
func (s *Socket) mapRings(c *Config) error {
	for _, r := range []struct {
		option int
		size   uint32
	}{
		{unix.XDP_UMEM_FILL_RING, c.FillSize}, {unix.XDP_UMEM_COMPLETION_RING, c.CompletionSize},
		{unix.XDP_RX_RING, c.RxSize}, {unix.XDP_TX_RING, c.TxSize},
	} {
		if err := setsockopt(s.fd, r.option, &r.size); err != nil {
			return fmt.Errorf("ring of %d entries: %w", r.size, err)
		}
	}
	return s.layRings(c)
}

// layRings maps the four rings, whose sizes are set.
func (s *Socket) layRings(c *Config) error {
	var off unix.XDPMmapOffsets
	if err := getsockopt(s.fd, unix.XDP_MMAP_OFFSETS, &off); err != nil {
		return fmt.Errorf("ring layout: %w", err)
	}
	if off.Rx.Flags == 0 {
		return errors.New("this kernel has no need-wakeup flag in its rings: Linux 5.4 or later is needed")
	}
	fill, err := s.mapRing(unix.XDP_UMEM_PGOFF_FILL_RING, ringBytes[uint64](&off.Fr, c.FillSize))
	if err != nil {
		return err
	}
	completion, err := s.mapRing(unix.XDP_UMEM_PGOFF_COMPLETION_RING, ringBytes[uint64](&off.Cr, c.CompletionSize))
	if err != nil {
		return err
	}
	rx, err := s.mapRing(unix.XDP_PGOFF_RX_RING, ringBytes[unix.XDPDesc](&off.Rx, c.RxSize))
	if err != nil {
		return err
	}
	tx, err := s.mapRing(unix.XDP_PGOFF_TX_RING, ringBytes[unix.XDPDesc](&off.Tx, c.TxSize))
	if err != nil {
		return err
	}
	s.fill = newProducer[uint64](fill, &off.Fr, c.FillSize)
	s.completion = newConsumer[uint64](completion, &off.Cr, c.CompletionSize)
	s.rx = newConsumer[unix.XDPDesc](rx, &off.Rx, c.RxSize)
	s.tx = newProducer[unix.XDPDesc](tx, &off.Tx, c.TxSize)
	return nil
}

func (s *Socket) mapRing(offset int64, size int) ([]byte, error) {
	mem, err := unix.Mmap(s.fd, offset, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return nil, fmt.Errorf("mapping a ring of %d bytes: %w", size, err)
	}
	s.maps = append(s.maps, mem)
	return mem, nil
}

// raiseSendBuffer allows a whole transmit ring to be in flight in copy mode: every packet is
// charged to the socket's send buffer until the device has completed it, and the default buffer has
// room for fewer than 300.
func (s *Socket) raiseSendBuffer(c *Config) {
	const overhead = 1024 // upper bound of the kernel's overhead of a socket buffer
	size := int(c.TxSize) * (s.umem.frameSize + overhead)
	if unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, size) != nil {
		// Without CAP_NET_ADMIN: as much as net.core.wmem_max allows.
		_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, size)
	}
}

// release unmaps the rings and closes the descriptor.
func (s *Socket) release() error {
	err := errors.Join(s.closeFD(), s.unmap())
	s.fill, s.tx = producer[uint64]{}, producer[unix.XDPDesc]{}
	s.rx, s.completion = consumer[unix.XDPDesc]{}, consumer[uint64]{}
	return err
}

func (s *Socket) unmap() (err error) {
	for _, m := range s.maps {
		err = errors.Join(err, unix.Munmap(m))
	}
	s.maps = nil
	return err
}

func (s *Socket) closeFD() error {
	if s.fd < 0 {
		return nil
	}
	err := unix.Close(s.fd)
	s.fd = -1
	return err
}

// Mode returns the mode, and the reason for it.
func (s *Socket) Mode() (Mode, string) { return s.mode, s.reason }

// Interface returns the device's name at the time of Open, and its index.
func (s *Socket) Interface() (name string, ifindex int) { return s.name, s.ifindex }

// Queue returns the queue's index.
func (s *Socket) Queue() int { return s.queue }

// Statistics has the kernel's counters of one socket since it was opened.
type Statistics struct {
	RxDropped            uint64 // no free frame, or the packet was longer than a frame
	RxInvalidDescs       uint64
	TxInvalidDescs       uint64
	RxRingFull           uint64
	RxFillRingEmptyDescs uint64 // times the kernel found the fill ring empty
	TxRingEmptyDescs     uint64
}

// Stats reads the kernel's counters. Safe for any goroutine.
func (s *Socket) Stats() (Statistics, error) {
	s.umem.mu.Lock() // against Close
	defer s.umem.mu.Unlock()
	var x unix.XDPStatistics
	if err := getsockopt(s.fd, unix.XDP_STATISTICS, &x); err != nil {
		return Statistics{}, fmt.Errorf("AF_XDP statistics of %s queue %d: %w", s.name, s.queue, err)
	}
	return Statistics{
		RxDropped: x.Rx_dropped, RxInvalidDescs: x.Rx_invalid_descs, TxInvalidDescs: x.Tx_invalid_descs,
		RxRingFull: x.Rx_ring_full, RxFillRingEmptyDescs: x.Rx_fill_ring_empty_descs,
		TxRingEmptyDescs: x.Tx_ring_empty_descs,
	}, nil
}

// Package asavie is a fastpath.Link over github.com/asavie/xdp v0.3.3: the baseline of measurements
// of fastpath/xsk. It is not for production; see docs/adr/0002-own-af-xdp-layer.md.
//
// The library and the Link contract track frames differently. The library keeps a bitmap of free
// frames, and does not record which frames the kernel completed; a Link returns each frame by
// address. So this Link records which frames it transmitted, and after each Complete scans the
// library's bitmap for frames that became free. It never lets the library choose a frame
// (GetDescs), because the library also offers received frames that are still in use.
package asavie

import (
	"fmt"

	"github.com/asavie/xdp"

	"sluice.dev/sluice/fastpath"
)

// Config sizes a Link.
type Config struct {
	IfIndex, Queue    int
	Frames, FrameSize int
	RingSize          int
	// Drain makes Flush repeat the system call until the transmit ring is empty. The library itself
	// makes one call per Transmit, in which the kernel sends 32 packets.
	Drain bool
}

// Link is a fastpath.Link. It has its own frames, because the library cannot share a UMEM.
type Link struct {
	s       *xdp.Socket
	c       Config
	sending []bool // by frame: transmitted, completion not yet seen
	frames  int
	batch   []xdp.Desc
}

var _ fastpath.Link = (*Link)(nil)

// Open makes and binds a socket.
func Open(c Config) (*Link, error) {
	s, err := xdp.NewSocket(c.IfIndex, c.Queue, &xdp.SocketOptions{
		NumFrames: c.Frames, FrameSize: c.FrameSize,
		FillRingNumDescs: c.RingSize, CompletionRingNumDescs: c.RingSize,
		RxRingNumDescs: c.RingSize, TxRingNumDescs: c.RingSize,
	})
	if err != nil {
		return nil, fmt.Errorf("asavie: interface %d queue %d: %w", c.IfIndex, c.Queue, err)
	}
	return &Link{s: s, c: c, sending: make([]bool, c.Frames), batch: make([]xdp.Desc, 0, c.RingSize)}, nil
}

// Close closes the socket.
func (l *Link) Close() error { return l.s.Close() }

// Packet is the memory of a packet.
func (l *Link) Packet(d fastpath.Desc) []byte {
	return l.s.GetFrame(xdp.Desc{Addr: d.Addr, Len: d.Len})
}

// Receive implements fastpath.Link.
func (l *Link) Receive(batch []fastpath.Desc) int {
	got := l.s.Receive(len(batch))
	for i := range got {
		batch[i] = fastpath.Desc{Addr: got[i].Addr, Len: got[i].Len}
	}
	l.frames -= len(got)
	return len(got)
}

// Refill implements fastpath.Link.
func (l *Link) Refill(p *fastpath.Pool) {
	l.batch = l.batch[:0]
	for range min(l.s.NumFreeFillSlots(), p.Free()) {
		addr, _ := p.Get()
		l.batch = append(l.batch, xdp.Desc{Addr: addr})
	}
	l.frames += l.s.Fill(l.batch)
}

// Transmit implements fastpath.Link. The library makes a system call each time.
func (l *Link) Transmit(batch []fastpath.Desc) int {
	if len(batch) == 0 {
		return 0
	}
	l.batch = l.batch[:0]
	for _, d := range batch {
		l.batch = append(l.batch, xdp.Desc{Addr: d.Addr, Len: d.Len})
	}
	n := l.s.Transmit(l.batch)
	for _, d := range batch[:n] {
		l.sending[d.Addr/uint64(l.c.FrameSize)] = true
	}
	l.frames += n
	return n
}

// Long implements fastpath.Link. The library does not support packets in several frames.
func (l *Link) Long() bool { return false }

// Flush implements fastpath.Link; it does nothing unless Config.Drain is set.
func (l *Link) Flush() {
	if !l.c.Drain {
		return
	}
	for free := l.s.NumFreeTxSlots(); free < l.c.RingSize; {
		l.s.Transmit(nil)
		now := l.s.NumFreeTxSlots()
		if now == free {
			return
		}
		free = now
	}
}

// Unsent implements fastpath.Link. Only sleeping workers call it, and none sleeps here.
func (l *Link) Unsent() bool { return false }

// Probe implements fastpath.Link. Only sleeping workers call it.
func (l *Link) Probe() {}

// Complete implements fastpath.Link.
func (l *Link) Complete(p *fastpath.Pool) {
	n := l.s.NumCompleted()
	if n == 0 {
		return
	}
	l.s.Complete(n)
	for _, d := range l.s.GetDescs(l.c.Frames) {
		if frame := d.Addr / uint64(l.c.FrameSize); l.sending[frame] {
			l.sending[frame] = false
			l.frames--
			p.Put(d.Addr)
		}
	}
}

// Frames implements fastpath.Link.
func (l *Link) Frames() int { return l.frames }

// Up implements fastpath.Link. The library does not report it: it panics.
func (l *Link) Up() bool { return true }

// FD implements fastpath.Link.
func (l *Link) FD() int { return l.s.FD() }

package l2fwd

import (
	"context"
	"encoding/binary"
	"errors"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/bench/framing"
	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/fastpath/thread"
	"sluice.dev/sluice/fastpath/xsk"
)

// source sends 64-byte UDP packets (60 without FCS) on one queue of an interface, by AF_XDP:
// as fast as it can, or at a rate. A tool for this package's own measurements, which
// need one flow and no statistics; bench/stateless is the generator.
type source struct {
	umem    *xsk.UMEM
	pool    *fastpath.Pool
	socket  *xsk.Socket
	cpu     int
	rate    float64 // packets per second; 0: as fast as possible
	sent    atomic.Uint64
	tid     atomic.Int32
	batch   []fastpath.Desc
	started time.Time
	up      chan struct{} // closed once it sends
}

const (
	sourceFrames  = 1024
	sourceBatch   = 64
	packetBytes   = 60
	stampAt       = 42               // the payload: when the packet was sent
	pacedBatch    = 16               // most packets at once where there is a rate
	sourceNap     = time.Millisecond // between looks at the clock, where the rate is low
	sourceSpinFor = 50 * time.Microsecond
)

// openSource must be called in the interface's network namespace.
func openSource(ctx context.Context, ifname string, queue, cpu int, dst, src MAC) (*source, error) {
	umem, err := xsk.NewUMEM(xsk.UMEMConfig{Frames: sourceFrames, FrameSize: 2048})
	if err != nil {
		return nil, err
	}
	s := &source{umem: umem, pool: fastpath.NewPool(sourceFrames, 2048), cpu: cpu, up: make(chan struct{}),
		batch: make([]fastpath.Desc, sourceBatch)}
	for at := 0; at < len(umem.Bytes()); at += 2048 {
		writePacket(umem.Bytes()[at:at+packetBytes], dst, src)
	}
	s.socket, err = xsk.Open(ctx, xsk.Config{
		Interface: ifname, Queue: queue, UMEM: umem, Mode: xsk.Copy, RxSize: 64, FillSize: 64, TxSize: sourceBatch,
		CompletionSize: sourceFrames,
	})
	if err != nil {
		return nil, errors.Join(err, umem.Close())
	}
	return s, nil
}

// writePacket is an IPv4 UDP datagram of 18 bytes from 198.18.0.2 to 198.18.1.2, a
// network for benchmarks (RFC 2544, appendix C.2.2).
func writePacket(b []byte, dst, src MAC) {
	copy(b, dst[:])
	copy(b[6:], src[:])
	binary.BigEndian.PutUint16(b[12:], unix.ETH_P_IP)
	framing.IPv4(b[14:], unix.IPPROTO_UDP, []byte{198, 18, 0, 2}, []byte{198, 18, 1, 2}, packetBytes-34)
	// to discard (RFC 863), without checksum (RFC 768)
	copy(b[34:], []byte{0x30, 0x39, 0, 9, 0, packetBytes - 34, 0, 0})
}

// run sends until ctx is done.
func (s *source) run(ctx context.Context) error {
	runtime.LockOSThread() // never unlocked: the pinned thread ends with the goroutine
	if err := pin(s.cpu); err != nil {
		return err
	}
	s.tid.Store(int32(unix.Gettid()))
	s.started = time.Now()
	close(s.up)
	sent := uint64(0)
	for ctx.Err() == nil {
		n := s.due(sent)
		if n == 0 {
			continue
		}
		sent += uint64(s.sendBatch(n))
		s.sent.Store(sent)
	}
	return nil
}

// sendBatch puts at most n packets, and a batch, on the wire and returns how many it did.
func (s *source) sendBatch(n int) int {
	n = min(n, len(s.batch), s.pool.Free())
	now := monotonic()
	for i := range n {
		addr, _ := s.pool.Get()
		binary.LittleEndian.PutUint64(s.umem.Bytes()[addr+stampAt:], now)
		s.batch[i] = fastpath.Desc{Addr: addr, Len: packetBytes}
	}
	took := s.socket.Transmit(s.batch[:n])
	for _, d := range s.batch[took:n] {
		s.pool.Put(d.Addr)
	}
	s.socket.Flush()
	s.socket.Complete(s.pool)
	return took
}

// monotonic is the clock that bpf_ktime_get_ns reads.
func monotonic() uint64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // cannot fail for this clock
	return uint64(t.Nano())
}

// due is how many packets the rate is behind by now. It waits a little if there are none.
func (s *source) due(sent uint64) int {
	if s.rate == 0 {
		return sourceBatch
	}
	behind := int(time.Since(s.started).Seconds()*s.rate) - int(sent)
	if behind > 0 {
		return min(behind, pacedBatch)
	}
	if wait := time.Duration(float64(time.Second) / s.rate); wait > sourceSpinFor {
		time.Sleep(min(wait, sourceNap))
	}
	return 0
}

func (s *source) close() error {
	err := s.socket.Close(s.pool)
	if kept := new(xsk.KeptError); errors.As(err, &kept) {
		err = nil // the device goes with the network
	}
	return errors.Join(err, s.umem.Close())
}

// pin binds the calling thread to a CPU; negative leaves it free.
func pin(cpu int) error {
	if cpu < 0 {
		return nil
	}
	return thread.Bind(cpu)
}

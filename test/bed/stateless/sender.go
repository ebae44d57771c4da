package stateless

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/fastpath/xsk"
)

const (
	txRingSize = 2048
	// txFrames suffice for all that the device may hold and a burst.
	txFrames = 2*txRingSize + maxBurst
)

// sender sends the packets of one trial after another: a thread and an AF_XDP socket per transmit
// queue.
type sender struct {
	traffic Traffic
	tx      Tx
	clock   clock
	queues  []*txQueue
	sockets []*xsk.Socket
	umems   []*xsk.UMEM
}

func openSender(ctx context.Context, t Traffic, tx Tx) (*sender, error) {
	s := &sender{traffic: t, tx: tx, clock: newClock()}
	err := tx.Port.Run(func() error {
		for q := range tx.Queues {
			if err := s.open(ctx, q); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// open opens one queue.
func (s *sender) open(ctx context.Context, q int) error {
	const small, large = 2048, 4096
	size := small
	for _, v := range s.traffic.Sizes {
		if v.Bytes-fcsBytes > small {
			size = large
		}
	}
	umem, err := xsk.NewUMEM(xsk.UMEMConfig{Frames: txFrames, FrameSize: size, HugePages: true})
	if err != nil {
		return err
	}
	s.umems = append(s.umems, umem)
	// The fill and receive rings are not used; the kernel wants them.
	const unused = 64
	socket, err := xsk.Open(ctx, xsk.Config{
		Interface: s.tx.Port.Interface, Queue: q, UMEM: umem,
		RxSize: unused, FillSize: unused, TxSize: txRingSize, CompletionSize: txRingSize,
	})
	if err != nil {
		return fmt.Errorf("%w (a queue that only sends needs no XDP program, but must exist: `ethtool -l %s`)", err,
			s.tx.Port.Interface)
	}
	s.sockets = append(s.sockets, socket)
	s.queues = append(s.queues, &txQueue{
		link: socket, pool: fastpath.NewPool(txFrames, size), mem: umem.Bytes(), frameSize: uint64(size),
	})
	return nil
}

// send sends a load from start (CLOCK_MONOTONIC) on, until it is sent or stop. Run numbers of
// trials must differ.
func (s *sender) send(l Load, run uint16, start uint64, stop *atomic.Bool) (Sent, error) {
	n := len(s.queues)
	ends := make([]uint64, n)
	writers := make([]*writer, n)
	dropped, missed := make([]uint64, n), make([]uint64, n)
	cpu := make([]time.Duration, n)
	threads := make([]int, n)
	var g errgroup.Group
	for i, q := range s.queues {
		g.Go(func() error {
			return onThread(s.tx.CPUs, i, func() error {
				writers[i] = newWriter(&s.traffic, run, i, n)
				q.begin(writers[i], s.tx.Burst)
				before := s.sockets[i].Counters().EBUSY
				p := newPacer(part(l, i, n), start, s.tx.Burst, uint64(s.tx.Together), s.tx.Spin)
				threads[i] = unix.Gettid()
				began := threadTime()
				ends[i] = q.run(p, &s.clock, stop)
				cpu[i] = threadTime() - began
				missed[i] = p.forgiven
				q.settle(&s.clock)
				dropped[i] = s.sockets[i].Counters().EBUSY - before
				return nil
			})
		})
	}
	if err := g.Wait(); err != nil {
		return Sent{}, err // a queue that did not begin has no writer
	}
	sent := Sent{Threads: threads}
	for i, q := range s.queues {
		sent.Packets += q.packets
		sent.Bytes += q.bytes
		sent.Refused += q.refused
		sent.Dropped += dropped[i]
		sent.Missed += missed[i]
		sent.CPU += cpu[i]
		sent.Flows += writers[i].order.seen()
		sent.Elapsed = max(sent.Elapsed, time.Duration(ends[i]-min(start, ends[i])))
	}
	return sent, nil
}

// part is one of n queues' share of a load. A share of no packets is one; unlimited
// is the largest number.
func part(l Load, i, n int) Load {
	l.Rate /= float64(n)
	if l.Packets == 0 {
		l.Packets = math.MaxUint64
		return l
	}
	whole := l.Packets
	l.Packets = whole / uint64(n)
	if uint64(i) < whole%uint64(n) {
		l.Packets++
	}
	return l
}

func (s *sender) close() error {
	var errs []error
	for i, socket := range s.sockets {
		err := socket.Close(s.queues[i].pool)
		if kept := (*xsk.KeptError)(nil); !errors.As(err, &kept) { // the UMEM ends with the socket
			errs = append(errs, err)
		}
	}
	for _, u := range s.umems {
		errs = append(errs, u.Close())
	}
	s.sockets, s.umems = nil, nil
	return errors.Join(errs...)
}

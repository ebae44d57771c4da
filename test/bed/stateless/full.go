package stateless

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/fastpath/xsk"
)

const (
	rxRingSize  = 4096
	rxBatch     = 64
	rxFrames    = 2*rxRingSize + rxBatch
	rxFrameSize = 4096
	// pollMillis bounds how long a receiver does not see that it shall stop.
	pollMillis = 10
	stampBytes = 8 // before each packet, see stamp in receive.bpf.c
)

// rxQueue receives from one link and judges: the receive loop. One thread owns it;
// arrived may be read by any.
type rxQueue struct {
	link    fastpath.Link
	pool    *fastpath.Pool
	mem     []byte
	judge   *judge
	batch   [rxBatch]fastpath.Desc
	poll    [1]unix.PollFd
	arrived atomic.Uint64 // published once per batch
}

// step receives and judges one batch and returns its size.
func (q *rxQueue) step() int {
	n := q.link.Receive(q.batch[:])
	for _, d := range q.batch[:n] {
		arrival := binary.LittleEndian.Uint64(q.mem[d.Addr-stampBytes : d.Addr])
		q.judge.packet(q.mem[d.Addr:d.Addr+uint64(d.Len)], arrival)
		q.pool.Put(d.Addr)
	}
	if n > 0 {
		q.link.Refill(q.pool)
		q.arrived.Store(q.judge.count.Packets)
	}
	return n
}

// run receives until stop, and then the packets that are still in the ring.
func (q *rxQueue) run(stop *atomic.Bool) {
	for {
		last := stop.Load() // before step, so that nothing older stays
		if q.step() > 0 {
			continue
		}
		if last {
			return
		}
		q.poll[0] = unix.PollFd{Fd: int32(q.link.FD()), Events: unix.POLLIN}
		_, _ = unix.Poll(q.poll[:], pollMillis) // an error is a batch of nothing
	}
}

// fullReceiver is a thread and an AF_XDP socket per receive queue.
type fullReceiver struct {
	*program
	rx      Rx
	queues  []*rxQueue
	sockets []*xsk.Socket
	umems   []*xsk.UMEM

	stop    atomic.Bool
	threads *errgroup.Group // while a trial runs
	starved uint64          // at begin
}

func openFull(ctx context.Context, t *Traffic, r Rx, p *program) (*fullReceiver, error) {
	f := &fullReceiver{program: p, rx: r}
	err := r.Port.Run(func() error {
		for q := range r.Queues {
			if err := f.open(ctx, t, q); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, errors.Join(err, f.close())
	}
	return f, nil
}

func (f *fullReceiver) open(ctx context.Context, t *Traffic, q int) error {
	umem, err := xsk.NewUMEM(xsk.UMEMConfig{Frames: rxFrames, FrameSize: rxFrameSize, HugePages: true})
	if err != nil {
		return err
	}
	f.umems = append(f.umems, umem)
	const unused = 64
	socket, err := xsk.Open(ctx, xsk.Config{
		Interface: f.rx.Port.Interface, Queue: q, UMEM: umem,
		RxSize: rxRingSize, FillSize: rxRingSize, TxSize: unused, CompletionSize: unused,
	})
	if err != nil {
		return err
	}
	f.sockets = append(f.sockets, socket)
	queue := &rxQueue{
		link: socket, pool: fastpath.NewPool(rxFrames, rxFrameSize), mem: umem.Bytes(),
		judge: newJudge(newLayout(t, *f.rx.VLANs), t.Flows),
	}
	f.queues = append(f.queues, queue)
	socket.Refill(queue.pool)
	if err := f.objects.Sockets.Put(uint32(q), uint32(socket.FD())); err != nil {
		return fmt.Errorf("direct queue %d of %s to its socket: %w", q, f.rx.Port.Interface, err)
	}
	return nil
}

func (f *fullReceiver) begin(run uint16) error {
	if err := f.program.begin(run); err != nil {
		return err
	}
	var err error
	if f.starved, err = f.dropped(); err != nil {
		return err
	}
	f.stop.Store(false)
	f.threads = new(errgroup.Group)
	for i, q := range f.queues {
		q.judge.begin(run)
		q.arrived.Store(0)
		f.threads.Go(func() error {
			return onThread(f.rx.CPUs, i, func() error { q.run(&f.stop); return nil })
		})
	}
	return nil
}

func (f *fullReceiver) packets() (n uint64, err error) {
	for _, q := range f.queues {
		n += q.arrived.Load()
	}
	return n, nil
}

// dropped returns the packets that the kernel dropped because this receiver was too slow.
func (f *fullReceiver) dropped() (n uint64, err error) {
	for _, s := range f.sockets {
		st, err := s.Stats()
		if err != nil {
			return 0, err
		}
		n += st.RxDropped + st.RxRingFull
	}
	return n, nil
}

func (f *fullReceiver) halt() error {
	if f.threads == nil {
		return nil
	}
	f.stop.Store(true)
	err := f.threads.Wait()
	f.threads = nil
	return err
}

func (f *fullReceiver) end() (Received, error) {
	if err := f.halt(); err != nil {
		return Received{}, err
	}
	var judges []*judge
	for _, q := range f.queues {
		judges = append(judges, q.judge)
	}
	r := combine(judges)
	starved, errDropped := f.dropped()
	r.Starved = starved - f.starved
	sum, _, errTotals := f.totals()
	r.Foreign += sum.Foreign - f.before.Foreign + sum.Stale - f.before.Stale
	var unstamped uint32
	errStamp := f.objects.Unstamped.Get(&unstamped)
	if errStamp == nil && unstamped != 0 {
		errStamp = fmt.Errorf("interface %s: its driver has no room for a time stamp before a packet: only counting "+
			"is possible there", f.rx.Port.Interface)
	}
	return r, errors.Join(errDropped, errTotals, errStamp)
}

func (f *fullReceiver) close() error {
	errs := []error{f.halt(), f.program.close()}
	for i, s := range f.sockets {
		err := s.Close(f.queues[i].pool)
		if kept := (*xsk.KeptError)(nil); !errors.As(err, &kept) { // the UMEM ends with the socket
			errs = append(errs, err)
		}
	}
	for _, u := range f.umems {
		errs = append(errs, u.Close())
	}
	f.sockets, f.umems = nil, nil
	return errors.Join(errs...)
}

package l2fwd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	"golang.org/x/sync/errgroup"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/fastpath/xsk"
	"sluice.dev/sluice/host/nic/ethtool"
	"sluice.dev/sluice/test/bed/xdp"
)

// Run forwards between the two sides until ctx is done, and leaves nothing behind. It looks up the
// interfaces in the network namespace of the calling thread: call it on a goroutine that is locked
// to a thread (topo's Host.Run). The interfaces must have no other XDP program, and their queues no
// other socket.
func Run(ctx context.Context, c Config) (err error) {
	if err := c.setDefaults(); err != nil {
		return err
	}
	f := &forwarder{c: &c}
	defer func() { err = errors.Join(err, f.close()) }()
	if err := f.open(ctx); err != nil {
		return err
	}
	stats := new(Stats)
	g, ctx := errgroup.WithContext(ctx)
	var up sync.WaitGroup // workers that are on their CPU, or have failed
	for _, w := range f.workers {
		stats.Workers = append(stats.Workers, &w.stats)
		up.Add(1)
		g.Go(func() error { return w.run(ctx, &c, up.Done) })
	}
	up.Wait()
	if c.Ready != nil && ctx.Err() == nil {
		c.Ready(stats)
	}
	return g.Wait()
}

// forwarder holds everything that Run opens.
type forwarder struct {
	c        *Config
	sides    []side // in and out
	workers  []*worker
	programs []*xdp.Program
}

type side struct {
	name    string
	ifindex int
	mac     MAC
	queues  int
}

func (f *forwarder) open(ctx context.Context) error {
	queues := f.c.Queues
	for _, name := range []string{f.c.In.Interface, f.c.Out.Interface} {
		s, err := findSide(name)
		if err != nil {
			return err
		}
		if queues > s.queues {
			return fmt.Errorf("l2fwd: %s has %d queues, not %d: `ethtool -L %s combined %d`, or forward on fewer", name,
				s.queues, queues, name, queues)
		}
		f.sides = append(f.sides, s)
	}
	if queues == 0 {
		queues = min(f.sides[0].queues, f.sides[1].queues)
	}
	workers := queues
	if len(f.c.CPUs) > 0 {
		workers = min(queues, len(f.c.CPUs))
	}
	for k := range workers {
		if err := f.addWorker(ctx, k, workers, queues); err != nil {
			return err
		}
	}
	for i, s := range f.sides {
		sockets := make([]*xsk.Socket, queues)
		for q := range sockets {
			sockets[q] = f.workers[q%workers].links[q/workers*len(f.sides)+i]
		}
		p, err := attach(s.ifindex, sockets)
		if err != nil {
			return err
		}
		f.programs = append(f.programs, p)
	}
	return nil
}

// frameSize, in bytes, is the gateway's choice for a veth.
const frameSize = 2048

// addWorker makes worker k of workers, which has the queues k, k+workers, ...: it opens their
// sockets on every side, on one UMEM.
func (f *forwarder) addWorker(ctx context.Context, k, workers, queues int) error {
	c := f.c
	own := (queues - k + workers - 1) / workers
	ring := config.Default().Tuning.RingSize
	size := uint32(ring)
	umem, err := xsk.NewUMEM(xsk.UMEMConfig{Frames: own * len(f.sides) * 2 * ring, FrameSize: frameSize,
		HugePages: true})
	if err != nil {
		return err
	}
	w := &worker{
		umem: umem, mem: umem.Bytes(), pool: fastpath.NewPool(umem.Frames(), umem.FrameSize()),
		batch: make([]fastpath.Desc, fastpath.BatchSize), cpu: -1,
	}
	f.workers = append(f.workers, w)
	if len(c.CPUs) > 0 {
		w.cpu = c.CPUs[k]
	}
	for queue := k; queue < queues; queue += workers {
		for _, s := range f.sides {
			socket, err := xsk.Open(ctx, xsk.Config{
				Interface: s.name, Queue: queue, UMEM: umem,
				RxSize: size, TxSize: size, FillSize: size, CompletionSize: size,
			})
			if err != nil {
				return err
			}
			w.links = append(w.links, socket)
			socket.Refill(w.pool)
		}
	}
	// Packets from one side leave with the addresses of the other side.
	w.macs = [2]macs{leaving(f.sides[1].mac, c.Out.Next), leaving(f.sides[0].mac, c.In.Next)}
	return nil
}

func leaving(own, next MAC) (m macs) {
	copy(m[:], next[:])
	copy(m[6:], own[:])
	return m
}

// findSide reads the properties of an interface from the kernel.
func findSide(name string) (side, error) {
	ifi, err := net.InterfaceByName(name)
	if err != nil {
		return side{}, fmt.Errorf("l2fwd: %s: %w", name, err)
	}
	s := side{name: name, ifindex: ifi.Index, queues: 1}
	copy(s.mac[:], ifi.HardwareAddr)
	if ch, err := ethtool.ReadChannels(name); err == nil {
		s.queues = ch.Pairs()
	}
	return s, nil
}

// close undoes open in reverse order, beginning with the XDP programs.
func (f *forwarder) close() error {
	var errs []error
	for _, p := range f.programs {
		errs = append(errs, p.Close())
	}
	for _, w := range f.workers {
		for _, err := range w.close() {
			if kept := new(xsk.KeptError); !errors.As(err, &kept) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

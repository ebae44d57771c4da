package daemon

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/cmd/sluice/internal/boottime"
	"sluice.dev/sluice/cmd/sluice/internal/devices"
	"sluice.dev/sluice/cmd/sluice/internal/frames"
	"sluice.dev/sluice/control/config"
	"sluice.dev/sluice/control/hostlink"
	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/fastpath/stats"
	"sluice.dev/sluice/fastpath/thread"
	"sluice.dev/sluice/fastpath/xsk"
	"sluice.dev/sluice/fastpath/xsk/napi"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/flowtable/affinity"
	"sluice.dev/sluice/nat/fragment"
	"sluice.dev/sluice/nat/header"
)

const (
	heldPackets = 512
	heldPerHop  = 128
	ownTTL      = 64 // of ICMP errors and echo replies, as Linux has it (net.ipv4.ip_default_ttl)
)

// datapath is the workers and what they share.
type datapath struct {
	config *config.Configuration
	frames frames.Choice
	log    *slog.Logger
	tables
	services  *services.Handle
	hops      *nexthop.Table
	fragments *fragment.Table
	workers   []*worker
	original  *napi.Original // what devices had before `interfaces[].napi`
	ports     []*port        // in the order of the configuration, the host link's last
	started   bool
	startedAt uint64 // CLOCK_BOOTTIME
	done      sync.WaitGroup
}

// tables are what workers share that outlives the process.
type tables struct {
	flows *flowtable.Table
	pins  *affinity.Table
}

// worker is a fastpath.Worker and what belongs to it alone.
type worker struct {
	*fastpath.Worker
	umem  *xsk.UMEM
	block *stats.Block
	cpu   int
}

// newDatapath makes workers without links, and the ports that will give them some.
func newDatapath(c *config.Configuration, log *slog.Logger, shared tables, handle *services.Handle, hops *nexthop.Table, found devices.Found, host *hostlink.HostLink) (*datapath, error) {
	workers, queues, err := devices.Plan(found.Devices, c)
	if err != nil {
		return nil, err
	}
	fragments, err := newFragments(c.Fragments.Contexts)
	if err != nil {
		return nil, err
	}
	original, err := napi.OpenOriginal(filepath.Join(c.StateDir, "napi.json"))
	if err != nil {
		return nil, err
	}
	d := &datapath{config: c, frames: found.Frames, log: log, tables: shared, services: handle, hops: hops, fragments: fragments, original: original}
	links := make([]int, workers) // sockets of each worker
	for i, dev := range found.Devices {
		p := &port{name: dev.Name, config: c.Interfaces[i], device: dev}
		for q := range queues[i] {
			w := q % workers
			p.slots = append(p.slots, &slot{worker: w, position: links[w], queue: q})
			links[w]++
		}
		d.ports = append(d.ports, p)
	}
	if host != nil {
		p := &port{name: host.Name, host: true, config: config.Interface{Name: host.Name, Mode: config.ModeNative, ZeroCopy: config.ZeroCopyNever}}
		for w := range workers {
			p.slots = append(p.slots, &slot{worker: w, position: links[w], queue: w})
			links[w]++
		}
		d.ports = append(d.ports, p)
	}
	cpus := pinning(c, workers)
	for w := range workers {
		if err := d.addWorker(w, workers, links[w], cpus[w], host); err != nil {
			return nil, errors.Join(err, d.close())
		}
	}
	return d, nil
}

func newFragments(contexts int) (*fragment.Table, error) {
	var secret [16]byte
	rand.Read(secret[:]) // never fails (crypto/rand)
	return fragment.New(make([]atomic.Uint64, fragment.Words(contexts)),
		[2]uint64{binary.LittleEndian.Uint64(secret[:]), binary.LittleEndian.Uint64(secret[8:])})
}

func (d *datapath) addWorker(id, workers, links, cpu int, host *hostlink.HostLink) error {
	c := d.config
	umem, err := xsk.NewUMEM(xsk.UMEMConfig{Frames: links * c.Frames.PerQueue, FrameSize: d.frames.Size, HugePages: true})
	if err != nil {
		return err
	}
	w := &worker{umem: umem, block: new(stats.Block), cpu: cpu}
	d.workers = append(d.workers, w)
	fc := fastpath.Config{
		ID: id, Memory: umem.Bytes(), Pool: fastpath.NewPool(umem.Frames(), umem.FrameSize()), Chains: umem.Chains(),
		Links: make([]fastpath.Link, links), Host: -1,
		Flows: d.flows, Affinity: d.pins, Workers: workers, Services: d.services, Hops: d.hops, Fragments: d.fragments, Stats: w.block,
		HeldPackets: heldPackets, HeldPerHop: heldPerHop,
		HeldFragments: c.Fragments.Held, FragmentWait: c.Fragments.Timeout.D(),
		ICMPRate: share(c.ICMP.RatePerSecond, workers), ICMPBurst: share(c.ICMP.Burst, workers), TTL: ownTTL,
		FramesKept: umem.Kept,
		Validate:   os.Getenv("SLUICE_VALIDATE") == "1",
	}
	for i := range fc.Links {
		fc.Links[i] = fastpath.NoLink{}
	}
	for _, p := range d.ports {
		first := p.first(id)
		if p.host {
			fc.Host = first
			fc.HostMAC = fastpath.HostMAC{Kernel: host.KernelMAC, User: host.MAC}
			if host.Addr4.IsValid() {
				fc.HostSource4 = header.AddrFrom(host.Addr4)
			}
			if host.Addr6.IsValid() {
				fc.HostSource6 = header.AddrFrom(host.Addr6)
			}
			continue
		}
		fc.Egress = append(fc.Egress, first)
	}
	w.Worker, err = fastpath.New(fc)
	return err
}

// share divides a limit of the process among its workers; what was not zero stays so.
func share(limit, workers int) int {
	if limit == 0 {
		return 0
	}
	return max(1, limit/workers)
}

// pinning chooses each worker's CPU: the configured ones, or those the process
// may run on in turn.
func pinning(c *config.Configuration, workers int) []int {
	cpus := c.WorkerCPUs
	if len(cpus) == 0 {
		var set unix.CPUSet
		if unix.SchedGetaffinity(0, &set) == nil {
			for cpu := range len(set) * 64 {
				if set.IsSet(cpu) {
					cpus = append(cpus, cpu)
				}
			}
		}
	}
	pins := make([]int, workers)
	for w := range pins {
		pins[w] = -1
		if len(cpus) > 0 {
			pins[w] = cpus[w%len(cpus)]
		}
	}
	return pins
}

// tidyThreads is how long a thread may be bound to a worker's CPU that runs no worker.
const tidyThreads = time.Second

// run starts the workers. fail, which must not block, hears of a worker that could
// not go on: half a data path would lose half the packets.
func (d *datapath) run(ctx context.Context, fail func(error)) {
	threads, err := thread.NewGroup(d.config.WorkerNice)
	if err != nil {
		fail(err)
		return
	}
	d.started, d.startedAt = true, boottime.Nanos()
	d.done.Add(1)
	go func() {
		defer d.done.Done()
		if err := threads.TidyEvery(ctx, tidyThreads); err != nil {
			d.log.Warn("threads that a worker's thread made stay on its CPU", "error", err)
		}
	}()
	for _, w := range d.workers {
		d.done.Add(1)
		go func() {
			defer d.done.Done()
			s := &d.config.Sockets
			c := fastpath.RunConfig{CPU: w.cpu, Threads: threads, Turn: thread.Turn, Spin: s.Spin.D(), SpinAsWorked: s.SpinAsWorked, Coalesce: s.Coalesce.D(), Sleep: s.Sleep.D()}
			if err := w.Run(ctx, c); err != nil {
				fail(err)
			}
		}()
	}
}

// onWorker runs f where the worker's links may be changed.
func (d *datapath) onWorker(ctx context.Context, id int, f func(*fastpath.Worker)) error {
	w := d.workers[id].Worker
	if !d.started {
		f(w)
		return nil
	}
	if !w.Do(ctx, f) {
		return fmt.Errorf("worker %d is stopped", id)
	}
	return nil
}

// pulseStale is how old a worker's pulse may be before it counts as stalled. A worker
// without work wakes once in sockets.sleep, which is a second at most.
const pulseStale = 5 * time.Second

// stalled lists the workers that have not moved for pulseStale. They must have been
// started.
func (d *datapath) stalled(now uint64) (ids []int) {
	for id, w := range d.workers {
		if last := max(d.startedAt, w.block.LoopTick.Load()); now-min(now, last) > uint64(pulseStale) {
			ids = append(ids, id)
		}
	}
	return ids
}

// devices are the interfaces as they were last seen, with the MTU that they are served with, without the host link.
func (d *datapath) devices() (list []devices.Device) {
	for _, p := range d.ports {
		if !p.host {
			p.mu.Lock()
			dev := p.device
			dev.MTU = p.receives(d.frames.Size)
			list = append(list, dev)
			p.mu.Unlock()
		}
	}
	return list
}

func (d *datapath) blocks() []*stats.Block {
	blocks := make([]*stats.Block, len(d.workers))
	for i, w := range d.workers {
		blocks[i] = w.block
	}
	return blocks
}

// close frees everything. The workers must have ended.
func (d *datapath) close() error {
	d.done.Wait()
	d.started = false
	var errs []error
	for _, p := range d.ports {
		errs = append(errs, d.closePort(context.Background(), p))
	}
	for _, w := range d.workers {
		if w.Worker != nil {
			w.Worker.Close()
		}
		errs = append(errs, w.umem.Close())
	}
	return errors.Join(errs...)
}

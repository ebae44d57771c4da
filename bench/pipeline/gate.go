package pipeline

import (
	"fmt"
	"strings"
	"time"

	"sluice.dev/sluice/bench/framing"
	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/fastpath/stats"
	"sluice.dev/sluice/nat/reason"
	"sluice.dev/sluice/test/bed/memlink"
)

const (
	chunkFrames = 4096
	hostFrames  = 64
	frameSize   = 2048
	headroom    = 256 // offset of packets in memlink's frames, as in AF_XDP
	umemFrames  = chunkFrames + hostFrames
)

// gate is a worker with its links: one to the network, and the host link, which has no traffic.
type gate struct {
	*fastpath.Worker
	w         *world
	now       uint64 // the current time of its clock
	umem      []byte
	nic, host *memlink.Link
	stats     *stats.Block
}

// addGate makes worker id of the given number of workers.
func (w *world) addGate(id, workers int) (*gate, error) {
	return w.addGateOver(id, workers, func(nic *memlink.Link) fastpath.Link { return nic })
}

// addGateOver is addGate with a wrapper around the worker's link to the network.
func (w *world) addGateOver(id, workers int, over func(nic *memlink.Link) fastpath.Link) (*gate, error) {
	umem, err := hugeMemory(umemFrames * frameSize)
	if err != nil {
		return nil, fmt.Errorf("UMEM: %w", err)
	}
	g := &gate{
		w: w, now: w.start, umem: umem, stats: new(stats.Block),
		nic: memlink.New(umem, frameSize, chunkFrames), host: memlink.New(umem, frameSize, hostFrames),
	}
	g.stats.Backends.Ensure(w.backendCount())
	g.Worker, err = fastpath.New(fastpath.Config{
		ID: id, Memory: umem[:umemFrames*frameSize], Pool: fastpath.NewPool(umemFrames, frameSize),
		Links: []fastpath.Link{over(g.nic), g.host}, Egress: []int{0}, Host: 1,
		HostMAC:     fastpath.HostMAC{Kernel: macKernel, User: macUser},
		HostSource4: addr4(0xc0000001), HostSource6: addr6(net6|9<<16, 1),
		Flows: w.table, Affinity: w.pins, Workers: workers, Services: &w.handle, Hops: w.hops,
		Fragments: w.frags, Stats: g.stats,
		HeldPackets: 64, HeldPerHop: 16, HeldFragments: 64, FragmentWait: time.Second,
		ICMPRate: 1000, ICMPBurst: 50, TTL: framing.HopLimit, Seed: [32]byte{1, byte(id)},
	})
	if err != nil {
		unmap(umem)
		return nil, err
	}
	w.gates = append(w.gates, g)
	g.Step(g.now) // fills the fill rings
	return g, nil
}

func (g *gate) close() {
	g.Close()
	unmap(g.umem)
}

// drain steps until the worker has taken n packets, and returns how long that took. The worker's
// time starts at now and advances with the clock, which is read before every step as Run does.
func (g *gate) drain(now uint64, n int) (time.Duration, error) {
	began := time.Now()
	for moved, idle := 0, 0; moved < n; {
		m := g.Step(now + uint64(time.Since(began)))
		moved += m
		if m != 0 {
			idle = 0
		} else if idle++; idle == 3 {
			return 0, fmt.Errorf("the worker took %d of %d packets and no more", moved, n)
		}
	}
	return time.Since(began), nil
}

// chunk measures the time that the worker needs for n injected packets: all must be sent.
func (g *gate) chunk(n int) (time.Duration, error) {
	spent, err := g.drain(g.now, n)
	if err != nil {
		return 0, err
	}
	sent := g.nic.Loop()
	began := time.Now()
	g.Step(g.now + uint64(spent))
	spent += time.Since(began)
	g.now += uint64(spent)
	if sent != n {
		return 0, fmt.Errorf("%d of %d packets were sent; dropped: %s", sent, n, g.drops())
	}
	return spent, nil
}

// drops describes the worker's drops since it began, by reason.
func (g *gate) drops() string {
	var b strings.Builder
	for r := range g.stats.Drops {
		if n := g.stats.Drops[r].Load(); n > 0 {
			fmt.Fprintf(&b, "%v %d, ", reason.Drop(r), n)
		}
	}
	return strings.TrimSuffix(b.String(), ", ")
}

package fastpath

import (
	"errors"
	"fmt"
	mrand "math/rand/v2"

	"sluice.dev/sluice/fastpath/decide"
	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/header"
)

// New checks the configuration and returns a worker that has not started.
func New(c Config) (*Worker, error) {
	switch {
	case c.Pool == nil || len(c.Memory) < header.Window6Bytes:
		return nil, errors.New("fastpath: a worker needs a UMEM and its pool")
	case c.Flows == nil || c.Services == nil || c.Hops == nil || c.Stats == nil || c.Fragments == nil:
		return nil, errors.New("fastpath: a worker needs flows, services, next hops, fragments and a stats block")
	case (c.Copies != nil) != c.Flows.Grouped():
		return nil, errors.New("fastpath: a worker needs Copies if and only if its flow table is of a group")
	case c.Workers < 1:
		return nil, errors.New("fastpath: Workers must count this worker")
	case c.Host >= len(c.Links):
		return nil, fmt.Errorf("fastpath: host link is link %d of %d", c.Host, len(c.Links))
	}
	for i, l := range c.Egress {
		if l < 0 || l >= len(c.Links) {
			return nil, fmt.Errorf("fastpath: interface %d transmits on link %d of %d", i, l, len(c.Links))
		}
	}
	if c.StrictReversePath && len(c.Interfaces) != len(c.Links) {
		return nil, fmt.Errorf("fastpath: %d links, but interfaces for %d", len(c.Links), len(c.Interfaces))
	}
	if c.Chains == nil {
		c.Chains = NewChains(c.Pool.Total(), int(c.Pool.frameSize))
	}
	flows, err := c.Flows.Register()
	if err != nil {
		return nil, fmt.Errorf("fastpath: worker %d: %w", c.ID, err)
	}
	flows.MakeRings()
	if c.Stats.Times != nil {
		flows.MeasureWaits()
	}
	w := &Worker{
		c: c, umem: umem{mem: c.Memory, memory: header.NewMemory(c.Memory), pool: c.Pool, chains: c.Chains},
		flows: flows, stats: c.Stats,
		planner: decide.Planner{
			Flows: flows, Loads: c.Flows.Loads(), Pins: c.Affinity,
			Host4: c.HostSource4, Host6: c.HostSource6, Routes: new(decide.RouteCache),
		},
		draws: draws{source: newRandom(c.Seed)},
		host:  nexthop.Hop{Kind: nexthop.Kernel, Ready: true, DstMAC: c.HostMAC.Kernel, SrcMAC: c.HostMAC.User},
	}
	w.tunnels.Tunnel = c.Tunnel
	var sites flowtable.HashKey
	for i := range sites {
		sites[i] = w.draws.source.Uint64()
	}
	w.rates = newRates(c.ICMPRate, c.ICMPBurst, sites)
	w.budget.packets = BatchSize
	w.hops = newHopQueue(c.HeldPackets, c.HeldPerHop, [2]uint64{w.draws.source.Uint64(), w.draws.source.Uint64()})
	w.frags = newFragmentQueue(c.HeldFragments, c.FragmentWait)
	w.parked = newParkedQueue(c.Pool.Total())
	w.samples = newDropSamples(mrand.NewPCG(w.draws.source.Uint64(), w.draws.source.Uint64()))
	if c.Copies != nil {
		w.waiting = newWaitingQueue(c.Pool.Total())
		w.unknown = make(unknownConnections, unknownSlots)
	}
	w.egress = newEgress(len(c.Links), c.Egress)
	w.pieces.of = make([]piece, len(c.Links))
	if err := w.control.wake.open(); err != nil {
		flows.Close()
		return nil, fmt.Errorf("fastpath: worker %d: eventfd: %w", c.ID, err)
	}
	if c.Copies != nil {
		c.Copies.SetWake(c.ID, w.control.wake.signal)
	}
	return w, nil
}

// Close unregisters the worker from the flow table. Run and all calls of Do and Stop must have
// ended.
func (w *Worker) Close() {
	w.flows.Close()
	w.control.wake.close()
}

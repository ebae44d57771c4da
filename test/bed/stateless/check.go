package stateless

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
)

// Limits of a Config.
const (
	minFrameBytes = 64
	maxFrameBytes = 4096 // bytes of a frame in the largest UMEM chunk
	// MaxFlows bounds Traffic.Flows: the receiver keeps 24 bytes for each and queue.
	MaxFlows     = 1 << 24
	maxFragments = 8
	maxQueues    = 64
	maxBurst     = 1024
	maxWeights   = 256
	maxSizes     = 16
	maxVLAN      = 4094
	defaultBurst = 64
)

// setDefaults fills in defaults and unmaps addresses; check comes after it.
func (t *Traffic) setDefaults() {
	for _, a := range []*Addresses{&t.Sources, &t.Destinations} {
		a.First = a.First.Unmap()
		a.Count = max(a.Count, 1)
	}
	for _, p := range []*Ports{&t.SourcePorts, &t.DestinationPorts} {
		if p.Last == 0 {
			p.Last = p.First
		}
	}
	if t.Flows == 0 {
		t.Flows = 1
	}
	if len(t.Sizes) == 0 {
		t.Sizes = []Size{{minFrameBytes, 1}}
	}
	if t.Run == 0 {
		t.Run = 1
	}
}

// check says all that is wrong.
func (t *Traffic) check() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	errs = append(errs, t.Sources.check("sources"), t.Destinations.check("destinations"))
	if t.Sources.First.Is4() != t.Destinations.First.Is4() {
		bad("source %s and destination %s are of two families: give both as IPv4 or both as IPv6", t.Sources.First,
			t.Destinations.First)
	}
	if t.SourcePorts.Last < t.SourcePorts.First || t.DestinationPorts.Last < t.DestinationPorts.First {
		bad("a range of ports ends before it starts: give the lower port first")
	}
	if t.Protocol > ICMPEcho {
		bad("protocol %d: want UDP, TCPSYN or ICMPEcho", t.Protocol)
	} else if t.Protocol == ICMPEcho && t.DestinationPorts.Last != 0 {
		bad("echo requests have no destination port: leave it 0")
	}
	if len(t.DestinationMAC) != 6 || (t.SourceMAC != nil && len(t.SourceMAC) != 6) {
		bad("MAC addresses: want 6 bytes for the destination (the gateway's, or the receiver's), and for the source " +
			"6 or none")
	}
	if t.Fragments < 0 || t.Fragments > maxFragments || (t.Fragments > 1 && t.Protocol == TCPSYN) {
		bad("%d fragments: want up to %d, of UDP or ICMP", t.Fragments, maxFragments)
	}
	if len(t.VLANs) > 2 {
		bad("%d VLAN tags: want at most two", len(t.VLANs))
	}
	for _, id := range t.VLANs {
		if id == 0 || id > maxVLAN {
			bad("VLAN %d: want 1 to %d", id, maxVLAN)
		}
	}
	errs = append(errs, t.checkFlows(), t.checkSizes())
	return errors.Join(errs...)
}

func (t *Traffic) checkFlows() error {
	if t.Flows < 1 || t.Flows > MaxFlows {
		return fmt.Errorf("%d flows: want 1 to %d", t.Flows, MaxFlows)
	}
	combinations := uint64(1)
	for _, n := range [...]int{
		t.Sources.Count, t.SourcePorts.count(), t.Destinations.Count, t.DestinationPorts.count(),
	} {
		combinations = min(combinations*uint64(n), math.MaxUint32)
	}
	if uint64(t.Flows) > combinations {
		return fmt.Errorf("%d flows of %d combinations of addresses and ports: give wider ranges", t.Flows,
			combinations)
	}
	return nil
}

func (t *Traffic) checkSizes() error {
	if len(t.Sizes) > maxSizes {
		return fmt.Errorf("%d sizes: want at most %d", len(t.Sizes), maxSizes)
	}
	weights := 0
	for _, s := range t.Sizes {
		if s.Bytes < minFrameBytes || s.Bytes > maxFrameBytes {
			return fmt.Errorf("frame size %d: want %d to %d bytes, frame check sequence included", s.Bytes,
				minFrameBytes, maxFrameBytes)
		}
		if s.Weight < 1 || s.Weight > maxWeights {
			return fmt.Errorf("frame size %d has weight %d: want 1 to %d", s.Bytes, s.Weight, maxWeights)
		}
		weights += s.Weight
	}
	if weights > maxWeights {
		return fmt.Errorf("weights of sizes add up to %d: want at most %d; divide them", weights, maxWeights)
	}
	return nil
}

func (a *Addresses) check(what string) error {
	if !a.First.IsValid() {
		return fmt.Errorf("%s: no address: give the first", what)
	}
	if a.Count < 1 || uint64(low32(a.First))+uint64(a.Count)-1 > math.MaxUint32 {
		return fmt.Errorf("%s: %d addresses from %s on: only the last 32 bits may vary, without a carry", what, a.Count,
			a.First)
	}
	return nil
}

// low32 are the last 32 bits of an address.
func low32(a netip.Addr) uint32 {
	b := a.AsSlice()
	b = b[len(b)-4:]
	return uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
}

func (p *Ports) count() int { return int(p.Last) - int(p.First) + 1 }

func (l *Load) check() error {
	switch {
	case l.Rate < 0 || math.IsNaN(l.Rate) || math.IsInf(l.Rate, 0):
		return fmt.Errorf("rate %g packets per second: want 0 (as fast as possible) or more", l.Rate)
	case l.Duration < 0 || l.Duration > MaxDuration:
		return fmt.Errorf("duration %v: want up to %v", l.Duration, MaxDuration)
	case l.Duration == 0 && l.Packets == 0:
		return errors.New("a trial without end: give a duration or a number of packets")
	}
	return nil
}

// pattern spreads sizes over the sum of their weights: each step takes the one that
// is furthest behind its share.
func pattern(sizes []Size) []uint8 {
	total := 0
	for _, s := range sizes {
		total += s.Weight
	}
	behind := make([]int, len(sizes))
	out := make([]uint8, total)
	for i := range out {
		best := 0
		for j, s := range sizes {
			behind[j] += s.Weight
			if behind[j] > behind[best] {
				best = j
			}
		}
		behind[best] -= total
		out[i] = uint8(best)
	}
	return out
}

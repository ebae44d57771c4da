package compare

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"sluice.dev/sluice/test/bed/procstat"
	"sluice.dev/sluice/test/bed/stateless"
)

// Flows are combinations of client addresses and source ports: many of both, as real clients have.
const (
	clientAddresses      = 100
	firstPort, lastPort  = 10_000, 60_000
	warmRate, warmRounds = 20_000, 2 // packets per second; packets of each flow
	warmTimes            = 10        // at most
	checkedPackets       = 1000      // at a time, at least
)

// generator opens the generator at a subject's place. port is the first source port of its flows.
func (s *stage) generator(
	ctx context.Context, x *subject, method stateless.Method, port uint16, flows int,
) (*stateless.Lab, error) {
	return stateless.Open(ctx, stateless.Config{
		Traffic: stateless.Traffic{
			Sources:          stateless.Addresses{First: clientNet.Addr().Next(), Count: clientAddresses},
			Destinations:     stateless.Addresses{First: serviceVIP},
			SourcePorts:      stateless.Ports{First: port, Last: lastPort},
			DestinationPorts: stateless.Ports{First: servicePort},
			Flows:            flows, Sizes: []stateless.Size{{Bytes: s.Frame, Weight: 1}},
			DestinationMAC: x.place.frontMAC(),
		},
		Tx: stateless.Tx{
			Port: stateless.Port{Interface: "eth0", Namespace: x.place.client}, Queues: min(s.Queues, flows),
			CPUs: s.CPUs, Together: s.Together, OwnNetwork: true,
		},
		Rx: s.receiver(x, method),
	})
}

// generating establishes and checks every flow, then runs use with the generator.
func (s *stage) generating(
	ctx context.Context, x *subject, f *figures, method stateless.Method, use func(*stateless.Lab) error,
) error {
	generate := func() error { return s.generate(ctx, x, f, method, use) }
	open := func() error { return s.openMany(ctx, x) }
	switch {
	case s.BothWays && s.many():
		return s.answering(x, func() error { return inTurn(open, generate) })
	case s.BothWays:
		return s.answering(x, generate)
	case s.many():
		if err := s.answering(x, open); err != nil {
			return err
		}
	}
	return generate()
}

func (s *stage) generate(
	ctx context.Context, x *subject, f *figures, method stateless.Method, use func(*stateless.Lab) error,
) (err error) {
	lab, err := s.generator(ctx, x, method, firstPort, s.Flows)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lab.Close()) }()
	flows, err := s.establish(ctx, x, lab)
	if err != nil {
		return err
	}
	f.flows = append(f.flows, flows)
	if s.Settle > 0 {
		if _, err := lab.Trial(ctx, stateless.Load{Rate: warmRate, Duration: s.Settle}); err != nil {
			return err
		}
	}
	return use(lab)
}

// establish sends packets of each flow slowly until all flows have arrived, warmTimes times at
// most, and returns how many flows arrived. It checks samples of the packets that arrive. Losses
// are no failure here: other processes may occupy the processor.
func (s *stage) establish(ctx context.Context, x *subject, lab *stateless.Lab) (flows int, err error) {
	load := warmLoad(uint64(max(warmRounds*s.Flows, checkedPackets)), warmRate)
	var r *stateless.Result
	for n := range warmTimes {
		if s.many() {
			load = warmLoad(uint64(s.Flows), rateOfTry(n))
		}
		if r, err = lab.Trial(ctx, load); err != nil {
			return 0, err
		}
		if v := r.Received.Violations; len(v) > 0 && x.kind.translates {
			return 0, fmt.Errorf("packets arrived wrong: %v", v)
		}
		if flows = max(flows, r.Received.Flows); flows == r.Sent.Flows {
			break
		}
	}
	if flows == 0 {
		return 0, fmt.Errorf("none of %d packets arrived at %.0f packets a second; %v", r.Sent.Packets, load.Rate,
			r.Drops)
	}
	samples, err := lab.Samples()
	if err != nil {
		return 0, err
	}
	if len(samples) == 0 {
		return 0, errors.New("no sample of received packets")
	}
	for _, frame := range samples {
		if err := s.checkFrame(frame, x); err != nil {
			return 0, err
		}
	}
	return flows, nil
}

// warmLoad is the load of a number of packets at a rate.
func warmLoad(packets uint64, rate float64) stateless.Load {
	const patience = 10 * time.Second
	return stateless.Load{Rate: rate, Packets: packets,
		Duration: patience + time.Duration(float64(packets)/rate*float64(time.Second))}
}

// inTurn calls functions until one fails.
func inTurn(list ...func() error) error {
	for _, f := range list {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

// checkFrame returns an error if the system did not treat a frame at the receiver as it should.
func (s *stage) checkFrame(frame []byte, x *subject) error {
	p := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.NoCopy)
	ip, isIP := p.Layer(layers.LayerTypeIPv4).(*layers.IPv4)
	udp, isUDP := p.Layer(layers.LayerTypeUDP).(*layers.UDP)
	if !isIP || !isUDP {
		return fmt.Errorf("a frame that is not UDP over IPv4 arrived: %x", frame)
	}
	src, _ := netip.AddrFromSlice(ip.SrcIP)
	dst, _ := netip.AddrFromSlice(ip.DstIP)
	got := fmt.Sprintf("%s:%d to %s:%d", src, udp.SrcPort, dst, udp.DstPort)
	if s.BothWays {
		if src != serviceVIP || udp.SrcPort != servicePort || !clientNet.Contains(dst) {
			return fmt.Errorf("an answer arrived from %s: want it from %s:%d to %s", got, serviceVIP, servicePort,
				clientNet)
		}
		return nil
	}
	if !x.kind.translates {
		if !clientNet.Contains(src) || dst != serviceVIP || udp.DstPort != servicePort {
			return fmt.Errorf("a packet arrived from %s: want it as it was sent, from %s to %s:%d", got, clientNet,
				serviceVIP, servicePort)
		}
		return nil
	}
	if want := s.sources(x.place); !slices.Contains(want, src) || !isEndpoint(dst) || udp.DstPort != endpointPort {
		return fmt.Errorf("a packet arrived from %s: want it from %v to port %d of an endpoint", got, want,
			endpointPort)
	}
	return nil
}

// measureThroughput sends as fast as the generator can, and then searches the no-drop rate.
func measureThroughput(ctx context.Context, s *stage, x *subject, _ *comparison, f *figures) error {
	return s.generating(ctx, x, f, stateless.Count, func(lab *stateless.Lab) error {
		r, used, lost, err := x.trial(ctx, lab, stateless.Load{Duration: s.Duration})
		if err != nil {
			return err
		}
		f.count(r, lost)
		cpu := missing
		if n := r.Received.Packets; n > 0 {
			cpu = float64(used.Busy) / float64(n)
		}
		f.cpu = append(f.cpu, cpu)
		if s.Quick || s.Rates {
			return nil
		}
		found, err := s.searchNoDrop(ctx, x, lab, r)
		if err != nil {
			return err
		}
		f.noDrop = append(f.noDrop, found.Rate)
		if found.Limited {
			f.limited++
		}
		return nil
	})
}

// trial offers a load, and returns the processor time used and the packets that interfaces and the
// system lost meanwhile.
func (s *subject) trial(
	ctx context.Context, lab *stateless.Lab, load stateless.Load,
) (r *stateless.Result, used procstat.Spent, lost losses, err error) {
	before, err := readLosses(ctx, s.place, s.system)
	if err != nil {
		return nil, used, nil, err
	}
	if r, used, err = timedTrial(ctx, lab, load); err != nil {
		return nil, used, nil, err
	}
	after, err := readLosses(ctx, s.place, s.system)
	return r, used, after.since(before), err
}

// timedTrial offers a load, and returns the processor time used.
func timedTrial(
	ctx context.Context, lab *stateless.Lab, load stateless.Load,
) (r *stateless.Result, used procstat.Spent, err error) {
	used, err = procstat.During(func() (err error) {
		r, err = lab.Trial(ctx, load)
		return err
	})
	return r, used, err
}

// trialAt is timedTrial at a rate; it returns an error if no packet arrives.
func (s *stage) trialAt(
	ctx context.Context, lab *stateless.Lab, rate float64,
) (r *stateless.Result, used procstat.Spent, err error) {
	r, used, err = timedTrial(ctx, lab, stateless.Load{Rate: rate, Duration: s.Duration})
	if err == nil && r.Received.Packets == 0 {
		err = fmt.Errorf("nothing arrived at %.0f packets a second", rate)
	}
	return r, used, err
}

// count adds a trial at the highest rate.
func (f *figures) count(r *stateless.Result, lost losses) {
	f.offered = append(f.offered, r.Sent.Rate())
	f.rate = append(f.rate, r.Rate())
	f.sent += r.Sent.Packets
	f.received += r.Received.Packets
	if f.lost == nil {
		f.lost = losses{}
	}
	for _, from := range [...]losses{lost, r.Drops} {
		for name, n := range from {
			f.lost[name] += n
		}
	}
	f.late += r.Received.Foreign
}

// measureCPU measures processor time of the whole machine at the common rate. It includes the
// generator, the receiver, and the cost of sleeping and waking up some ten thousand times a second,
// in a virtual machine several microseconds each, which a system inside the generator's system call
// avoids.
func measureCPU(ctx context.Context, s *stage, x *subject, c *comparison, f *figures) error {
	return s.generating(ctx, x, f, stateless.Count, func(lab *stateless.Lab) error {
		r, u, err := s.trialAt(ctx, lab, c.cpuRate)
		if err != nil {
			return err
		}
		n := float64(r.Received.Packets)
		f.cpuSame = append(f.cpuSame, float64(u.Busy)/n)
		f.user = append(f.user, float64(u.User)/n)
		f.system = append(f.system, float64(u.System)/n)
		f.interrupts = append(f.interrupts, float64(u.Interrupts)/n)
		f.delivered = append(f.delivered, 1-r.Loss())
		return nil
	})
}

// measureCost takes all measurements below the limit.
func measureCost(ctx context.Context, s *stage, x *subject, c *comparison, f *figures) error {
	if err := measureCPU(ctx, s, x, c, f); err != nil {
		return err
	}
	return measureLatency(ctx, s, x, c, f)
}

// measureLatency sends at shares of the system's own no-drop rate.
func measureLatency(ctx context.Context, s *stage, x *subject, _ *comparison, f *figures) error {
	// Every packet's addresses, checksums and order are checked first, in a trial of their own: the
	// checking threads would take processor time from a worker, but none from a system inside the
	// generator's call. Answers cannot be checked this way: the generator's sockets use the
	// client's queues.
	if !s.BothWays && !s.many() {
		if err := s.generating(ctx, x, f, stateless.Full, func(*stateless.Lab) error { return nil }); err != nil {
			return err
		}
	}
	return s.generating(ctx, x, f, stateless.Timed, func(lab *stateless.Lab) error {
		most := median(f.noDrop)
		if most == 0 {
			return nil // no no-drop rate was found, so there are no shares of it
		}
		for _, load := range loads {
			r, err := lab.Trial(ctx, stateless.Load{Rate: most * float64(load) / 100, Duration: s.Duration})
			if err != nil {
				return err
			}
			if h := r.Received.Latency; h == nil || h.Count() == 0 {
				return fmt.Errorf("no latency at %d %% of %.0f packets a second", load, most)
			}
			add(&f.latency, load, r)
		}
		return nil
	})
}

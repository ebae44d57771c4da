package tail

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/bench/compare"
	"sluice.dev/sluice/bench/results"
	"sluice.dev/sluice/test/bed/stateless"
	"sluice.dev/sluice/test/bed/topo"
)

// Config selects the systems, rates and packets.
type Config struct {
	compare.Config // Systems, Rows, Services, At, Duration, Repeat, ...
	// Worst is the number of slowest packets printed with their whole path.
	Worst int
}

// Defaults returns the defaults of the command.
func Defaults() Config {
	c := Config{Config: compare.Defaults(), Worst: 1}
	c.Systems = []string{"sluice", "nftables-rps"}
	c.Services, c.At, c.Repeat, c.Duration = []int{1}, []float64{20_000, 100_000, 200_000}, 1, 2*time.Second
	return c
}

// Run visits the systems, prints tables, and returns the results.
func Run(ctx context.Context, c Config) (*results.Run, error) {
	run := results.Begin("veth pairs without a bridge, native XDP, copy mode; offloads off")
	if len(c.At) == 0 {
		return nil, errors.New("no rate: name one, or several")
	}
	keep := int(slices.Max(c.At)*c.Duration.Seconds()) + 1000
	var found []*anatomy
	err := compare.Each(ctx, c.Config, keep, func(ctx context.Context, v *compare.Visit) error {
		for _, rate := range c.At {
			for range c.Repeat {
				a, err := c.look(ctx, v, rate)
				if err != nil {
					return err
				}
				found = append(found, a)
				a.print(c.Out, c.Worst)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, a := range found {
		run.Points = merge(run.Points, a.points(&c.Config))
	}
	return run, run.Finish(c.JSON)
}

// anatomy is the result of one recorded trial.
type anatomy struct {
	system  string
	senders compare.Senders
	rate    float64
	// plain is the unrecorded trial, traced the recorded one.
	plain, traced *stateless.Histogram
	groups        []group
	lost          uint64 // events
}

// group is the packets from one percentile on.
type group struct {
	name    string
	from    time.Duration // the fastest packet of the group
	ways    []Way         // slowest first
	packets int
}

// look runs an unrecorded trial and a recorded one.
func (c *Config) look(ctx context.Context, v *compare.Visit, rate float64) (a *anatomy, err error) {
	load := stateless.Load{Rate: rate, Duration: c.Duration}
	plain, err := trial(ctx, v.Lab, load)
	if err != nil {
		return nil, err
	}
	r, err := openRecorder(roomFor(rate, c.Duration), os.Getpid(), v.Process)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	if err := r.start(); err != nil {
		return nil, err
	}
	traced, err := trial(ctx, v.Lab, load)
	if err != nil {
		return nil, err
	}
	recorded, err := r.stop()
	if err != nil {
		return nil, err
	}
	s := setup{forwarder: v.Process, generator: os.Getpid()}
	if s.front, err = deviceOf(v.Gateway, v.Front); err != nil {
		return nil, err
	}
	for _, t := range traced.Sent.Threads {
		s.senders = append(s.senders, uint32(t))
	}
	an := newAnalysis(s, newTimeline(recorded), traced.Received.Arrivals)
	groups := an.groups(traced.Received.Arrivals)
	slowest := groups[len(groups)-1].ways
	for i := range slowest[:min(c.Worst, len(slowest))] {
		an.explain(&slowest[i])
	}
	return &anatomy{
		system: v.System, senders: v.Senders, rate: rate, plain: plain.Received.Latency,
		traced: traced.Received.Latency, lost: recorded.lost, groups: groups,
	}, nil
}

func trial(ctx context.Context, lab *stateless.Lab, load stateless.Load) (*stateless.Result, error) {
	r, err := lab.Trial(ctx, load)
	if err == nil && r.Received.Packets == 0 {
		err = fmt.Errorf("nothing arrived at %.0f packets a second", load.Rate)
	}
	return r, err
}

// roomFor is the number of events per CPU: a packet is sent, polled, forwarded and polled by the
// receiver, and each step may be a softirq of its own.
func roomFor(rate float64, d time.Duration) int {
	const each, others = 12, 300_000 // events per packet; other events per second
	const beside = 500 * time.Millisecond
	return int((each*rate + others) * (d + beside).Seconds())
}

// deviceOf finds an interface of a host, identified as in events.
func deviceOf(h *topo.Host, name string) (d device, err error) {
	err = h.Run(func() error {
		var s unix.Stat_t
		if err := unix.Stat("/proc/thread-self/ns/net", &s); err != nil {
			return fmt.Errorf("this thread's network namespace: %w", err)
		}
		dev, err := net.InterfaceByName(name)
		if err != nil {
			return fmt.Errorf("interface %s: %w", name, err)
		}
		d = device{space: uint32(s.Ino), index: uint32(dev.Index)}
		return err
	})
	return d, err
}

// percentile is the beginning of a group of packets.
type percentile struct {
	name string
	from float64
}

// percentilesOf are the groups; the packets of the last one are described in detail.
var percentilesOf = []percentile{{"p50", 50}, {"p99", 99}, {"p99.9", 99.9}}

// groups divides the paths of the packets beyond each percentile; at the median, of 1 % of the
// packets.
func (an *analysis) groups(packets []stateless.Arrival) (list []group) {
	type ranked struct {
		stateless.Arrival
		rank uint32
	}
	type burst struct {
		queue int
		sent  uint64
	}
	seen, all := map[burst]uint32{}, make([]ranked, 0, len(packets))
	for _, p := range packets {
		b := burst{int(p.Flow) % len(an.senders), p.Sent}
		all = append(all, ranked{p, seen[b]})
		seen[b]++
	}
	slices.SortStableFunc(all, func(a, b ranked) int { return byTook(b.Came-b.Sent, a.Came-a.Sent) })
	for _, p := range percentilesOf {
		n := int(float64(len(all)) * (100 - p.from) / 100)
		part := all[:min(max(n, 1), len(all))]
		if p.from == 50 { // about the median
			part = all[len(all)/2 : min(len(all)/2+max(len(all)/100, 1), len(all))]
		}
		g := group{name: p.name, packets: len(part)}
		for _, x := range part {
			g.ways = append(g.ways, an.way(x.Arrival, x.rank))
		}
		if len(part) > 0 {
			last := part[len(part)-1]
			g.from = time.Duration(last.Came - last.Sent)
		}
		list = append(list, g)
	}
	return list
}

func byTook(a, b uint64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

package stateful

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"strconv"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/bench/results"
)

// MemoryConfig is a run of both engines back to back on in-memory links, on one thread: it measures
// the generator itself.
type MemoryConfig struct {
	Window     time.Duration // of each measurement
	Repeat     int
	Concurrent int // connections held open in the second part
	Out        io.Writer
	Progress   io.Writer
}

// Targets for the engines.
const (
	targetCPS        = 100_000
	targetConcurrent = 1_000_000
)

// Memory runs and prints a table. The first part opens connections with one short request and
// answer, as many as possible; the second opens Concurrent connections and exchanges messages on
// all of them.
func Memory(ctx context.Context, c MemoryConfig) ([]results.Point, error) {
	if c.Window < 10*time.Millisecond || c.Repeat < 1 || c.Concurrent < 1000 || c.Concurrent > maxConns/4 {
		return nil, fmt.Errorf("windows of %s, %d of them, %d connections: at least 10ms, 1 and 1000 to %d are "+
			"possible",
			c.Window, c.Repeat, c.Concurrent, maxConns/4)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	setup, err := newPair(setupProfile())
	if err != nil {
		return nil, err
	}
	held, err := newPair(heldProfile(c.Concurrent))
	if err != nil {
		return nil, err
	}
	for _, e := range []*Engine{setup.client, setup.server, held.client, held.server} {
		e.shuffle()
	}
	m := memoryRun{MemoryConfig: c}
	if err := m.fill(ctx, held); err != nil {
		return nil, err
	}
	for k := range c.Repeat {
		fmt.Fprintf(c.Progress, "\r%d of %d, %s left ", k+1, c.Repeat,
			(2 * c.Window * time.Duration(c.Repeat-k)).Round(time.Second))
		s, err := m.window(ctx, setup)
		if err != nil {
			return nil, err
		}
		m.setup = append(m.setup, s)
		if s, err = m.window(ctx, held); err != nil {
			return nil, err
		}
		m.held = append(m.held, s)
	}
	fmt.Fprintf(c.Progress, "\r%40s\r", "")
	for _, r := range []*pair{setup, held} {
		if n := r.client.stats.Total(); n.Failures()+n.Violations > 0 {
			return nil, fmt.Errorf("on a perfect wire connections failed: %+v", n)
		}
	}
	points := m.points()
	return points, memoryTable(c.Out, points)
}

// shuffle puts the free records in random order. Otherwise connections that are opened, and later
// expire, one after the other would be adjacent in memory, and the processor would prefetch them,
// which does not happen with real traffic.
func (e *Engine) shuffle() {
	order := rand.New(rand.NewPCG(1, uint64(e.role))).Perm(len(e.conns) - 1)
	e.free = 0
	for _, i := range order {
		e.conns[i+1].next = e.free
		e.free = uint32(i + 1)
	}
}

// setupProfile opens connections with a single request, as many as possible.
func setupProfile() *Profile {
	p := memoryProfile("set-up", 10_000, Template{
		Name: "short", Protocol: ProtocolTCP, Port: 80, Share: 1, Close: Server, Timeout: 30 * time.Minute,
		Steps: []Step{{From: Client, Size: 100}, {From: Server, Size: 200}},
	})
	p.TCP.TimeWait = 100 * time.Millisecond
	return p
}

// heldProfile keeps connections open and lets them send requests faster than the engines can
// answer, so that all of them are always in use, in turn.
func heldProfile(concurrent int) *Profile {
	t := Template{Name: "held", Protocol: ProtocolTCP, Port: 9000, Share: 1, Timeout: 30 * time.Minute}
	for range 1000 {
		t.Steps = append(t.Steps, Step{From: Client, Size: 100, After: heldThink}, Step{From: Server, Size: 200})
	}
	return memoryProfile("held", concurrent, t)
}

const heldThink = time.Second

func memoryProfile(name string, concurrency int, t Template) *Profile {
	p := &Profile{Name: name, Duration: time.Hour, Concurrency: concurrency, Templates: []Template{t}}
	p.Clients, _ = ParsePool("10.81.0.1-10.81.0.64", "1024-65535") // both are constants
	p.Servers, _ = ParsePool("10.82.0.1-10.82.0.16", "")
	p.TCP.FirstRTO, p.TCP.MinRTO = time.Minute, time.Minute // a window may end during an exchange
	if err := p.Validate(); err != nil {
		panic("stateful: a built-in profile is wrong: " + err.Error())
	}
	return p
}

// memorySample is the measurement of one window.
type memorySample struct {
	seconds    float64 // of the whole loop, including the wire's copies
	engines    float64 // of both engines' steps
	packets    uint64  // sent and received by both engines: a packet on the wire counts twice
	completed  uint64
	concurrent int64
}

type memoryRun struct {
	MemoryConfig
	opened      float64 // connections opened per second
	setup, held []memorySample
}

// clock returns the time of the clock that workers use, in nanoseconds.
func clock() uint64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) // cannot fail for this clock
	return uint64(t.Nano())
}

// fill opens all held connections.
func (m *memoryRun) fill(ctx context.Context, r *pair) error {
	began := clock()
	const limit = 2 * time.Minute
	for n := 0; r.client.stats.Templates[0].Connected < uint64(m.Concurrent); n++ {
		now := clock()
		r.step(now)
		if now-began > uint64(limit) || ctx.Err() != nil {
			return fmt.Errorf("%d of %d connections after %s", r.client.stats.Templates[0].Connected, m.Concurrent,
				time.Duration(now-began))
		}
		if n%100_000 == 0 {
			fmt.Fprintf(m.Progress, "\r%d of %d connections are open ", r.client.stats.Templates[0].Connected,
				m.Concurrent)
		}
	}
	m.opened = float64(m.Concurrent) / (float64(clock()-began) / 1e9)
	return nil
}

// window runs a pair for one window. The time of the engines is measured separately from the
// wire's.
func (m *memoryRun) window(ctx context.Context, r *pair) (s memorySample, err error) {
	packets := func() uint64 {
		return r.client.stats.Packets.In + r.client.stats.Packets.Out + r.server.stats.Packets.In +
			r.server.stats.Packets.Out
	}
	r.step(clock()) // begins with the work that became due during the other pair's window
	began := clock()
	first, completed := packets(), r.client.stats.Templates[0].Completed
	end, engines := began+uint64(m.Window), uint64(0)
	now := began
	for now < end && ctx.Err() == nil {
		r.client.Step(now)
		after := clock()
		engines += after - now
		r.carry(Client, r.clientLink, r.serverLink)
		now = clock()
		r.server.Step(now)
		after = clock()
		engines += after - now
		r.carry(Server, r.serverLink, r.clientLink)
		now = clock()
	}
	s = memorySample{
		seconds: float64(now-began) / 1e9, engines: float64(engines), packets: packets() - first,
		completed: r.client.stats.Templates[0].Completed - completed, concurrent: r.client.stats.Templates[0].Active,
	}
	if s.packets == 0 && ctx.Err() == nil {
		return s, fmt.Errorf("no packet in a window of %s: use longer windows", m.Window)
	}
	return s, ctx.Err()
}

func (m *memoryRun) points() []results.Point {
	point := func(load, metric, unit, better string, target float64, samples []memorySample,
		f func(*memorySample) float64) results.Point {
		p := results.Point{
			Experiment: "stateful-memory", System: "generator", Metric: metric, Unit: unit, Better: better,
			Params: map[string]string{"load": load, "link": "memory", "threads": "1"},
		}
		for i := range samples {
			p.Samples = append(p.Samples, f(&samples[i]))
		}
		if target > 0 {
			p.Target = &target
		}
		return p
	}
	perPacket := func(s *memorySample) float64 { return s.engines / float64(s.packets) } // never 0
	concurrent := point("held", "concurrent", "connections", "higher", min(targetConcurrent, float64(m.Concurrent)),
		m.held,
		func(s *memorySample) float64 { return float64(s.concurrent) })
	opened := point("held", "connections_per_second_while_opening", "1/s", "higher", 0, nil, nil)
	opened.Samples = []float64{m.opened}
	return []results.Point{
		point("set-up", "connections_per_second", "1/s", "higher", targetCPS, m.setup,
			func(s *memorySample) float64 { return float64(s.completed) / s.seconds }),
		point("set-up", "ns_per_packet", "ns", "lower", 0, m.setup, perPacket),
		concurrent, opened,
		point("held", "ns_per_packet", "ns", "lower", 0, m.held, perPacket),
		point("held", "packets_per_second", "1/s", "higher", 0, m.held,
			func(s *memorySample) float64 { return float64(s.packets) / s.seconds }),
	}
}

func memoryTable(out io.Writer, points []results.Point) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "load\tmetric\tmedian\ttarget\t")
	for i := range points {
		p := &points[i]
		target := ""
		if p.Target != nil {
			target = strconv.FormatFloat(*p.Target, 'f', 0, 64)
			if !p.Met() {
				target += " missed"
			}
		}
		fmt.Fprintf(w, "%s\t%s\t%.0f %s\t%s\t\n", p.Params["load"], p.Metric, p.Median(), p.Unit, target)
	}
	return w.Flush()
}

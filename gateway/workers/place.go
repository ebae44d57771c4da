package workers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/fastpath/thread"
	"sluice.dev/sluice/host/placement"
	"sluice.dev/sluice/internal/heartbeat"
	"sluice.dev/sluice/serve/status"
)

const (
	// Real-time threads on CPUs where packets arrive nap for crowdedNap at a time once they use
	// crowdedAt of a CPU, until they use less than roomyAt: the kernel's receive work then has the
	// CPU for longer, and a worker finds more packets when it wakes.
	crowdedAt, roomyAt = 0.60, 0.40
	crowdedNap         = 60 * time.Microsecond
)

// schedEvery is the period over which place measures how long threads waited for a CPU.
const schedEvery = time.Second

// place chooses where workers run first, and reports whether they may move later.
func (c *Config) place() (p placement.Placement, moves bool) {
	s := c.Settings
	return placement.First(&c.Machine, c.Plan.Workers, s.WorkerCPUs, s.Sockets.BusyPoll > 0)
}

// waiting returns how the workers of a CPU wait for packets, and why. known: the daemon knows on
// which CPUs packets arrive; arrive: they arrive on this one.
func waiting(c *config.Configuration, known, arrive bool) (fastpath.Waiting, string) {
	waits, why := config.WaitsOf(c.Waiting), string(c.Waiting)
	switch {
	case c.Waiting == config.WaitingShared:
	case c.Sockets.BusyPoll > 0:
		why += ", and workers poll the NIC themselves"
	case !known:
		waits, why = config.WaitsOf(config.WaitingShared), why+", but as shared until known where packets arrive"
	case arrive:
		waits, why = config.WaitsOf(config.WaitingShared), why+", but as shared where packets arrive"
	default:
		why += ", and no packets arrive here"
	}
	w := fastpath.Waiting{Spin: waits.Spin.D(), SpinAsWorked: waits.SpinAsWorked, Coalesce: waits.Coalesce.D(),
		Sleep: config.MaxSleep}
	bound := ""
	if w.SpinAsWorked {
		bound = ", but no longer than it worked on packets"
	}
	return w, fmt.Sprintf("polls for %v before it sleeps%s (%s)", w.Spin, bound, why)
}

// runners step the workers of a group; one runner steps all workers of a CPU. The order of calls is
// ready, begin, follow; they never run concurrently.
type runners struct {
	g        *Group
	life     context.Context // of the runners
	config   fastpath.RunConfig
	all      []*fastpath.Runner // one for each CPU that ever had workers; one for each worker without a CPU
	first    []*fastpath.Runner // by worker: the runner it begins on
	arrivals placement.Arrivals
	pause    placement.Pause // since workers moved last
	// second has CPU times for percent, taken once in schedEvery; look has them for load, taken at
	// every look. percent is, by runner, how much of the last schedEvery its thread waited for the
	// CPU.
	second, look cpuTimes
	percent      []float64
	// worked is, by worker, the time spent on packets at workedAt, in nanoseconds since the start.
	worked   []uint64
	workedAt time.Time
	// waitsAs is the priority for which the runners' waiting is set.
	waitsAs priority
	crowded bool // where packets arrive, a worker uses most of its CPU (crowdedAt)
}

// ready makes a runner for each worker, by the group's first placement.
func (r *runners) ready() error {
	for _, cpu := range r.g.placed.Load().CPUs {
		runner, err := r.on(cpu)
		if err != nil {
			return err
		}
		r.first = append(r.first, runner)
	}
	return nil
}

// begin starts the workers on their first runners.
func (r *runners) begin() {
	for id, w := range r.g.workers {
		r.first[id].Take(w.Worker)
	}
	r.wait()
}

// on returns the runner of a CPU, or a new one if the CPU is -1.
func (r *runners) on(cpu int) (*fastpath.Runner, error) {
	if at := slices.IndexFunc(r.all, func(x *fastpath.Runner) bool { return x.CPU() == cpu }); at >= 0 && cpu >= 0 {
		return r.all[at], nil
	}
	c := r.config
	c.CPU = cpu
	c.Waiting, _ = r.waitingOn(cpu)
	runner, err := fastpath.NewRunner(c)
	if err != nil {
		return nil, fmt.Errorf("workers: %w", err)
	}
	failed := make(chan error, 1)
	r.g.done.Add(1)
	go func() {
		defer r.g.done.Done()
		defer runner.Close()
		if err := runner.Run(r.life); err != nil {
			failed <- fmt.Errorf("workers: %w", err)
		}
	}()
	select {
	case err := <-failed:
		return nil, err
	case <-runner.Pinned():
	}
	r.all = append(r.all, runner)
	return runner, nil
}

// arrive returns the CPUs where packets arrive: by counters or, without them, by the interfaces'
// interrupts.
func (r *runners) arrive() []int {
	if cpus := r.arrivals.CPUs(); len(cpus) > 0 {
		return cpus
	}
	return r.g.c.Machine.Interrupts
}

func (r *runners) waitingOn(cpu int) (fastpath.Waiting, string) {
	arrive := r.arrive()
	beside := slices.Contains(arrive, cpu)
	w, why := waiting(r.g.c.Settings, len(arrive) > 0, beside)
	w.Quiet = r.waitsAs.realTime()
	if w.Quiet && r.crowded && beside {
		w.LongNap = crowdedNap
	}
	if r.waitsAs == realTimeBreaks {
		w.Break = breakLength
	}
	return w, why
}

// wait sets how each runner waits, by its CPU, and publishes the places of workers for the status.
func (r *runners) wait() {
	p := r.g.placed.Load()
	var views []status.PlaceView
	for i, runner := range r.all {
		cpu := runner.CPU()
		w, text := r.waitingOn(cpu)
		runner.Wait(w)
		v := status.PlaceView{CPU: cpu, Why: p.Why, Waiting: text, Arrive: slices.Contains(r.arrive(), cpu)}
		for id, at := range p.CPUs {
			if at == cpu && (cpu >= 0 || id == i) {
				v.Workers = append(v.Workers, id)
			}
		}
		if len(v.Workers) == 0 {
			continue
		}
		if tid := runner.Thread(); tid != 0 {
			v.ShortSlice = thread.ShortSlice(tid)
		}
		if i < len(r.percent) {
			v.WaitedPercent = r.percent[i]
		}
		views = append(views, v)
	}
	r.g.places.Store(&views)
}

// follow moves workers when packets arrive elsewhere, until ctx is done.
func (r *runners) follow(ctx context.Context) {
	late := false
	beat := r.g.c.Beats.Add("placement of workers", heartbeat.DefaultBounds)
	defer r.g.c.Beats.Remove(beat)
	defer r.g.precedence.end(r.config.Threads, r.waitAs)
	for {
		beat.Beat()
		select {
		case <-ctx.Done():
			return
		case now := <-time.After(r.arrivals.Next()):
			counts, err := r.g.c.Arrivals()
			if err != nil {
				r.g.c.Log.Warn("the CPUs where packets arrive cannot be read: workers no longer move", "error", err)
				return
			}
			asked := r.ask(now)
			late = r.arrivals.Look(counts) || late
			at := r.g.placed.Load().CPUs
			l := r.load(at)
			if late && r.pause.Over(now) {
				late = false
				r.choose(ctx, now)
				asked = true
			}
			w := r.whereabouts()
			if !slices.Equal(w.workers, at) {
				l.used, l.waited = -1, -1 // they were measured on other CPUs
			}
			if r.crowd(l.used, w.beside()) || asked {
				r.wait()
			}
			r.g.precedence.follow(r.config.Threads, w, l, r.waitAs)
		}
	}
}

// whereabouts returns where workers run and packets arrive now.
func (r *runners) whereabouts() whereabouts {
	return whereabouts{poll: r.g.c.Settings.Sockets.BusyPoll > 0, arrive: r.arrive(), workers: r.g.placed.Load().CPUs}
}

// crowd updates crowded: used is the share of a CPU that workers used, negative if unknown; beside
// reports that packets arrive on every worker's CPU. crowd returns whether crowded changed.
func (r *runners) crowd(used float64, beside bool) (changed bool) {
	was := r.crowded
	r.crowded = beside && (used >= crowdedAt || was && (used < 0 || used >= roomyAt))
	return r.crowded != was
}

// waitAs sets how runners wait for workers of a priority.
func (r *runners) waitAs(s priority) {
	if r.waitsAs != s {
		r.waitsAs = s
		r.wait()
	}
}

// load measures the workers' load since the last call. The first call measures nothing.
func (r *runners) load(cpus []int) load {
	now := time.Now()
	since := float64(now.Sub(r.workedAt))
	worked, on := make([]uint64, len(cpus)), map[int]uint64{}
	for id, w := range r.g.workers {
		worked[id] = w.block.BusyNanos.Load()
		if len(r.worked) > 0 {
			on[cpus[id]] += worked[id] - r.worked[id]
		}
	}
	r.worked, r.workedAt = worked, now
	l := load{idle: r.arrivals.Next() == placement.EveryIdle}
	unknown := false
	for i, s := range r.look.since(r.all) {
		cpu := r.all[i].CPU()
		if !slices.Contains(cpus, cpu) {
			continue
		}
		busy, ran := float64(on[cpu])/since, s.ran
		if r.waitsAs.realTime() {
			// In a step only softirqs interrupt a real-time thread. The kernel may count their time
			// separately (CONFIG_IRQ_TIME_ACCOUNTING).
			ran = max(ran, busy)
		} else if s.known && s.ran > 0 { // without ticks the kernel may count it later
			busy = min(busy, s.ran) // other threads may have run during a step
		}
		l.busy, l.used, l.waited = max(l.busy, busy), max(l.used, ran), max(l.waited, s.waited)
		unknown = unknown || !s.known
	}
	if unknown {
		l.waited = -1
		if l.used < fullBeside { // the worker that is not counted may use more
			l.used = -1
		}
	}
	return l
}

// choose places workers again, if they may move. It leaves out a CPU that became unusable, because
// it is offline or left the cpuset, until the daemon starts again.
func (r *runners) choose(ctx context.Context, at time.Time) {
	if !r.g.moves {
		return
	}
	log, m := r.g.c.Log, &r.g.c.Machine
	for {
		now := r.g.placed.Load().CPUs
		p := placement.Choose(m, len(r.g.workers), r.arrivals.ByPackets(now), true)
		if slices.Equal(p.CPUs, now) {
			r.g.placed.Store(&p)
			return
		}
		if slices.Contains(p.CPUs, -1) {
			return // no CPU is left: they stay
		}
		failed, err := r.move(ctx, &p)
		switch {
		case err == nil:
			r.pause.Begin(at)
			log.Info("workers moved", "cpus", p.CPUs, "because", p.Why)
			return
		case errors.Is(err, unix.EINVAL): // sched_setaffinity(2)
			log.Warn("workers no longer use a CPU, because it cannot be used", "cpu", failed, "error", err)
			m.Remove(failed)
		default:
			log.Warn("workers stay where they are", "wanted", p.CPUs, "because", p.Why, "error", err)
			return
		}
	}
}

// move hands the workers to the runners of a placement. If one of its CPUs cannot be used, no
// worker moves and move returns that CPU.
func (r *runners) move(ctx context.Context, p *placement.Placement) (failed int, err error) {
	to := make([]*fastpath.Runner, len(p.CPUs))
	for id, cpu := range p.CPUs {
		if to[id], err = r.on(cpu); err != nil {
			return cpu, err
		}
	}
	for id := range to {
		if err := r.g.Do(ctx, id, func(w *fastpath.Worker) { w.Hand(to[id]) }); err != nil {
			return -1, err
		}
	}
	r.g.placed.Store(p)
	return -1, nil
}

// ask measures, once in schedEvery, how long the runners' threads waited for a CPU, and reports
// whether it did.
func (r *runners) ask(now time.Time) bool {
	if now.Sub(r.second.at) < schedEvery {
		return false
	}
	r.percent = r.percent[:0]
	for _, s := range r.second.since(r.all) {
		r.percent = append(r.percent, 100*s.waited)
	}
	return true
}

// Places returns the CPUs with workers.
func (g *Group) Places() []status.PlaceView {
	if views := g.places.Load(); views != nil {
		return *views
	}
	return []status.PlaceView{} // the workers have not started
}

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
	// Real-time threads where packets arrive nap for crowdedNap at a time from crowdedAt of a CPU
	// on, until they use less than roomyAt: the receive work then has the CPU for longer at a time,
	// and a worker wakes up for more packets.
	crowdedAt, roomyAt = 0.60, 0.40
	crowdedNap         = 60 * time.Microsecond
)

// schedEvery is the time over which it is measured how long threads waited for others.
const schedEvery = time.Second

// place chooses where workers run at first, and says whether they may move later.
func (c *Config) place() (p placement.Placement, moves bool) {
	s := c.Settings
	return placement.First(&c.Machine, c.Plan.Workers, s.WorkerCPUs, s.Sockets.BusyPoll > 0)
}

// waiting returns how workers of a CPU wait, and why so. known says that it is known where packets
// arrive.
func waiting(c *config.Configuration, known, arrive bool) (fastpath.Waiting, string) {
	waits, why := c.Waits(), string(c.Waiting)
	switch {
	case c.Waiting == config.WaitingShared:
	case c.Sockets.BusyPoll > 0:
		why += ", and it polls the NIC itself"
	case !known:
		waits, why = config.WaitsOf(config.WaitingShared), why+", but as shared until it is known where packets arrive"
	case arrive:
		waits, why = config.WaitsOf(config.WaitingShared), why+", but as shared where packets arrive"
	default:
		why += ", and no packets arrive here"
	}
	w := fastpath.Waiting{Spin: waits.Spin.D(), SpinAsWorked: waits.SpinAsWorked, Coalesce: waits.Coalesce.D(),
		Sleep: c.Tuning.Sleep.D()}
	bound := ""
	if w.SpinAsWorked {
		bound = ", no longer than it works on packets"
	}
	return w, fmt.Sprintf("looks for packets for %v%s (%s)", w.Spin, bound, why)
}

// runners step the workers of a group, those of one CPU together. Its methods run one after
// another: ready, begin, and then follow.
type runners struct {
	g        *Group
	life     context.Context // of the runners
	config   fastpath.RunConfig
	all      []*fastpath.Runner // one for each CPU that ever had workers; more without a CPU
	first    []*fastpath.Runner // of each worker, to begin on
	arrivals placement.Arrivals
	pause    placement.Pause // since workers moved last
	// What threads did in the last schedEvery, in percent that they waited for others, and since
	// the last look.
	second, look cpuTimes
	percent      []float64
	// worked is, by worker, how long it had worked on packets at a time, in nanoseconds.
	worked   []uint64
	workedAt time.Time
	// restsAs is the standing for which runners rest.
	restsAs standing
	crowded bool // where packets arrive, a worker uses most of its CPU
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

// begin starts the workers on them.
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

// arrive returns the CPUs where packets arrive, counted or by the interrupts of interfaces.
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
	w.Quiet = r.restsAs.realTime()
	if w.Quiet && r.crowded && beside {
		w.LongNap = crowdedNap
	}
	if r.restsAs == realTimeBreaks {
		w.Break = breakLength
	}
	return w, why
}

// wait has every runner wait as its CPU asks for, and notes what is where.
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
	defer r.g.precedence.end(r.config.Threads, r.restAs)
	for {
		beat.Beat()
		select {
		case <-ctx.Done():
			return
		case now := <-time.After(r.arrivals.Next()):
			counts, err := r.g.c.Arrivals()
			if err != nil {
				r.g.c.Log.Warn("where packets arrive is not known: workers stay where they are", "error", err)
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
				l.used, l.waited = -1, -1 // that was elsewhere
			}
			if r.crowd(l.used, w.beside()) || asked {
				r.wait()
			}
			r.g.precedence.follow(r.config.Threads, w, l, r.restAs)
		}
	}
}

// whereabouts are those of now.
func (r *runners) whereabouts() whereabouts {
	return whereabouts{poll: r.g.c.Settings.Sockets.BusyPoll > 0, arrive: r.arrive(), workers: r.g.placed.Load().CPUs}
}

// crowd takes what part of a CPU workers used, below 0 if that is not known, and whether packets
// arrive on the CPUs of all. It reports whether crowded has changed.
func (r *runners) crowd(used float64, beside bool) (changed bool) {
	was := r.crowded
	r.crowded = beside && (used >= crowdedAt || was && (used < 0 || used >= roomyAt))
	return r.crowded != was
}

// restAs has runners rest as a standing needs it.
func (r *runners) restAs(s standing) {
	if r.restsAs != s {
		r.restsAs = s
		r.wait()
	}
}

// load measures what workers did since the last call; the first time nothing.
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
		if r.restsAs.realTime() {
			// Nobody has the CPU in a step but softirqs, which the kernel may count apart
			// (CONFIG_IRQ_TIME_ACCOUNTING).
			ran = max(ran, busy)
		} else if s.known && s.ran > 0 { // where there are no ticks, the kernel may count it later
			busy = min(busy, s.ran) // in a step, too, others may have had the CPU
		}
		l.busy, l.used, l.waited = max(l.busy, busy), max(l.used, ran), max(l.waited, s.waited)
		unknown = unknown || !s.known
	}
	if unknown {
		l.waited = -1
		if l.used < fullBeside { // of another one it may be more
			l.used = -1
		}
	}
	return l
}

// choose places workers anew, where they may move. A CPU that cannot be used any more, as it is
// offline or was taken out of the cpuset, is left out until the daemon starts again.
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
			log.Warn("no worker runs on a CPU that cannot be used", "cpu", failed, "error", err)
			m.Remove(failed)
		default:
			log.Warn("workers stay where they are", "wanted", p.CPUs, "because", p.Why, "error", err)
			return
		}
	}
}

// move hands the workers to the runners of a placement: all of them, or where a CPU cannot be used
// none. It returns that CPU.
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

// ask measures, once in schedEvery, how long the runners' threads waited for others, and reports
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

// Places are the CPUs with workers.
func (g *Group) Places() []status.PlaceView {
	if views := g.places.Load(); views != nil {
		return *views
	}
	return []status.PlaceView{} // they have not begun
}

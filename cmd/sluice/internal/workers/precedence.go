package workers

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/control/config"
	"sluice.dev/sluice/control/status"
	"sluice.dev/sluice/fastpath/thread"
	"sluice.dev/sluice/internal/autogroup"
)

// precedence is what the process goes before on its workers' CPUs. A thread of another session
// that the scheduler prefers, or that has had less than its share, keeps a CPU until the next tick
// of the kernel, 4 ms with HZ=250, and packets wait.
//
// The process goes before others only where no packets arrive on its workers' CPUs: what it goes
// before includes ksoftirqd, which receives them. And only while workers have time to spare: where
// they have none, packets wait for them and not for others, and ksoftirqd, which receives what they
// send over a veth, needs its share.
type precedence struct {
	session *autogroup.Session // nil: by whyNot
	whyNot  string             // the session stays as it is
	usual   int                // nice value of the workers otherwise
	sleeps  bool               // workers sleep between packets where they have time to
	refused string             // why workers are no real-time threads, though they sleep
	now     standing
	why     atomic.Pointer[string]
}

// standing is what workers, and the process, go before.
type standing uint8

const (
	// behind: the process is scheduled as others are.
	behind standing = iota
	// moderate: session and workers have the nice value moderateNice, and so leave others a tenth
	// of a worker's CPU (weights 9548 and 1024, sched_prio_to_weight in kernel/sched/core.c): one
	// that wants a good part of it goes on, and a sender of this machine, whose packets would
	// arrive there, is noticed.
	moderate
	// first: they have the nice value firstNice, and leave others one part in 88. Both values are
	// needed. The session's goes before other sessions; by the workers' own value the other threads
	// of the process get no more of other CPUs than they would have.
	first
	// atOnce: workers are real-time threads, before all others but not for long, as they sleep. By
	// nice values a thread that has slept does not always go before one that runs: if it had more
	// than its share before it slept, it waits for the next tick (EEVDF's lag, place_entity in
	// kernel/sched/fair.c).
	atOnce
)

const (
	moderateNice = -10
	firstNice    = -20
)

// open must be called before the process gives up the right to open files.
func (p *precedence) open(c *config.Configuration) {
	p.usual, p.sleeps = c.Tuning.WorkerNice, c.Waiting == config.WaitingShared
	session, err := openSession()
	if err != nil {
		p.whyNot = "not before others: " + err.Error()
	}
	p.session = session
	p.say("not before others: it is not known yet where packets arrive")
	if !p.able() {
		p.say(p.whyNot)
	}
}

// able reports whether the process can go before others at all.
func (p *precedence) able() bool { return p.session != nil || p.sleeps }

func openSession() (*autogroup.Session, error) {
	if !autogroup.Leads() {
		return nil, errors.New("this process does not lead its session, which has other programs; start it by a " +
			"service manager or setsid(1)")
	}
	return autogroup.Open()
}

func (p *precedence) say(why string) {
	if is := p.why.Load(); is == nil || *is != why {
		p.why.Store(&why)
	}
}

// load is how much workers had to do since the last look, each of the worker or CPU with most, in
// parts of the time.
type load struct {
	idle   bool    // no packets arrive
	busy   float64 // worked on packets
	used   float64 // had the CPU, or waited for it
	waited float64 // could run, and another thread had the CPU; below 0 if that is not known
}

const (
	// fullAt and spareAt are the parts from which on workers have no time to spare, and up to which
	// they have some again.
	fullAt  = 0.85
	spareAt = 0.70
	// wantedAt is the part of a worker's CPU that others get while somebody wants all of it and the
	// worker has firstNice, 1.1 %, less what two looks may miss of it.
	wantedAt = 0.008
	// littleAt is the part below which others want too little of it for moderateNice.
	littleAt = 0.03
)

// follow puts the process before others, or back.
func (p *precedence) follow(threads *thread.Group, w whereabouts, l load) {
	if !p.able() {
		return
	}
	why := p.decide(w, l)
	err := p.apply(threads)
	if err != nil && p.now == atOnce {
		p.refused, p.now = fmt.Sprintf("; %v", err), behind
		why = p.decide(w, l)
		err = p.apply(threads)
	}
	switch {
	case errors.Is(err, unix.EAGAIN): // tried again at the next look; until then nothing has changed
		return
	case err != nil:
		why = fmt.Sprintf("not before others: %v (it needs CAP_SYS_NICE)", err)
	}
	p.say(why)
}

// apply gives workers and session what belongs to the standing.
func (p *precedence) apply(threads *thread.Group) error {
	session, workers := 0, thread.Priority{Nice: p.usual}
	if p.session != nil {
		session = p.session.Usual()
	}
	switch p.now {
	case moderate:
		session, workers.Nice = min(moderateNice, session), min(moderateNice, p.usual)
	case first:
		session, workers.Nice = min(firstNice, session), min(firstNice, p.usual)
	case atOnce:
		workers = thread.Priority{RealTime: true}
	}
	// Workers first: else the other threads would go before others for a moment.
	if err := threads.SetPriority(workers); err != nil || p.session == nil {
		return err
	}
	return p.session.SetNice(session)
}

// decide sets the standing, and says why.
func (p *precedence) decide(w whereabouts, l load) (why string) {
	may, why := goesFirst(w)
	until := spareAt // workers have time to spare
	if p.now != behind {
		until = fullAt
	}
	sleep := spareAt // they sleep enough to be real-time threads
	if p.now == atOnce {
		sleep = fullAt
	}
	switch {
	case !may:
		p.now = behind
	case l.busy >= until:
		p.now, why = behind, "not before others: workers have no time to spare"
	case p.sleeps && p.refused == "" && !l.idle && l.used < sleep:
		p.now, why = atOnce, "before others, as real-time threads: workers sleep between packets, and no packets "+
			"arrive on their CPUs"
	case p.session == nil:
		p.now, why = behind, p.whyNot
	case p.now != moderate && p.now != first, // whether others want it is seen by what they get then
		p.now == moderate && (l.waited < 0 || l.waited >= littleAt),
		p.now == first && l.waited >= wantedAt:
		p.now, why = moderate, "before others but for a tenth of a CPU: another thread may want the CPU of a worker"
	default:
		p.now = first
	}
	return why + p.refused
}

// whereabouts are the CPUs of workers, and those where packets arrive.
type whereabouts struct {
	poll            bool // workers poll the NIC themselves
	arrive, workers []int
}

// goesFirst reports whether workers with time to spare may go before all others, and says why.
func goesFirst(w whereabouts) (first bool, why string) {
	shared := func(cpu int) bool { return cpu < 0 || slices.Contains(w.arrive, cpu) }
	switch {
	case w.poll:
		return true, "before others: workers poll the NIC themselves"
	case len(w.arrive) == 0:
		return false, "not before others: it is not known yet where packets arrive"
	case slices.ContainsFunc(w.workers, shared):
		return false, "not before others: packets arrive on CPUs of workers, and are received there by the kernel"
	}
	return true, "before others: no packets arrive on CPUs of workers"
}

// condition says in `sluice status` whether the process goes before others.
func (p *precedence) condition() []status.ConditionView {
	why := p.why.Load()
	if why == nil {
		return nil
	}
	return []status.ConditionView{status.OK("scheduling", *why)}
}

// MayGoFirst reports whether the process may go before others later, for which it needs
// CAP_SYS_NICE.
func (g *Group) MayGoFirst() bool { return g.precedence.able() }

// close leaves the session as it is: it ends with the process.
func (p *precedence) close() error {
	if p.session == nil {
		return nil
	}
	return p.session.Close()
}

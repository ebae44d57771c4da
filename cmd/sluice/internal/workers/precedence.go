package workers

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

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
	refused string             // why workers are no real-time threads
	now     standing
	looks   int     // since now is so
	waited  float64 // as load has it, of the last looks since then
	why     atomic.Pointer[string]
}

// standing is what workers, and the process, go before.
type standing uint8

const (
	// behind: the process is scheduled as others are.
	behind standing = iota
	// first: session and workers have the nice value firstNice, and leave others one part in 88 of
	// a worker's CPU (weights 88761 and 1024, sched_prio_to_weight in kernel/sched/core.c). Both
	// values are needed. The session's goes before other sessions; by the workers' own value the
	// other threads of the process get no more of other CPUs than they would have.
	first
	// withBreaks: workers are real-time threads, and leave others a part of the CPU when it suits.
	// By nice values others take their part as long as a tick at a time, a worker that wakes up may
	// wait as long (EEVDF's lag, place_entity in kernel/sched/fair.c), and one part in 88 is so
	// little that a sender of this machine, whose packets would arrive there, is not noticed.
	withBreaks
	// moderate is for where that is refused: they have the nice value moderateNice, which leaves
	// others a tenth.
	moderate
	// atOnce: workers are real-time threads that sleep between packets, and so leave others enough.
	atOnce
)

const (
	firstNice    = -20
	moderateNice = -10
	// breakFor is how long a worker leaves its CPU to others every half millisecond. With what it
	// takes to wake up that is more than the twentieth that the kernel takes from real-time threads
	// for others if they get less (fair_server, kernel/sched/deadline.c, Linux 6.12;
	// sched_rt_runtime_us before): for 50 ms at a time.
	breakFor = 30 * time.Microsecond
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
}

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
	// worker has firstNice, 1.1 %, less what looks may miss of it.
	wantedAt = 0.008
	// takenAt is the part that others take, where workers are scheduled as they are, from which on
	// packets wait for them.
	takenAt = 0.03
	// looksAgain is after how many looks, of 200 ms mostly, it is seen whether somebody still wants
	// the CPU.
	looksAgain = 50
)

// follow puts the process before others, or back, and reports whether anything changed.
func (p *precedence) follow(threads *thread.Group, w whereabouts, l load) (changed bool) {
	before := p.now
	why := p.decide(w, l)
	err := p.apply(threads)
	if err != nil && p.realTime() {
		p.refused, p.now = fmt.Sprintf("; %v", err), before
		why = p.decide(w, l)
		err = p.apply(threads)
	}
	switch {
	case errors.Is(err, unix.EAGAIN): // the session's, tried again at the next look
		return p.now != before
	case err != nil:
		why = fmt.Sprintf("not before others: %v (it needs CAP_SYS_NICE)", err)
	}
	p.say(why)
	return p.now != before
}

func (p *precedence) realTime() bool { return p.now == withBreaks || p.now == atOnce }

// takesBreaks is how long workers leave their CPU to others every half millisecond.
func (p *precedence) takesBreaks() time.Duration {
	if p.now == withBreaks {
		return breakFor
	}
	return 0
}

// apply gives workers and session what belongs to the standing.
func (p *precedence) apply(threads *thread.Group) error {
	session, workers := 0, thread.Priority{Nice: p.usual, RealTime: p.realTime()}
	if p.session != nil {
		session = p.session.Usual()
	}
	switch p.now {
	case first:
		session, workers.Nice = min(firstNice, session), min(firstNice, p.usual)
	case moderate:
		session, workers.Nice = min(moderateNice, session), min(moderateNice, p.usual)
	}
	// Workers first: else the other threads would go before others for a moment.
	if err := threads.SetPriority(workers); err != nil || p.session == nil {
		return err
	}
	return p.session.SetNice(session)
}

// decide sets the standing, and says why.
func (p *precedence) decide(w whereabouts, l load) (why string) {
	to, why := p.next(w, l)
	p.looks++
	if to != p.now {
		p.now, p.looks, p.waited = to, 0, 0
	}
	return why + p.refused
}

func (p *precedence) next(w whereabouts, l load) (to standing, why string) {
	may, why := goesFirst(w)
	if !may {
		return behind, why
	}
	until := spareAt // workers have time to spare
	if p.now != behind {
		until = fullAt
	}
	if l.busy >= until {
		return behind, "not before others: workers have no time to spare"
	}
	sleep := spareAt // they sleep enough to be real-time threads without breaks
	if p.now == atOnce {
		sleep = fullAt
	}
	if p.sleeps && p.refused == "" && !l.idle && l.used < sleep {
		return atOnce, "before others, as real-time threads: workers sleep between packets, and no packets arrive on " +
			"their CPUs"
	}
	return p.amongOthers(l, why)
}

// amongOthers is next where workers look for packets, with time to spare, and no packets arrive on
// their CPUs.
func (p *precedence) amongOthers(l load, apart string) (to standing, why string) {
	const weight = 4 // of the looks before
	if l.waited >= 0 {
		p.waited += (l.waited - p.waited) / weight
	}
	usually, wanted := first, wantedAt
	if p.session == nil {
		usually, wanted, apart = behind, takenAt, p.whyNot
	}
	switch {
	case p.now == withBreaks, p.now == moderate:
		if p.looks+1 >= looksAgain {
			return usually, apart
		}
		to = p.now
	case p.now != usually || p.waited < wanted:
		return usually, apart
	case p.refused == "":
		to = withBreaks
	case p.session != nil:
		to = moderate
	default:
		return behind, apart
	}
	if to == moderate {
		return to, "before others but for a tenth of a CPU, which another thread wants that is a worker's"
	}
	return to, "before others, as real-time threads that take breaks: another thread wants the CPU of a worker"
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

// close leaves the session as it is: it ends with the process.
func (p *precedence) close() error {
	if p.session == nil {
		return nil
	}
	return p.session.Close()
}

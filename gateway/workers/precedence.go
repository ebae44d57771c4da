package workers

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/fastpath/thread"
	"sluice.dev/sluice/host/autogroup"
	"sluice.dev/sluice/serve/status"
)

// precedence is what the process goes before on its workers' CPUs. A thread of another session
// that the scheduler prefers, or that has had less than its share, keeps a CPU until the next tick
// of the kernel, 4 ms with HZ=250, and packets wait.
//
// The process goes before others only while workers have time to spare: where they have none,
// packets wait for them and not for others, and ksoftirqd, which receives what they send over a
// veth, needs its share. Where packets arrive on workers' CPUs, others include what receives them,
// and what is received while the rings are full is lost work: workers go first, and sleep or nap
// whenever they have forwarded all of it.
type precedence struct {
	session session // nil: by whyNot
	whyNot  string  // the session stays as it is
	off     bool    // tuning.precedence: none
	usual   int     // nice value of the workers otherwise
	shared  bool    // workers sleep between packets wherever they are
	blind   bool    // the kernel does not count how long threads wait for others
	refused string  // why workers are no real-time threads
	now     standing
	looks   int     // since now is so
	waited  float64 // average of load.waited since then, the last looks counting most
	again   int     // after how many looks it is seen whether somebody still wants a worker's CPU
	full    int     // how many looks workers that had no time to spare are as others, at least
	held    int     // of these, still to come
	why     atomic.Pointer[string]
}

// session is what precedence needs of an autogroup.Session.
type session interface {
	Usual() int
	SetNice(nice int) error
	Close() error
}

// prioritizer is what it needs of a thread.Group.
type prioritizer interface {
	SetPriority(thread.Priority) error
}

// standing is how workers, and the process, go before others.
type standing uint8

const (
	// asOthers: the process is scheduled as others are.
	asOthers standing = iota
	// nice20: session and workers have the nice value -20, and leave others one part in 88 of a
	// worker's CPU, or more where there are several (weights 88761 and 1024, sched_prio_to_weight
	// in kernel/sched/core.c). Both values are needed. The session's goes before other sessions; by
	// the workers' own value the other threads of the process get no more of other CPUs than they
	// would have.
	nice20
	// nice10 is for where realTimeBreaks is refused: -10, which leaves others a tenth.
	nice10
	// realTime: workers are real-time threads that sleep between packets, and so leave others
	// enough. By nice values a thread that wakes up does not always go before one that runs: if it
	// had more than its share before it slept, it waits for the next tick (EEVDF's lag,
	// place_entity in kernel/sched/fair.c).
	realTime
	// realTimeBreaks: workers are real-time threads that look for packets all the time but for
	// breaks, which they take when no packets are waiting. By nice values others take their part as
	// long as a tick at a time, and one part in 88 is so little that a sender of this machine,
	// whose packets would arrive there, is not noticed.
	realTimeBreaks
)

// breakLength is how long a worker leaves its CPU to others every half millisecond. With what it
// takes to wake up that is more than the twentieth that the kernel takes from real-time threads for
// others if they get less (fair_server, kernel/sched/deadline.c, Linux 6.12; sched_rt_runtime_us
// before), for 50 ms at a time.
const breakLength = 40 * time.Microsecond

func (s standing) realTime() bool { return s == realTime || s == realTimeBreaks }

// nice is the nice value of the session, and of the workers unless they are real-time threads; 0
// is the usual one.
func (s standing) nice() int {
	switch s {
	case nice20:
		return -20
	case nice10:
		return -10
	}
	return 0
}

// open must be called before the process gives up the right to open files.
func (p *precedence) open(c *config.Configuration) {
	p.usual, p.shared = c.Tuning.WorkerNice, c.Waiting == config.WaitingShared
	if c.Tuning.Precedence == config.PrecedenceNone {
		p.off = true
		p.say("not before others: tuning.precedence is none")
		return
	}
	if session, err := openSession(); err == nil {
		p.session = session
	} else {
		p.whyNot = "not before others: " + err.Error()
	}
	if file, limited := quota(); limited {
		p.refused = "its processor time is limited (" + file + ")"
	}
	p.blind = !timeOf(os.Getpid()).known
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
	used   float64 // had the CPU; below 0 if that is not known
	waited float64 // could run, and another thread had the CPU; below 0 if that is not known
}

const (
	// fullAt and spareAt are the parts from which on workers have no time to spare, and up to which
	// they have some again.
	fullAt  = 0.85
	spareAt = 0.70
	// fullBeside and spareBeside are the same where packets arrive on workers' CPUs. There a
	// worker that has forwarded what there was leaves its CPU to the receive work, so it always has
	// time to spare, unless it works on packets that arrive elsewhere. More than the twentieth that
	// the kernel takes from real-time threads (breakLength) must be left.
	fullBeside  = 0.93
	spareBeside = 0.85
	// wantedAt is the part of a worker's CPU that others get while somebody wants all of it, at
	// nice20: 1.1 %, less what looks may miss of it.
	wantedAt = 0.008
	// takenAt is the part that others take, where workers are scheduled as they are, from which on
	// packets wait for them.
	takenAt = 0.03
	// holdLeast is for how many looks workers without time to spare are as others, at least.
	holdLeast = 5
	// looksAgain is the first, and looksMost the greatest, precedence.again: ten seconds, mostly,
	// and three minutes.
	looksAgain, looksMost = 50, 16 * 50
)

// follow puts the process before others, or back. rest is called with the standing that workers are
// to rest for, by breaks and quietly: before they become real-time threads, or after they have
// ceased to be.
func (p *precedence) follow(threads prioritizer, w whereabouts, l load, rest func(standing)) {
	if p.off {
		return
	}
	was := p.now
	why := p.decide(w, l)
	err := p.apply(threads, was, rest)
	if err != nil && p.now.realTime() && !errors.Is(err, errSession) {
		p.refused = err.Error()
		p.set(was)
		why = p.decide(w, l)
		err = p.apply(threads, was, rest)
	}
	switch {
	case err == nil, errors.Is(err, unix.EAGAIN): // the session's; tried again at the next look
	case errors.Is(err, errSession):
		err = fmt.Errorf("%w (it needs CAP_SYS_NICE)", err)
		_ = p.session.Close() // it is not written to again
		p.session, p.whyNot = nil, fmt.Sprintf("not before others: %v", err)
		fallthrough
	default:
		why = fmt.Sprintf("not before others: %v", err)
		was = p.now
		p.set(asOthers)
		_ = p.apply(threads, was, rest) // it was so
	}
	if p.refused != "" {
		why += "; no real-time threads: " + p.refused
	}
	p.say(why)
}

// end puts the process back, for when nobody looks any more.
func (p *precedence) end(threads prioritizer, rest func(standing)) {
	if p.off {
		return
	}
	was := p.now
	p.set(asOthers)
	const tries, pause = 3, 100 * time.Millisecond // of what the session takes later
	for range tries {
		if err := p.apply(threads, was, rest); !errors.Is(err, unix.EAGAIN) {
			break // what fails otherwise is as it was
		}
		time.Sleep(pause)
	}
	p.say("not before others: it is not looked at any more where packets arrive")
}

// errSession says that the session did not take a nice value.
var errSession = errors.New("its session")

// apply gives workers and session what belongs to the standing. On the way up workers have it
// first, on the way down the session: else the process's other threads would go before others for a
// moment.
func (p *precedence) apply(threads prioritizer, was standing, rest func(standing)) error {
	var late error
	session := func() error {
		if p.session == nil {
			return nil
		}
		err := p.session.SetNice(min(p.now.nice(), p.session.Usual()))
		if err != nil {
			return fmt.Errorf("%w: %w", errSession, err)
		}
		return nil
	}
	down := p.now.nice() > was.nice()
	if down {
		if late = session(); late != nil && !errors.Is(late, unix.EAGAIN) {
			return late
		}
	}
	if p.now.realTime() {
		rest(p.now)
	}
	err := threads.SetPriority(thread.Priority{Nice: min(p.now.nice(), p.usual), RealTime: p.now.realTime()})
	switch {
	case err != nil:
		rest(was)
		return err
	case !p.now.realTime():
		rest(p.now)
	}
	if down {
		return late
	}
	return session()
}

func (p *precedence) set(to standing) {
	if to != p.now {
		p.now, p.looks, p.waited = to, 0, 0
	}
}

// decide sets the standing, and says why.
func (p *precedence) decide(w whereabouts, l load) (why string) {
	to, why := p.next(w, l)
	p.looks++
	p.set(to)
	return why
}

func (p *precedence) next(w whereabouts, l load) (to standing, why string) {
	apart, why := goesFirst(w)
	spare, full := spareAt, fullAt
	if !apart {
		spare, full = spareBeside, fullBeside
	}
	if p.now != asOthers && p.looks >= looksAgain {
		p.full = 0
	}
	p.held = max(0, p.held-1)
	sleep := l.used >= 0 && l.used < spare && p.held == 0
	if p.now == realTime {
		switch sleep = l.used < full; {
		case sleep:
		case apart:
			p.hold()
		default: // as others they lose packets, and see at once that they have time
			p.held = holdLeast
		}
	}
	if (p.shared && apart || w.beside()) && p.refused == "" && !l.idle && sleep {
		return realTime, "before others, as real-time threads: workers sleep between packets"
	}
	const noTime = "not before others: workers have no time to spare"
	if !apart {
		if w.beside() && p.refused == "" && !l.idle && (l.used >= spare || p.held > 0) {
			why = noTime
		}
		return asOthers, why
	}
	switch {
	case p.now != asOthers && l.busy >= fullAt:
		p.hold()
		return asOthers, noTime
	case p.now == asOthers && (l.busy >= spareAt || p.held > 0):
		return asOthers, noTime
	}
	return p.amongOthers(l, why)
}

// hold keeps workers that have no time to spare as others for a while, twice as long each time:
// beside somebody else who gets half of the CPU they would seem to have time a moment later.
func (p *precedence) hold() {
	p.full = min(max(2*p.full, holdLeast), looksMost)
	p.held = p.full
}

// amongOthers is next where workers look for packets, with time to spare, and no packets arrive on
// their CPUs.
func (p *precedence) amongOthers(l load, apart string) (to standing, why string) {
	usually, wanted := nice20, wantedAt
	switch {
	case p.session == nil:
		usually, wanted, apart = asOthers, takenAt, p.whyNot
	case p.blind:
		usually = nice10
	}
	if p.now != usually && p.now != realTimeBreaks && p.now != nice10 {
		return usually, apart
	}
	const weight = 4 // of the looks before
	if l.waited >= 0 {
		p.waited += (l.waited - p.waited) / weight
	}
	switch {
	case p.now != usually: // it is left for a look, to see whether somebody still wants a CPU
		if p.looks+1 >= p.again {
			return usually, apart
		}
		to = p.now
	case p.waited < wanted:
		if p.looks+1 >= looksAgain {
			p.again = 0 // nobody does
		}
		return usually, apart
	case p.refused == "":
		to = realTimeBreaks
	case p.session != nil:
		to = nice10
	default:
		return asOthers, apart
	}
	if p.now == usually {
		p.again = min(max(2*p.again, looksAgain), looksMost)
	}
	if to == nice10 {
		return to, "before others but for a tenth of a CPU: another thread wants the CPU of a worker"
	}
	return to, "before others, as real-time threads that take breaks: another thread wants the CPU of a worker"
}

// whereabouts are the CPUs of workers, and those where packets arrive.
type whereabouts struct {
	poll            bool // workers poll the NIC themselves
	arrive, workers []int
}

// beside reports whether packets arrive on every worker's CPU.
func (w *whereabouts) beside() bool {
	return !w.poll && len(w.workers) > 0 && !slices.ContainsFunc(w.workers, func(cpu int) bool {
		return !slices.Contains(w.arrive, cpu)
	})
}

// goesFirst reports whether workers with time to spare may go before all others, and says why.
func goesFirst(w whereabouts) (first bool, why string) {
	shared := func(cpu int) bool { return cpu < 0 || slices.Contains(w.arrive, cpu) }
	switch {
	case slices.Contains(w.workers, -1):
		return false, "not before others: workers have no CPUs of their own"
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

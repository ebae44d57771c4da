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

// precedence raises the process's scheduling priority above the other processes of the machine.
// Without it, a thread of another session that the scheduler prefers, or that has had less than its
// share, keeps a worker's CPU until the kernel's next tick (4 ms with HZ=250), and packets wait.
//
// The priority is raised only while workers have time to spare. Busy workers would gain nothing,
// because packets then wait for the workers, and ksoftirqd, which receives what the workers send
// over a veth, needs its share. Where packets arrive on the workers' own CPUs, the kernel's receive
// work is among the threads that a raised priority delays, and packets that it receives while the
// rings are full are lost work. There, workers become real-time threads that sleep or nap whenever
// they have forwarded all packets.
type precedence struct {
	session         session // nil: see whyNot
	whyNot          string  // why the session's nice value is not changed
	off             bool    // tuning.precedence: none
	shared          bool    // workers sleep between packets wherever they are
	noSchedstat     bool    // the kernel does not count how long threads wait for others
	realTimeRefused string  // why workers are no real-time threads; "" if they may be
	noRealTime      string  // realTimeRefused at the start, or that there is no precedence
	now             priority
	looks           int     // number of looks since now was set
	waited          float64 // average of load.waited since then, weighted to the last looks
	recheckAfter    int     // at how many looks the usual priority is tried again (amongOthers)
	holdLooks       int     // for how many looks busy workers keep normal priority, at least
	holdLeft        int     // looks of holdLooks that are left
	why             atomic.Pointer[string]
}

// session is the part of autogroup.Session that precedence needs.
type session interface {
	Usual() int
	SetNice(nice int) error
	Close() error
}

// prioritizer is the part of thread.Group that precedence needs.
type prioritizer interface {
	SetPriority(thread.Priority) error
}

// priority is how the process and its workers are scheduled.
type priority uint8

const (
	// normal: the process is scheduled like other processes.
	normal priority = iota
	// nice20: session and workers have the nice value -20, and leave other threads one part in 88
	// of a worker's CPU, or more where there are several (weights 88761 and 1024,
	// sched_prio_to_weight in kernel/sched/core.c). Both values are needed: the session's puts it
	// ahead of other sessions; the workers' own value keeps the other threads of the process from
	// getting more of other CPUs than before.
	nice20
	// nice10 replaces realTimeBreaks where the kernel refuses that: -10 leaves other threads a
	// tenth.
	nice10
	// realTime: workers are real-time threads that sleep between packets, and so leave enough to
	// other threads. A nice value does not always let a thread that wakes run at once: if it had
	// more than its share before it slept, it waits for the next tick (EEVDF's lag, place_entity in
	// kernel/sched/fair.c).
	realTime
	// realTimeBreaks: workers are real-time threads that poll for packets without sleeping, but
	// take breaks when no packets are waiting. With nice values, other threads take their share for
	// up to a tick at a time; and one part in 88 is so little that a sender on this machine, whose
	// packets would arrive on that CPU, goes unnoticed.
	realTimeBreaks
)

// breakLength is how long a worker leaves its CPU to other threads every half millisecond. With the
// time to wake up that is more than the twentieth of the CPU that the kernel takes from real-time
// threads, 50 ms at a time, if other threads get less (fair_server in kernel/sched/deadline.c since
// Linux 6.12; sched_rt_runtime_us in older ones).
const breakLength = 40 * time.Microsecond

func (s priority) realTime() bool { return s == realTime || s == realTimeBreaks }

// nice returns the nice value of the session, and of the workers unless they are real-time threads;
// 0 is the usual one.
func (s priority) nice() int {
	switch s {
	case nice20:
		return -20
	case nice10:
		return -10
	}
	return 0
}

// open reads what precedence needs. It must run before the process drops the right to open files.
func (p *precedence) open(c *config.Configuration) {
	p.shared = c.Waiting == config.WaitingShared
	if c.Tuning.Precedence == config.PrecedenceNone {
		p.off, p.noRealTime = true, "tuning.precedence is none"
		p.report("normal priority: tuning.precedence is none")
		return
	}
	if session, err := openSession(); err == nil {
		p.session = session
	} else {
		p.whyNot = "normal priority: " + err.Error()
	}
	if file, limited := quota(); limited {
		p.realTimeRefused = "its processor time is limited (" + file + ")"
		p.noRealTime = p.realTimeRefused
	}
	p.noSchedstat = !timeOf(os.Getpid()).known
	p.report("normal priority: the CPUs where packets arrive are not known yet")
}

func openSession() (*autogroup.Session, error) {
	if !autogroup.Leads() {
		return nil, errors.New("this process does not lead its session, which has other programs; start it by a " +
			"service manager or setsid(1)")
	}
	return autogroup.Open()
}

func (p *precedence) report(why string) {
	if is := p.why.Load(); is == nil || *is != why {
		p.why.Store(&why)
	}
}

// load is the workers' load since the last look, in parts of the time: each field is the maximum
// over workers or their CPUs.
type load struct {
	idle   bool    // no packets arrive
	busy   float64 // worked on packets
	used   float64 // had the CPU; negative if unknown
	waited float64 // was runnable while another thread had the CPU; negative if unknown
}

const (
	// Workers have no time to spare from fullAt on, and have some again below spareAt.
	fullAt  = 0.85
	spareAt = 0.70
	// fullBeside and spareBeside replace them where packets arrive on the workers' CPUs. There a
	// worker that has forwarded all packets leaves its CPU to the receive work, so it has time to
	// spare unless it works on packets that arrive on other CPUs. More must be left than the
	// twentieth that the kernel takes from real-time threads (breakLength).
	fullBeside  = 0.93
	spareBeside = 0.85
	// wantedAt is the share of a worker's CPU that other threads get at nice20 while one of them
	// wants all of it: 1.1 %, less a margin for the part that looks miss.
	wantedAt = 0.008
	// takenAt is the share that other threads take, with workers at normal priority, from which on
	// packets wait for them.
	takenAt = 0.03
	// holdLeast is the least number of looks for which busy workers keep normal priority.
	holdLeast = 5
	// recheckLooks and maxLooks are the first and the greatest value of precedence.recheckAfter:
	// about ten seconds and three minutes.
	recheckLooks, maxLooks = 50, 16 * 50
)

// follow raises the priority of the process or takes it back. It calls rest with the priority whose
// waiting, with breaks or quiet, workers must use: before they become real-time threads, and after
// they have ceased to be.
func (p *precedence) follow(threads prioritizer, w whereabouts, l load, rest func(priority)) {
	if p.off {
		return
	}
	was := p.now
	why := p.decide(w, l)
	err := p.apply(threads, was, rest)
	if err != nil && p.now.realTime() && !errors.Is(err, errSession) {
		p.realTimeRefused = err.Error()
		p.set(was)
		why = p.decide(w, l)
		err = p.apply(threads, was, rest)
	}
	switch {
	case err == nil, errors.Is(err, unix.EAGAIN): // EAGAIN is the session's; the next look tries again
	case errors.Is(err, errSession):
		err = fmt.Errorf("%w (it needs CAP_SYS_NICE)", err)
		_ = p.session.Close() // nothing writes to it again
		p.session, p.whyNot = nil, fmt.Sprintf("normal priority: %v", err)
		fallthrough
	default:
		why = fmt.Sprintf("normal priority: %v", err)
		was = p.now
		p.set(normal)
		_ = p.apply(threads, was, rest) // this priority was applied before
	}
	if p.realTimeRefused != "" {
		why += "; no real-time threads: " + p.realTimeRefused
	}
	p.report(why)
}

// end takes the priority back, when no more looks follow.
func (p *precedence) end(threads prioritizer, rest func(priority)) {
	if p.off {
		return
	}
	was := p.now
	p.set(normal)
	const tries, pause = 3, 100 * time.Millisecond // for a session that accepts a value only later
	for range tries {
		if err := p.apply(threads, was, rest); !errors.Is(err, unix.EAGAIN) {
			break // other errors leave it unchanged
		}
		time.Sleep(pause)
	}
	p.report("normal priority: the placement of workers has ended")
}

// errSession marks an error of setting the session's nice value.
var errSession = errors.New("its session")

// apply sets the priority of workers and session. Workers are raised first and lowered last:
// otherwise the process's other threads would briefly run ahead of other processes.
func (p *precedence) apply(threads prioritizer, was priority, rest func(priority)) error {
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
	err := threads.SetPriority(thread.Priority{Nice: p.now.nice(), RealTime: p.now.realTime()})
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

func (p *precedence) set(to priority) {
	if to != p.now {
		p.now, p.looks, p.waited = to, 0, 0
	}
}

// decide sets the priority, and returns why.
func (p *precedence) decide(w whereabouts, l load) (why string) {
	to, why := p.next(w, l)
	p.looks++
	p.set(to)
	return why
}

func (p *precedence) next(w whereabouts, l load) (to priority, why string) {
	apart, why := goesFirst(w)
	spare, full := spareAt, fullAt
	if !apart {
		spare, full = spareBeside, fullBeside
	}
	if p.now != normal && p.looks >= recheckLooks {
		p.holdLooks = 0
	}
	p.holdLeft = max(0, p.holdLeft-1)
	sleep := l.used >= 0 && l.used < spare && p.holdLeft == 0
	if p.now == realTime {
		switch sleep = l.used < full; {
		case sleep:
		case apart:
			p.hold()
		default: // at normal priority they lose packets, and have time to spare at once
			p.holdLeft = holdLeast
		}
	}
	if (p.shared && apart || w.beside()) && p.realTimeRefused == "" && !l.idle && sleep {
		return realTime, "raised priority, as real-time threads: workers sleep between packets"
	}
	const noTime = "normal priority: workers have no time to spare"
	if !apart {
		if w.beside() && p.realTimeRefused == "" && !l.idle && (l.used >= spare || p.holdLeft > 0) {
			why = noTime
		}
		return normal, why
	}
	switch {
	case p.now != normal && l.busy >= fullAt:
		p.hold()
		return normal, noTime
	case p.now == normal && (l.busy >= spareAt || p.holdLeft > 0):
		return normal, noTime
	}
	return p.amongOthers(l, why)
}

// hold keeps busy workers at normal priority for a while, twice as long each time. Beside a thread
// that gets half of the CPU they would seem to have time a moment later.
func (p *precedence) hold() {
	p.holdLooks = min(max(2*p.holdLooks, holdLeast), maxLooks)
	p.holdLeft = p.holdLooks
}

// amongOthers returns the next priority of workers that poll for packets and have time to spare,
// while no packets arrive on their CPUs.
func (p *precedence) amongOthers(l load, apart string) (to priority, why string) {
	usually, wanted := nice20, wantedAt
	switch {
	case p.session == nil:
		usually, wanted, apart = normal, takenAt, p.whyNot
	case p.noSchedstat:
		usually = nice10
	}
	if p.now != usually && p.now != realTimeBreaks && p.now != nice10 {
		return usually, apart
	}
	const weight = 4 // of the earlier looks
	if l.waited >= 0 {
		p.waited += (l.waited - p.waited) / weight
	}
	switch {
	case p.now != usually: // usually is tried for one look, to see whether another thread still wants the CPU
		if p.looks+1 >= p.recheckAfter {
			return usually, apart
		}
		to = p.now
	case p.waited < wanted:
		if p.looks+1 >= recheckLooks {
			p.recheckAfter = 0 // no thread does
		}
		return usually, apart
	case p.realTimeRefused == "":
		to = realTimeBreaks
	case p.session != nil:
		to = nice10
	default:
		return normal, apart
	}
	if p.now == usually {
		p.recheckAfter = min(max(2*p.recheckAfter, recheckLooks), maxLooks)
	}
	if to == nice10 {
		return to, "raised priority, nice -10: another thread wants the CPU of a worker"
	}
	return to, "raised priority, as real-time threads with breaks: another thread wants the CPU of a worker"
}

// whereabouts has the CPUs of workers, and the CPUs where packets arrive.
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

// goesFirst reports whether workers with time to spare may have raised priority, and why.
func goesFirst(w whereabouts) (first bool, why string) {
	shared := func(cpu int) bool { return cpu < 0 || slices.Contains(w.arrive, cpu) }
	switch {
	case slices.Contains(w.workers, -1):
		return false, "normal priority: workers have no CPUs of their own"
	case w.poll:
		return true, "raised priority: workers poll the NIC themselves"
	case len(w.arrive) == 0:
		return false, "normal priority: the CPUs where packets arrive are not known yet"
	case slices.ContainsFunc(w.workers, shared):
		return false, "normal priority: the kernel receives packets on CPUs of workers"
	}
	return true, "raised priority: no packets arrive on CPUs of workers"
}

// condition returns the priority of the process, and why, for `sluice status`.
func (p *precedence) condition() []status.ConditionView {
	why := p.why.Load()
	if why == nil {
		return nil
	}
	return []status.ConditionView{status.OK("scheduling", *why)}
}

// close leaves the session's nice value unchanged: the session ends with the process.
func (p *precedence) close() error {
	if p.session == nil {
		return nil
	}
	return p.session.Close()
}

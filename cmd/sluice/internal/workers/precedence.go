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

// precedence is whether the process goes before others of the machine, and its workers before its
// other threads. A thread of another session that the scheduler prefers, or that has had less than
// its share, keeps a CPU until the next tick of the kernel, 4 ms with HZ=250, and packets wait.
//
// The process goes first only where no packets arrive on its workers' CPUs: what it goes before
// includes ksoftirqd, which receives them. And only while workers have time to spare: where they
// have none, packets wait for them and not for others, and ksoftirqd, which receives what they send
// over a veth, needs its share. Both values are needed. The session's goes before other
// sessions; by the workers' own value the other threads of the process get no more of other CPUs
// than they would have.
type precedence struct {
	session *autogroup.Session // nil: the process cannot go first
	usual   int                // nice value of the workers otherwise
	first   bool
	why     atomic.Pointer[string]
}

// firstNice is the nice value of session and workers where they go first. A worker that looks for
// packets all the time leaves others a tenth of its CPU (weights 9548 and 1024,
// sched_prio_to_weight in kernel/sched/core.c): threads of the kernel that are bound to it go on,
// and senders of this machine, whose packets would arrive there, are noticed.
const firstNice = -10

// open must be called before the process gives up the right to open files.
func (p *precedence) open(c *config.Configuration) {
	p.usual = c.Tuning.WorkerNice
	session, err := openSession()
	if err != nil {
		p.say("not before others: " + err.Error())
		return
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

// Parts of the time of a worker's CPU from which on workers have no time to spare, and up to which
// they have some again.
const (
	fullAt  = 0.85
	spareAt = 0.70
)

// follow puts the process first, or back. busy is the part of its time that the CPU with most work
// has worked on packets since the last call.
func (p *precedence) follow(threads *thread.Group, w whereabouts, busy float64) {
	if p.session == nil {
		return
	}
	why := p.decide(w, busy)
	session, nice := p.session.Usual(), p.usual
	if p.first {
		session, nice = min(firstNice, session), min(firstNice, nice)
	}
	// Workers first: else the other threads would go before others for a moment.
	err := threads.SetPriority(thread.Priority{Nice: nice})
	if err == nil {
		err = p.session.SetNice(session)
	}
	switch {
	case errors.Is(err, unix.EAGAIN): // tried again at the next look; until then nothing has changed
		return
	case err != nil:
		why = fmt.Sprintf("not before others: %v (it needs CAP_SYS_NICE)", err)
	}
	p.say(why)
}

// decide sets first, and says why.
func (p *precedence) decide(w whereabouts, busy float64) (why string) {
	may, why := goesFirst(w)
	switch {
	case !may || busy >= fullAt:
		p.first = false
	case busy < spareAt:
		p.first = true
	}
	if may && !p.first {
		why = "not before others: workers have no time to spare"
	}
	return why
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
func (g *Group) MayGoFirst() bool { return g.precedence.session != nil }

// close leaves the session as it is: it ends with the process.
func (p *precedence) close() error {
	if p.session == nil {
		return nil
	}
	return p.session.Close()
}

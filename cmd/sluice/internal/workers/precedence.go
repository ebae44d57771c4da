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
// includes ksoftirqd, which receives them. Both values are needed. The session's goes before other
// sessions; by the workers' own value the other threads of the process get no more of other CPUs
// than they would have.
type precedence struct {
	session *autogroup.Session // nil: the process cannot go first
	usual   int                // nice value of the workers otherwise
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

func (p *precedence) say(why string) { p.why.Store(&why) }

// follow puts the process first, or back, by where packets arrive.
func (p *precedence) follow(c *config.Configuration, threads *thread.Group, arrive, workers []int) {
	if p.session == nil {
		return
	}
	first, why := goesFirst(c.Sockets.BusyPoll > 0, arrive, workers)
	session, nice := p.session.Usual(), p.usual
	if first {
		session, nice = min(firstNice, session), min(firstNice, nice)
	}
	// Workers first: else the other threads would go before others for a moment.
	err := threads.SetNice(nice)
	if err == nil {
		err = p.session.SetNice(session)
	}
	switch {
	case errors.Is(err, unix.EAGAIN): // tried again at the next look
	case err != nil:
		why = fmt.Sprintf("not before others: %v (it needs CAP_SYS_NICE)", err)
	}
	p.say(why)
}

// goesFirst reports whether workers on these CPUs may go before all others, and says why.
func goesFirst(poll bool, arrive, workers []int) (first bool, why string) {
	shared := func(cpu int) bool { return cpu < 0 || slices.Contains(arrive, cpu) }
	switch {
	case poll:
		return true, "before others: workers poll the NIC themselves"
	case len(arrive) == 0:
		return false, "not before others: it is not known yet where packets arrive"
	case slices.ContainsFunc(workers, shared):
		return false, "not before others: packets arrive on CPUs of workers, and are received there by the kernel"
	}
	return true, "before others: no packets arrive on CPUs of workers"
}

// condition says whether the process goes before others.
func (p *precedence) condition() []status.ConditionView {
	why := p.why.Load()
	if why == nil {
		return nil
	}
	return []status.ConditionView{{Name: "scheduling", Level: "ok", Detail: *why}}
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

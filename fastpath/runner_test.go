package fastpath_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/fastpath/stats"
	"sluice.dev/sluice/fastpath/thread"
	"sluice.dev/sluice/internal/boottime"
	"sluice.dev/sluice/nat/header/headertest"
)

// running has runners with the workers of a lab. At first worker i is at runner i modulo their
// number.
type running struct {
	t       *testing.T
	l       *lab
	runners []*fastpath.Runner
	ended   chan error
	cancel  context.CancelFunc
}

func run(t *testing.T, l *lab, runners int, c fastpath.RunConfig) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r := &running{t: t, l: l, ended: make(chan error, runners), cancel: cancel}
	for range runners {
		runner, err := fastpath.NewRunner(c)
		if err != nil {
			t.Fatal(err)
		}
		r.runners = append(r.runners, runner)
	}
	for i, w := range l.workers {
		context.AfterFunc(ctx, w.Stop)
		r.runners[i%runners].Take(w.Worker)
	}
	for _, runner := range r.runners {
		go func() { r.ended <- runner.Run(ctx) }()
	}
	return r
}

// end stops all workers, and waits until the runners have ended.
func (r *running) end() {
	r.t.Helper()
	r.cancel()
	for _, runner := range r.runners {
		if err := <-r.ended; err != nil {
			r.t.Error(err)
		}
		defer runner.Close()
	}
}

// hand gives a worker to a runner.
func (r *running) hand(worker, to int) {
	r.t.Helper()
	if !r.l.workers[worker].Do(r.t.Context(), func(w *fastpath.Worker) { w.Hand(r.runners[to]) }) {
		r.t.Fatalf("worker %d does not answer", worker)
	}
}

// thread returns the thread that steps a worker.
func (r *running) thread(worker int) (tid int) {
	r.t.Helper()
	if !r.l.workers[worker].Do(r.t.Context(), func(*fastpath.Worker) { tid = unix.Gettid() }) {
		r.t.Fatalf("worker %d does not answer", worker)
	}
	return tid
}

// drained returns the number of packets that a worker has sent since the last call.
func (r *running) drained(worker int) (n int) {
	for _, frame := range drain(r.l.workers[worker].nic) {
		if frame != nil {
			n++
		}
	}
	return n
}

// TestRunnersHandWorkers: two workers move between two runners all the time. At any time one runner
// steps each, and they forward every packet once.
func TestRunnersHandWorkers(t *testing.T) {
	l := newLab(t, labConfig{workers: 2})
	r := run(t, l, 2, fastpath.RunConfig{CPU: -1,
		Waiting: fastpath.Waiting{Spin: 10 * time.Microsecond, Sleep: time.Second}})
	if a, b := r.thread(0), r.thread(1); a == b {
		t.Errorf("both workers are stepped by thread %d", a)
	}
	r.hand(1, 0)
	if a, b := r.thread(0), r.thread(1); a != b {
		t.Errorf("one runner has both workers, and threads %d and %d step them", a, b)
	}
	const rounds, packets = 400, 16
	var sent [2]int
	for round := range rounds {
		for w := range l.workers {
			r.hand(w, (round+w)%2)
			l.workers[w].Do(t.Context(), func(*fastpath.Worker) {
				sent[w] += r.drained(w)
				for i := range packets {
					l.workers[w].nic.Inject(headertest.UDP(join(client4, uint16(1024+i)), join(vip4, 53), "q").Bytes())
				}
			})
		}
	}
	r.end()
	for w := range l.workers {
		sent[w] += r.drained(w)
		if got := l.workers[w].stats.Rx.Load(); got != rounds*packets || sent[w] != rounds*packets {
			t.Errorf("worker %d received %d packets and sent %d, want %d of both", w, got, sent[w], rounds*packets)
		}
	}
}

// TestRunnerTakesAfterTheEnd: a runner that has ended takes no worker; the worker stays at its
// runner.
func TestRunnerTakesAfterTheEnd(t *testing.T) {
	l := newLab(t, labConfig{workers: 2})
	over, cancel := context.WithCancel(t.Context())
	cancel()
	ended, err := fastpath.NewRunner(fastpath.RunConfig{CPU: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer ended.Close()
	if err := ended.Run(over); err != nil {
		t.Fatal(err)
	}
	if ended.Take(l.workers[0].Worker) {
		t.Error("a runner that has ended took a worker")
	}
	r := run(t, l, 1, fastpath.RunConfig{CPU: -1, Waiting: fastpath.Waiting{Sleep: time.Second}})
	r.runners = append(r.runners, ended)
	was := r.thread(1)
	r.hand(1, 1)
	if is := r.thread(1); is != was {
		t.Errorf("thread %d steps the worker, before it was %d", is, was)
	}
	r.runners = r.runners[:1]
	r.end()
}

// TestRunnerWithoutItsCPU: a runner whose CPU does not exist ends with an error, and is never
// pinned.
func TestRunnerWithoutItsCPU(t *testing.T) {
	group, err := thread.NewGroup(thread.Priority{})
	if err != nil {
		t.Fatal(err)
	}
	r, err := fastpath.NewRunner(fastpath.RunConfig{CPU: 1 << 9, Threads: group})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := r.Run(t.Context()); err == nil {
		t.Error("no error")
	}
	select {
	case <-r.Pinned():
		t.Error("it is pinned")
	default:
	}
}

// TestRunnersEndWhileWorkersMove: if ctx is done while workers move, all runners end, and each
// worker is shut down: Do returns false, and the worker's generation is Offline.
func TestRunnersEndWhileWorkersMove(t *testing.T) {
	bound, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for range 50 {
		l := newLab(t, labConfig{workers: 2})
		r := run(t, l, 3, fastpath.RunConfig{CPU: -1,
			Waiting: fastpath.Waiting{Spin: time.Microsecond, Sleep: time.Minute}})
		var moving sync.WaitGroup
		for w := range l.workers {
			moving.Go(func() {
				for i := 0; ; i++ {
					if i == 20+w {
						go r.cancel() // while the workers go on moving
					}
					if !l.workers[w].Do(bound, func(x *fastpath.Worker) { x.Hand(r.runners[i%3]) }) {
						return
					}
				}
			})
		}
		moving.Wait()
		if bound.Err() != nil {
			t.Fatal("a worker was not shut down")
		}
		r.end()
		for w := range l.workers {
			if g := l.workers[w].stats.Generation.Load(); g != stats.Offline {
				t.Errorf("worker %d has ended and may use generation %d", w, g)
			}
		}
	}
}

// TestCall: every worker runs its function between two steps, or before its first step if it is not
// stepped yet. For a worker that has ended, Wait returns an error.
func TestCall(t *testing.T) {
	l := newLab(t, labConfig{workers: 2})
	ran := [2]int{}
	note := func(i int, _ *fastpath.Worker) { ran[i]++ }
	workers := []*fastpath.Worker{l.workers[0].Worker, l.workers[1].Worker}
	early, err := fastpath.Call(workers, note)
	if err != nil {
		t.Fatal(err)
	}
	if late, err := fastpath.Call(workers, note); err != nil || late.Wait(time.Millisecond) == nil {
		t.Errorf("without a runner: %v", err)
	}
	r := run(t, l, 1, fastpath.RunConfig{CPU: -1, Waiting: fastpath.Waiting{Sleep: time.Minute}})
	if err := early.Wait(10 * time.Second); err != nil || ran != [2]int{1, 1} {
		t.Errorf("%v, ran %v times", err, ran)
	}
	c, err := fastpath.Call(workers, note)
	if err == nil {
		err = c.Wait(10 * time.Second)
	}
	if err != nil || ran != [2]int{2, 2} {
		t.Errorf("%v, ran %v times", err, ran)
	}
	r.end()
	if c, err := fastpath.Call(workers, note); err != nil || c.Wait(10*time.Second) == nil || ran != [2]int{2, 2} {
		t.Errorf("after their end: %v, ran %v times", err, ran)
	}
}

// TestPausedRunnerSleeps: a runner whose workers are paused leaves its CPU at once, even with a
// long Spin.
func TestPausedRunnerSleeps(t *testing.T) {
	l := newLab(t, labConfig{})
	r := run(t, l, 1, fastpath.RunConfig{CPU: -1, Waiting: fastpath.Waiting{Spin: time.Hour, Sleep: time.Millisecond}})
	g := l.workers[0]
	step := func(f func(*fastpath.Worker)) {
		if !g.Do(t.Context(), f) {
			t.Fatal("the worker does not answer")
		}
	}
	step(func(*fastpath.Worker) {})
	if n := g.stats.IdleNanos.Load(); n != 0 {
		t.Fatalf("slept %d ns", n)
	}
	step(func(w *fastpath.Worker) { w.Pause() })
	for deadline := time.Now().Add(10 * time.Second); g.stats.IdleNanos.Load() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it does not sleep")
		}
	}
	step(func(w *fastpath.Worker) { w.Resume() })
	r.end()
}

// counted is a link that has unsent frames for a number of Flush calls, and counts calls.
type counted struct {
	fastpath.Link
	unsent          atomic.Int64 // Flush calls until all frames are sent
	flushes, probes atomic.Int64
}

func (l *counted) Unsent() bool { return l.unsent.Load() > 0 }

func (l *counted) Flush() {
	l.flushes.Add(1)
	l.unsent.Add(-1)
	l.Link.Flush()
}

func (l *counted) Probe() {
	l.probes.Add(1)
	l.Link.Probe()
}

// TestSleep: a sleeping worker wakes up for frames that the kernel has not taken yet, and probes
// its links after a sleep without packets.
func TestSleep(t *testing.T) {
	for _, c := range []struct {
		sleep  time.Duration
		unsent int64
		done   func(*counted) bool
	}{
		{time.Hour, 100, func(l *counted) bool { return l.unsent.Load() <= 0 && l.probes.Load() == 0 }},
		{5 * time.Millisecond, 0, func(l *counted) bool { return l.probes.Load() > 3 }},
	} {
		for _, quiet := range []bool{false, true} {
			l := newLab(t, labConfig{})
			r := run(t, l, 1, fastpath.RunConfig{CPU: -1, Waiting: fastpath.Waiting{Sleep: c.sleep, Quiet: quiet}})
			link := new(counted)
			link.unsent.Store(c.unsent)
			if !l.workers[0].Do(t.Context(), func(w *fastpath.Worker) {
				link.Link = w.SetLink(0, fastpath.NoLink{})
				w.SetLink(0, link)
			}) {
				t.Fatal("the worker does not answer")
			}
			for deadline := time.Now().Add(10 * time.Second); !c.done(link); time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("sleeps of %v, quiet %v: %d calls left after %d, %d probes", c.sleep, quiet,
						link.unsent.Load(), link.flushes.Load(), link.probes.Load())
				}
			}
			r.end()
		}
	}
}

// TestLoadOfASpinningWorker: a worker that spins between few packets has a low load.
func TestLoadOfASpinningWorker(t *testing.T) {
	l := newLab(t, labConfig{})
	r := run(t, l, 1, fastpath.RunConfig{CPU: -1, Waiting: fastpath.Waiting{Spin: time.Hour, Sleep: time.Second}})
	g := l.workers[0]
	const packets = 200
	for i := range packets {
		if !g.Do(t.Context(), func(*fastpath.Worker) {
			r.drained(0)
			g.nic.Inject(headertest.UDP(join(client4, uint16(1024+i)), join(vip4, 53), "q").Bytes())
		}) {
			t.Fatal("the worker does not answer")
		}
		time.Sleep(200 * time.Microsecond)
	}
	load := g.stats.Load(boottime.Nanos())
	r.end()
	if got := g.stats.Rx.Load(); got != packets {
		t.Errorf("received %d packets of %d", got, packets)
	}
	if load <= 0 || load > 0.5 {
		t.Errorf("load %.3f, with %v busy and %v asleep", load, time.Duration(g.stats.BusyNanos.Load()),
			time.Duration(g.stats.IdleNanos.Load()))
	}
}

package tail

import "sort"

// runsIn is the context of the code that a CPU runs.
type runsIn uint8

const (
	inThread runsIn = iota
	inSoftirq
	inInterrupt
)

// span is the activity of a CPU from a time on, until the next one.
type span struct {
	from    uint64
	thread  uint32 // the current thread; 0 is the idle loop
	context runsIn
	vector  uint32 // of a softirq, or the source of an interrupt
}

// state is the scheduling state of a thread.
type state uint8

const (
	unknown  state = iota
	running        // on a CPU
	runnable       // preempted, or it yielded
	asleep
	woken // but does not run yet
)

// change is the state of a thread from a time on, until the next one.
type change struct {
	from  uint64
	state state
	cpu   uint16 // the CPU on which it runs, or ran last
}

// called is a system call of a thread. to is the largest time if the call did not end.
type called struct {
	from, to uint64
	number   uint32
}

// poll is the end of a NAPI poll.
type poll struct {
	at     uint64
	before uint64 // packets that this NAPI took in earlier polls
	work   uint32
}

// timeline is a recording sorted by CPU, thread and NAPI.
type timeline struct {
	recording *recording
	cpus      map[uint16][]span
	states    map[uint32][]change
	calls     map[uint32][]called
	samples   map[uint32][]sample
	// polls are by interface and NAPI.
	polls map[device]map[uint64][]poll
}

// device is an interface of a network namespace.
type device struct{ space, index uint32 }

// wokenAlready is how long before a thread stops its next wake-up may be recorded: the waker on
// another CPU sees that the thread is about to stop.
const wokenAlready = 20_000

// newTimeline reads events in the order of time.
func newTimeline(r *recording) *timeline {
	t := &timeline{recording: r, cpus: map[uint16][]span{}, states: map[uint32][]change{},
		calls: map[uint32][]called{}, samples: map[uint32][]sample{}, polls: map[device]map[uint64][]poll{}}
	nested := map[uint16][]span{} // the spans that a softirq or an interrupt interrupted
	wakings := map[uint32]uint64{}
	for i := range r.events {
		e := &r.events[i]
		switch e.kind {
		case switched:
			t.cpus[e.cpu] = append(t.cpus[e.cpu], span{from: e.at, thread: e.other})
			nested[e.cpu] = nil
			next := change{from: e.at, state: asleep, cpu: e.cpu}
			switch at, ok := wakings[e.thread]; {
			case e.state == 0:
				next.state = runnable
			case ok && at+wokenAlready >= e.at:
				next.state = woken
			}
			t.change(e.thread, next)
			t.change(e.other, change{from: e.at, state: running, cpu: e.cpu})
		case waking:
			wakings[e.thread] = e.at
			if c := t.last(e.thread); c == nil || c.state == asleep {
				n := change{from: e.at, state: woken}
				if c != nil {
					n.cpu = c.cpu
				}
				t.change(e.thread, n)
			}
		case softirq, interrupt:
			if list := t.cpus[e.cpu]; len(list) > 0 {
				nested[e.cpu] = append(nested[e.cpu], list[len(list)-1])
				what := inSoftirq
				if e.kind == interrupt {
					what = inInterrupt
				}
				t.cpus[e.cpu] = append(list, span{from: e.at, thread: list[len(list)-1].thread, context: what,
					vector: e.state})
			}
		case softirqEnd, interruptEnd:
			if stack := nested[e.cpu]; len(stack) > 0 {
				back := stack[len(stack)-1]
				back.from = e.at
				nested[e.cpu] = stack[:len(stack)-1]
				t.cpus[e.cpu] = append(t.cpus[e.cpu], back)
			}
		case polled:
			d := device{e.thread, e.other}
			if t.polls[d] == nil {
				t.polls[d] = map[uint64][]poll{}
			}
			list := t.polls[d][e.id]
			p := poll{at: e.at, work: e.state}
			if n := len(list); n > 0 {
				p.before = list[n-1].before + uint64(list[n-1].work)
			}
			t.polls[d][e.id] = append(list, p)
		case call:
			t.calls[e.thread] = append(t.calls[e.thread], called{from: e.at, to: ^uint64(0), number: e.state})
		case sampled:
			t.samples[e.thread] = append(t.samples[e.thread], sample{at: e.at, work: r.works[e.state]})
		case callEnd:
			if list := t.calls[e.thread]; len(list) > 0 && list[len(list)-1].to == ^uint64(0) {
				list[len(list)-1].to = e.at
			}
		}
	}
	return t
}

func (t *timeline) last(thread uint32) *change {
	if list := t.states[thread]; len(list) > 0 {
		return &list[len(list)-1]
	}
	return nil
}

// change records a state. The idle loops of all CPUs share number 0, and have no state.
func (t *timeline) change(thread uint32, c change) {
	if thread != 0 {
		t.states[thread] = append(t.states[thread], c)
	}
}

// at returns the index of the last element of a list that begins at or before a time, or -1.
func at[T any](list []T, from func(*T) uint64, time uint64) int {
	return sort.Search(len(list), func(i int) bool { return from(&list[i]) > time }) - 1
}

func spanFrom(s *span) uint64     { return s.from }
func changeFrom(c *change) uint64 { return c.from }
func callFrom(c *called) uint64   { return c.from }
func pollAt(p *poll) uint64       { return p.at }

// spanAt is the activity of a CPU at a time. ok is false before the first event.
func (t *timeline) spanAt(cpu uint16, time uint64) (s span, ok bool) {
	list := t.cpus[cpu]
	i := at(list, spanFrom, time)
	if i < 0 {
		return span{}, false
	}
	return list[i], true
}

// stateAt is a thread's state at a time, and the CPU on which it runs, or will run next.
func (t *timeline) stateAt(thread uint32, time uint64) (state, uint16) {
	list := t.states[thread]
	i := at(list, changeFrom, time)
	if i < 0 {
		return unknown, 0
	}
	for _, next := range list[i:] {
		if next.state == running {
			return list[i].state, next.cpu
		}
	}
	return list[i].state, list[i].cpu
}

// callAt is the system call of a thread at a time.
func (t *timeline) callAt(thread uint32, time uint64) (c called, ok bool) {
	list := t.calls[thread]
	i := at(list, callFrom, time)
	if i < 0 || list[i].to <= time {
		return called{}, false
	}
	return list[i], true
}

// workAt is the work of a thread at a time, from the nearest sample between the surrounding system
// calls; "" if there is none.
func (t *timeline) workAt(thread uint32, time uint64) string {
	calls := t.calls[thread]
	from, to := uint64(0), ^uint64(0)
	k := at(calls, callFrom, time)
	if k >= 0 {
		from = calls[k].to
	}
	if k+1 < len(calls) {
		to = calls[k+1].from
	}
	return t.sampled(thread, time, from, to)
}

// turnAt is workAt for a thread for which others wait: its work in system calls is included.
func (t *timeline) turnAt(thread uint32, time uint64) string {
	return t.sampled(thread, time, time-min(time, 2*samplePeriod), time+2*samplePeriod)
}

// sampled is the work in the sample nearest to time, among the samples between from and to.
func (t *timeline) sampled(thread uint32, time, from, to uint64) string {
	list := t.samples[thread]
	i := at(list, sampleAt, time)
	before := i >= 0 && list[i].at >= from
	after := i+1 < len(list) && list[i+1].at < to
	switch {
	case before && (!after || time-list[i].at < list[i+1].at-time):
		return list[i].work
	case after:
		return list[i+1].work
	}
	return ""
}

// nextCall is the first system call of a number that a thread begins at or after a time.
func (t *timeline) nextCall(thread, number uint32, time uint64) (c called, ok bool) {
	list := t.calls[thread]
	for i := at(list, callFrom, time-1) + 1; i < len(list); i++ {
		if list[i].number == number {
			return list[i], true
		}
	}
	return called{}, false
}

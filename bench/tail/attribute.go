package tail

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/elastic/go-seccomp-bpf/arch"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/test/bed/stateless"
)

// Cause is the reason why a packet made no progress at some time.
type Cause uint8

// The causes, in the order of a packet's path.
const (
	Sender      Cause = iota // the generator, after it stamped the packet: running, or behind another thread
	Arrival                  // the softirq that receives for the gateway
	Asleep                   // the worker slept, and no wake-up had been sent
	WakeUp                   // it was woken, but its idle CPU did not run it yet
	Behind                   // it was runnable, and another thread had its CPU
	Interrupted              // a softirq or an interrupt ran on its CPU
	Work                     // it worked; in the kernel: forwarding
	Send                     // it was in a system call that sends
	Delivery                 // after that: the softirq that receives, for the receiver
	Unknown                  // the events do not show it
	causes
)

// String is the name of a cause in tables.
func (c Cause) String() string {
	return [...]string{"sender", "arrival", "asleep", "wake-up", "behind another", "interrupted", "work", "send",
		"delivery", "unknown"}[c]
}

// Part is an interval of a packet's path.
type Part struct {
	From, To uint64
	Cause    Cause
	// Detail is additional information: the thread, the softirq, or the system call in which the
	// worker slept.
	Detail string
	// Calls are the system calls that another thread of the forwarder began in this interval, if
	// the packet waited behind that thread; see explain.
	Calls string
}

// Way is the path of a packet, in parts without gaps.
type Way struct {
	stateless.Arrival
	Parts []Part
	// worker is the thread that forwarded it; 0 if unknown, or if the kernel forwarded it.
	worker uint32
}

// Took is the packet's latency in nanoseconds.
func (w *Way) Took() uint64 { return w.Came - w.Sent }

// setup describes the threads and interfaces of a recording.
type setup struct {
	senders   []uint32 // threads of the generator, by queue
	forwarder int      // the forwarding process; 0 if the kernel forwards
	generator int      // this process
	front     device   // the interface on which packets arrive
}

// analysis attributes the time of packets' paths to causes.
type analysis struct {
	setup
	*timeline
	queues  []uint64 // NAPIs of front, by queue; nil if unknown
	workers []uint32 // threads of the forwarder that forwarded packets
}

// newAnalysis finds the queues and the workers of a recording.
func newAnalysis(s setup, t *timeline, packets []stateless.Arrival) *analysis {
	an := &analysis{setup: s, timeline: t}
	// The queues of a veth are an array (struct veth_priv), so their addresses increase with their
	// numbers. A queue without packets has no poll.
	for id, polls := range t.polls[s.front] {
		if last := polls[len(polls)-1]; last.before+uint64(last.work) > 0 {
			an.queues = append(an.queues, id)
		}
	}
	slices.Sort(an.queues)
	if len(an.queues) != len(s.senders) {
		an.queues = nil
	}
	if s.forwarder != 0 {
		an.findWorkers(packets)
	}
	return an
}

// findWorkers finds the threads of the forwarder during whose calls packets were received: other
// threads send, too, to netlink and to the status socket's clients.
func (an *analysis) findWorkers(packets []stateless.Arrival) {
	const few = 3
	times := map[uint32]int{}
	for i := range packets {
		on, ok := an.spanAt(uint16(packets[i].CPU), packets[i].Came)
		if !ok || an.recording.threads[on.thread].process != an.forwarder {
			continue
		}
		if c, ok := an.callAt(on.thread, packets[i].Came); ok && c.number == unix.SYS_SENDTO {
			times[on.thread]++
		}
	}
	for id, n := range times {
		if n >= few {
			an.workers = append(an.workers, id)
		}
	}
	slices.Sort(an.workers)
}

// way divides the path of a packet, the rank-th to arrive of the packets with its stamp and queue.
func (an *analysis) way(p stateless.Arrival, rank uint32) Way {
	w := Way{Arrival: p}
	queue := int(p.Flow) % len(an.senders)
	sender := an.senders[queue]
	sent, ok := an.nextCall(sender, unix.SYS_SENDTO, p.Sent)
	if !ok || sent.from > p.Came {
		w.parts(p.Sent, p.Came, []uint64{}, func(uint64) (Cause, string) { return Unknown, "no call of the sender" })
		return w
	}
	an.walk(&w, p.Sent, sent.from, an.causeOf(sender, Sender))
	if an.forwarder == 0 {
		an.walk(&w, sent.from, p.Came, an.inKernel(&p, sender))
		return w
	}
	arrived := min(an.arrived(queue, sent.from, rank), p.Came)
	an.walk(&w, sent.from, arrived, an.arriving(sender))
	worker, onward := an.sentBy(&p, arrived)
	if worker == 0 {
		an.walk(&w, arrived, p.Came, func(uint64) (Cause, string) { return Unknown, "no call of a worker" })
		return w
	}
	w.worker = worker
	an.walk(&w, arrived, onward, an.causeOf(worker, Work))
	an.walk(&w, onward, p.Came, an.delivering(worker, uint16(p.CPU)))
	return w
}

// arrived is the time when a queue's NAPI delivered the rank-th packet after from.
func (an *analysis) arrived(queue int, from uint64, rank uint32) uint64 {
	if an.queues == nil {
		return from
	}
	polls := an.polls[an.front][an.queues[queue]]
	first := at(polls, pollAt, from) + 1
	for i := first; i < len(polls); i++ {
		if polls[i].before+uint64(polls[i].work)-polls[first].before > uint64(rank) {
			return polls[i].at
		}
	}
	return from
}

// sentBy returns the worker that forwarded a packet, and the time when its call began: the worker
// in whose call the receiver's program ran, or else the first that sent after the packet had
// arrived.
func (an *analysis) sentBy(p *stateless.Arrival, arrived uint64) (worker uint32, from uint64) {
	if s, ok := an.spanAt(uint16(p.CPU), p.Came); ok && slices.Contains(an.workers, s.thread) {
		if c, ok := an.callAt(s.thread, p.Came); ok && c.number == unix.SYS_SENDTO && c.from >= arrived {
			return s.thread, c.from
		}
	}
	for _, id := range an.workers {
		c, ok := an.nextCall(id, unix.SYS_SENDTO, arrived)
		if ok && c.from <= p.Came && (worker == 0 || c.from < from) {
			worker, from = id, c.from
		}
	}
	return worker, from
}

// walk divides an interval at each event that may change the cause.
func (an *analysis) walk(w *Way, from, to uint64, cause func(uint64) (Cause, string)) {
	if from >= to {
		return
	}
	var cuts []uint64
	cut := func(t uint64) {
		if t > from && t < to {
			cuts = append(cuts, t)
		}
	}
	for _, list := range an.cpus {
		for i := max(at(list, spanFrom, from), 0); i < len(list) && list[i].from < to; i++ {
			cut(list[i].from)
		}
	}
	for _, id := range slices.Concat(an.workers, an.senders) {
		states := an.states[id]
		for i := max(at(states, changeFrom, from), 0); i < len(states) && states[i].from < to; i++ {
			cut(states[i].from)
		}
		calls := an.calls[id]
		for i := max(at(calls, callFrom, from), 0); i < len(calls) && calls[i].from < to; i++ {
			cut(calls[i].from)
			cut(calls[i].to)
		}
	}
	for _, samples := range an.samples {
		for i := max(at(samples, sampleAt, from), 0); i+1 < len(samples) && samples[i].at < to; i++ {
			cut((samples[i].at + samples[i+1].at + 1) / 2) // where the nearest sample changes
		}
	}
	slices.Sort(cuts)
	w.parts(from, to, slices.Compact(cuts), cause)
}

// parts appends the parts of an interval, and joins adjacent parts with equal cause and detail.
func (w *Way) parts(from, to uint64, cuts []uint64, cause func(uint64) (Cause, string)) {
	for _, end := range append(cuts, to) {
		c, detail := cause(from)
		if n := len(w.Parts); n > 0 && w.Parts[n-1].Cause == c && w.Parts[n-1].Detail == detail &&
			w.Parts[n-1].To == from {
			w.Parts[n-1].To = end
		} else {
			w.Parts = append(w.Parts, Part{From: from, To: end, Cause: c, Detail: detail})
		}
		from = end
	}
}

// causeOf returns the cause at a time for a thread that has to handle the packet. own is the cause
// if the thread runs its own code; if own is Sender, the cause is Sender in every state.
func (an *analysis) causeOf(id uint32, own Cause) func(uint64) (Cause, string) {
	return func(time uint64) (Cause, string) {
		c, detail := an.stateCause(id, own, time)
		if own == Sender && c != Sender {
			if detail != "" {
				detail = ": " + detail
			}
			return Sender, c.String() + detail
		}
		return c, detail
	}
}

func (an *analysis) stateCause(id uint32, own Cause, time uint64) (Cause, string) {
	s, cpu := an.stateAt(id, time)
	on, known := an.spanAt(cpu, time)
	c, inCall := an.callAt(id, time)
	switch {
	case s == unknown || !known:
		return Unknown, "no event of the thread"
	case s == asleep && inCall:
		return Asleep, callName(c.number)
	case s == asleep:
		return Asleep, ""
	case s != running && on.context == inThread && on.thread == 0:
		return WakeUp, ""
	case s != running && on.context == inThread && on.thread == id: // it is about to start
		return WakeUp, ""
	case s != running && on.context == inThread:
		name := an.nameOf(on.thread)
		if work := an.turnAt(on.thread, time); work != "" {
			name += ": " + work
		}
		return Behind, name
	case s != running:
		return Interrupted, on.name()
	case inCall && c.number == unix.SYS_SENDTO && on.context != inInterrupt:
		return Send, ""
	case on.context != inThread:
		return Interrupted, on.name()
	case inCall:
		return own, callName(c.number)
	}
	return own, an.workAt(id, time)
}

// arriving is for the interval from the generator's call until the packet is in the ring.
func (an *analysis) arriving(sender uint32) func(uint64) (Cause, string) {
	return func(time uint64) (Cause, string) {
		s, cpu := an.stateAt(sender, time)
		on, ok := an.spanAt(cpu, time)
		switch {
		case !ok:
			return Unknown, ""
		case on.context == inSoftirq && on.vector == netRX:
			return Arrival, ""
		case on.context != inThread:
			return Arrival, on.name()
		case s == running && on.thread == sender:
			return Sender, ""
		case on.thread == 0:
			return Arrival, "idle"
		}
		return Arrival, "behind " + an.nameOf(on.thread)
	}
}

// delivering is for the interval from the worker's call until the receiver has the packet.
func (an *analysis) delivering(worker uint32, cpu uint16) func(uint64) (Cause, string) {
	return func(time uint64) (Cause, string) {
		if c, ok := an.callAt(worker, time); ok && c.number == unix.SYS_SENDTO {
			return an.stateCause(worker, Send, time)
		}
		on, ok := an.spanAt(cpu, time)
		switch {
		case !ok:
			return Unknown, ""
		case on.context != inThread:
			return Delivery, on.name()
		case on.thread == 0:
			return Delivery, "idle"
		}
		return Delivery, "behind " + an.nameOf(on.thread)
	}
}

// inKernel is for the interval from the generator's call on, if the kernel forwards on the CPU on
// which the receiver's program runs.
func (an *analysis) inKernel(p *stateless.Arrival, sender uint32) func(uint64) (Cause, string) {
	return func(time uint64) (Cause, string) {
		on, ok := an.spanAt(uint16(p.CPU), time)
		s, cpu := an.stateAt(sender, time)
		_, sending := an.callAt(sender, time)
		sending = sending && s == running
		switch {
		case !ok:
			return Unknown, ""
		case on.context == inSoftirq && on.vector == netRX:
			return Work, ""
		case on.context != inThread:
			return Interrupted, on.name()
		case sending && (cpu == uint16(p.CPU) || on.thread == 0):
			return Sender, "sending"
		case on.thread == 0:
			return WakeUp, ""
		}
		return Behind, an.nameOf(on.thread)
	}
}

// explain adds to a way the work of the forwarder's other threads behind which the packet waited.
func (an *analysis) explain(w *Way) {
	for i := range w.Parts {
		p := &w.Parts[i]
		if p.Cause != Behind {
			continue
		}
		_, cpu := an.stateAt(w.worker, p.From)
		on, ok := an.spanAt(cpu, p.From)
		if !ok {
			continue
		}
		count := map[string]int{}
		list := an.calls[on.thread]
		for k := at(list, callFrom, p.From) + 1; k < len(list) && list[k].from < p.To; k++ {
			count[callName(list[k].number)]++
		}
		names := slices.SortedFunc(maps.Keys(count), func(a, b string) int {
			return cmp.Or(cmp.Compare(count[b], count[a]), cmp.Compare(a, b))
		})
		for k, name := range names[:min(len(names), mostCalls)] {
			if k > 0 {
				p.Calls += ", "
			}
			p.Calls += fmt.Sprintf("%s %d", name, count[name])
		}
	}
}

const mostCalls = 5 // named by a part

// nameOf names a thread, and its owner.
func (an *analysis) nameOf(id uint32) string {
	t, ok := an.recording.threads[id]
	switch {
	case !ok:
		return fmt.Sprintf("thread %d", id)
	case slices.Contains(an.senders, id):
		return "the generator"
	case t.process == an.generator:
		return "sluice-bench"
	case t.process == an.forwarder && slices.Contains(an.workers, id):
		return t.name + ", a worker's thread"
	case t.process == an.forwarder:
		return t.name + ", another thread"
	}
	return t.name
}

// name names the softirq, interrupt or thread that ran on a CPU instead of the waiting thread.
func (s *span) name() string {
	if s.context == inInterrupt {
		return [...]string{"device interrupt", "timer interrupt", "reschedule interrupt", "call interrupt"}[s.vector%4]
	}
	// The order of include/linux/interrupt.h.
	names := [...]string{"HI", "TIMER", "NET_TX", "NET_RX", "BLOCK", "IRQ_POLL", "TASKLET", "SCHED", "HRTIMER", "RCU"}
	if int(s.vector) < len(names) {
		return "softirq " + names[s.vector]
	}
	return fmt.Sprintf("softirq %d", s.vector)
}

// callName is a system call's name.
func callName(number uint32) string {
	if names, err := arch.GetInfo(""); err == nil {
		if name, ok := names.SyscallNumbers[int(number)]; ok {
			return name
		}
	}
	return fmt.Sprintf("system call %d", number)
}

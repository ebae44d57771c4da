package tail

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/test/bed/stateless"
)

// The processes and threads in the recordings of this file.
const (
	generator, forwarder       = 1, 2 // processes
	sender, worker, other, hog = 10, 20, 21, 30
	ksoftirqd                  = 31
	gatewaySpace, frontIndex   = 400, 5
	napi                       = 0xff00
)

var threads = map[uint32]thread{
	sender: {generator, "bench"}, worker: {forwarder, "sluice"}, other: {forwarder, "sluice"}, hog: {3, "hog"},
	ksoftirqd: {31, "ksoftirqd/1"},
}

// Work shown by the stacks of samples.
var works = map[uint32]string{1: "expiry", 2: "forwarding", 3: "Go: garbage collection"}

// Events, in microseconds.
func runs(at uint64, cpu uint16, from, to uint32, state uint32) event {
	return event{at: at * 1000, cpu: cpu, kind: switched, thread: from, other: to, state: state}
}
func wakes(at uint64, cpu uint16, id uint32) event {
	return event{at: at * 1000, cpu: cpu, kind: waking, thread: id}
}
func calls(at uint64, cpu uint16, id, number uint32) event {
	return event{at: at * 1000, cpu: cpu, kind: call, thread: id, state: number}
}
func returns(at uint64, cpu uint16, id uint32) event {
	return event{at: at * 1000, cpu: cpu, kind: callEnd, thread: id}
}
func soft(at uint64, cpu uint16, k kind, vector uint32) event {
	return event{at: at * 1000, cpu: cpu, kind: k, state: vector}
}
func samples(at uint64, cpu uint16, id, stack uint32) event {
	return event{at: at * 1000, cpu: cpu, kind: sampled, thread: id, state: stack}
}
func polls(at uint64, cpu uint16, packets uint32) event {
	return event{at: at * 1000, cpu: cpu, kind: polled, id: napi, thread: gatewaySpace, other: frontIndex,
		state: packets}
}

// sending is the generator's part: the stamp is at 100, the call from 102 to 110, and the gateway
// has the packet at 105.
func sending(first ...event) []event {
	return append(first,
		runs(0, 0, 0, sender, 0),
		calls(102, 0, sender, unix.SYS_SENDTO),
		soft(103, 0, softirq, netRX), polls(105, 0, 1), soft(105, 0, softirqEnd, netRX),
		returns(110, 0, sender))
}

// delivered is the worker's part: it sends from one time on, and the receiver has the packet 4 us
// later.
func delivered(at uint64) []event {
	return []event{
		calls(at, 1, worker, unix.SYS_SENDTO), soft(at+2, 1, softirq, netRX), soft(at+5, 1, softirqEnd, netRX),
		returns(at+6, 1, worker),
	}
}

func TestWay(t *testing.T) {
	for _, c := range []struct {
		name   string
		events [][]event
		came   uint64 // arrival of the packet, us
		cpu    uint32
		kernel bool
		want   []string
	}{
		{
			name: "a worker that polls", came: 154, cpu: 1,
			events: [][]event{sending(runs(0, 1, 0, worker, 0)), delivered(150)},
			want:   []string{"2 sender", "1 sender", "2 arrival", "45 work", "4 send"},
		},
		{
			name: "asleep, woken on an idle CPU", came: 154, cpu: 1,
			events: [][]event{sending(runs(0, 1, 0, worker, 0), calls(10, 1, worker, unix.SYS_PPOLL),
				runs(11, 1, worker, 0, 1)),
				{wakes(120, 0, worker), runs(140, 1, 0, worker, 0), returns(141, 1, worker)}, delivered(150)},
			want: []string{"2 sender", "1 sender", "2 arrival", "15 asleep: ppoll", "20 wake-up", "1 work: ppoll",
				"9 work", "4 send"},
		},
		{
			name: "woken behind a thread that goes on", came: 954, cpu: 1,
			events: [][]event{sending(runs(0, 1, 0, worker, 0), calls(10, 1, worker, unix.SYS_PPOLL),
				runs(11, 1, worker, hog, 1)),
				{wakes(120, 0, worker), runs(900, 1, hog, worker, 0), returns(901, 1, worker)}, delivered(950)},
			want: []string{"2 sender", "1 sender", "2 arrival", "15 asleep: ppoll", "780 behind another: hog",
				"1 work: ppoll", "49 work", "4 send"},
		},
		{
			name: "preempted by another thread of its process, and that one interrupted", came: 954, cpu: 1,
			events: [][]event{sending(runs(0, 1, 0, worker, 0)), {runs(120, 1, worker, other, 0),
				soft(200, 1, interrupt, 1), soft(210, 1, interruptEnd, 1), runs(900, 1, other, worker, 1)},
				delivered(950)},
			want: []string{"2 sender", "1 sender", "2 arrival", "15 work",
				"80 behind another: sluice, another thread", "10 interrupted: timer interrupt",
				"690 behind another: sluice, another thread", "50 work", "4 send"},
		},
		{
			name: "the waker comes just before the worker is asleep", came: 154, cpu: 1,
			events: [][]event{sending(runs(0, 1, 0, worker, 0), calls(98, 1, worker, unix.SYS_PPOLL)),
				{wakes(106, 0, worker), runs(107, 1, worker, 0, 1), runs(130, 1, 0, worker, 0),
					returns(131, 1, worker)}, delivered(150)},
			want: []string{"2 sender", "1 sender", "2 arrival", "2 work: ppoll", "23 wake-up", "1 work: ppoll",
				"19 work", "4 send"},
		},
		{
			name: "softirqs take the worker's CPU, and it sends other packets first", came: 954, cpu: 1,
			events: [][]event{sending(runs(0, 1, 0, worker, 0)),
				{soft(120, 1, softirq, 9), soft(420, 1, softirqEnd, 9)},
				{calls(500, 1, worker, unix.SYS_SENDTO), returns(600, 1, worker)}, delivered(950)},
			want: []string{"2 sender", "1 sender", "2 arrival", "15 work", "300 interrupted: softirq RCU", "80 work",
				"100 send", "350 work", "4 send"},
		},
		{
			name: "samples divide the work between two calls", came: 954, cpu: 1,
			events: [][]event{sending(runs(0, 1, 0, worker, 0)),
				{samples(200, 1, worker, 1), samples(300, 1, worker, 1), samples(400, 1, worker, 2)},
				{calls(500, 1, worker, unix.SYS_SENDTO), samples(550, 1, worker, 3), returns(600, 1, worker)},
				delivered(950)},
			want: []string{"2 sender", "1 sender", "2 arrival", "245 work: expiry", "150 work: forwarding",
				"100 send", "350 work", "4 send"},
		},
		{
			name: "samples show the work of another thread of its process", came: 954, cpu: 1,
			events: [][]event{sending(runs(0, 1, 0, worker, 0)), {runs(120, 1, worker, other, 0),
				samples(200, 1, other, 3), runs(900, 1, other, worker, 1)}, delivered(950)},
			want: []string{"2 sender", "1 sender", "2 arrival", "15 work",
				"780 behind another: sluice, another thread: Go: garbage collection", "50 work", "4 send"},
		},
		{
			name: "an interrupt in a softirq", came: 954, cpu: 1,
			events: [][]event{sending(runs(0, 1, 0, worker, 0)), {soft(120, 1, softirq, 9), soft(200, 1, interrupt, 1),
				soft(210, 1, interruptEnd, 1), soft(420, 1, softirqEnd, 9)}, delivered(950)},
			want: []string{"2 sender", "1 sender", "2 arrival", "15 work", "80 interrupted: softirq RCU",
				"10 interrupted: timer interrupt", "210 interrupted: softirq RCU", "530 work", "4 send"},
		},
		{
			name: "the generator is preempted after the stamp", came: 1154, cpu: 1,
			events: [][]event{{runs(0, 1, 0, worker, 0), runs(0, 0, 0, sender, 0), runs(101, 0, sender, hog, 0),
				runs(1101, 0, hog, sender, 1), calls(1102, 0, sender, unix.SYS_SENDTO), soft(1103, 0, softirq, netRX),
				polls(1105, 0, 1), soft(1105, 0, softirqEnd, netRX), returns(1110, 0, sender)}, delivered(1150)},
			want: []string{"1 sender", "1000 sender: behind another: hog", "2 sender", "2 arrival", "45 work",
				"4 send"},
		},
		{
			name: "ksoftirqd delivers, after a thread has had the CPU", came: 954, cpu: 1,
			events: [][]event{sending(runs(0, 1, 0, worker, 0)), {calls(120, 1, worker, unix.SYS_SENDTO),
				returns(130, 1, worker), runs(140, 1, worker, hog, 1), runs(950, 1, hog, ksoftirqd, 1),
				soft(951, 1, softirq, netRX)}},
			want: []string{"2 sender", "1 sender", "2 arrival", "15 work", "10 send",
				"10 delivery: behind sluice, a worker's thread", "810 delivery: behind hog",
				"1 delivery: behind ksoftirqd/1", "3 delivery: softirq NET_RX"},
		},
		{
			name: "the kernel forwards in the sender's call", came: 108, cpu: 0, kernel: true,
			events: [][]event{sending()},
			want:   []string{"2 sender", "1 sender: sending", "2 work", "3 sender: sending"},
		},
		{
			name: "the kernel forwards on another CPU, on which a thread masks interrupts", came: 604, cpu: 1,
			kernel: true,
			events: [][]event{sending(runs(0, 1, 0, hog, 0)), {soft(600, 1, softirq, netRX)}},
			want:   []string{"2 sender", "498 behind another: hog", "4 work"},
		},
		{
			name: "events are missing", came: 154, cpu: 1,
			events: [][]event{{runs(0, 0, 0, sender, 0)}},
			want:   []string{"54 unknown: no call of the sender"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := &recording{threads: threads, works: works, events: slices.Concat(c.events...)}
			slices.SortStableFunc(r.events, byTime)
			s := setup{senders: []uint32{sender}, forwarder: forwarder, generator: generator,
				front: device{gatewaySpace, frontIndex}}
			if c.kernel {
				s.forwarder = 0
			}
			p := stateless.Arrival{Sent: 100_000, Came: c.came * 1000, CPU: c.cpu}
			an := newAnalysis(s, newTimeline(r), nil)
			if !c.kernel {
				an.workers = []uint32{worker}
			}
			w := an.way(p, 0)
			var got []string
			at := p.Sent
			for _, part := range w.Parts {
				if part.From != at {
					t.Errorf("a part begins at %d, the one before ended at %d", part.From, at)
				}
				at = part.To
				got = append(got, fmt.Sprintf("%d %s", (part.To-part.From)/1000, label(part.Cause, part.Detail)))
			}
			if at != p.Came {
				t.Errorf("the parts end at %d, the packet came at %d", at, p.Came)
			}
			if !slices.Equal(got, join(c.want)) {
				t.Errorf("got\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(join(c.want), "\n\t"))
			}
		})
	}
}

// join adds adjacent parts with equal names: a way has none.
func join(list []string) (out []string) {
	var last string
	var sum int
	for _, s := range list {
		var n int
		_, _ = fmt.Sscan(s, &n)
		name := s[strings.Index(s, " ")+1:]
		if name == last {
			sum += n
			out[len(out)-1] = fmt.Sprintf("%d %s", sum, name)
			continue
		}
		last, sum = name, n
		out = append(out, s)
	}
	return out
}

// Packets with the same stamp arrive one after another, and a poll of two packets ends for both.
func TestArrived(t *testing.T) {
	r := &recording{threads: threads, events: []event{polls(10, 0, 5), polls(105, 0, 1), polls(107, 0, 2),
		polls(109, 0, 1)}}
	an := newAnalysis(setup{senders: []uint32{sender}, front: device{gatewaySpace, frontIndex}}, newTimeline(r), nil)
	for rank, want := range []uint64{105, 107, 107, 109} {
		if got := an.arrived(0, 102_000, uint32(rank)); got != want*1000 {
			t.Errorf("packet %d arrived at %d, want %d us", rank, got, want)
		}
	}
}

// A thread during whose calls packets are received is a worker; a thread that sends to netlink is
// not.
func TestFindWorkers(t *testing.T) {
	r := &recording{threads: threads, events: slices.Concat([]event{runs(0, 1, 0, worker, 0)}, delivered(150),
		delivered(250), delivered(350), []event{runs(400, 1, worker, other, 1),
			calls(401, 1, other, unix.SYS_SENDTO), returns(404, 1, other)})}
	an := newAnalysis(setup{senders: []uint32{sender}, forwarder: forwarder, front: device{gatewaySpace, frontIndex}},
		newTimeline(r), []stateless.Arrival{{Came: 154_000, CPU: 1}, {Came: 254_000, CPU: 1}, {Came: 354_000, CPU: 1},
			{Came: 403_000, CPU: 1}})
	if !slices.Equal(an.workers, []uint32{worker}) {
		t.Errorf("workers are the threads %v, want %d alone", an.workers, worker)
	}
}

// The detail names the work of a forwarder's thread behind which a packet waited.
func TestExplain(t *testing.T) {
	r := &recording{threads: threads, events: append(sending(runs(0, 1, 0, worker, 0)), runs(120, 1, worker, other, 0),
		calls(121, 1, other, unix.SYS_SOCKET), returns(122, 1, other), calls(123, 1, other, unix.SYS_SENDTO),
		returns(124, 1, other), calls(125, 1, other, unix.SYS_SENDTO), returns(126, 1, other),
		runs(900, 1, other, worker, 1), calls(950, 1, worker, unix.SYS_SENDTO), returns(960, 1, worker))}
	slices.SortStableFunc(r.events, byTime)
	an := newAnalysis(setup{senders: []uint32{sender}, forwarder: forwarder, front: device{gatewaySpace, frontIndex}},
		newTimeline(r), nil)
	an.workers = []uint32{worker}
	w := an.way(stateless.Arrival{Sent: 100_000, Came: 954_000, CPU: 1}, 0)
	an.explain(&w)
	var got []string
	for _, p := range w.Parts {
		if p.Calls != "" {
			got = append(got, label(p.Cause, p.Detail)+": "+p.Calls)
		}
	}
	if want := []string{"behind another: sluice, another thread: sendto 2, socket 1"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A part of the Go runtime in a stack has precedence, then the innermost known function of a
// worker.
func TestWorkOf(t *testing.T) {
	const step, loop = module + "fastpath.(*Worker).Step", module + "fastpath.(*Runner).loop"
	for _, c := range []struct {
		stack []string
		want  string
	}{
		{[]string{module + "flowtable.(*View).Sweep", module + "fastpath.(*Worker).expire", step, loop}, "expiry"},
		{[]string{module + "flowtable.(*View).Insert", module + "fastpath.(*Worker).admit",
			module + "fastpath.(*Worker).handleBatch", step, loop}, "new flows"},
		{[]string{"runtime.gcDrain", "runtime.gcAssistAlloc", "runtime.mallocgc", step, loop},
			"Go: garbage collection"},
		{[]string{step, loop}, "looks for packets"},
		{[]string{"syscall.Syscall", module + "host/neigh.list", module + "host/neigh.(*Table).Watch",
			"runtime.goexit"}, "host/neigh.list"},
		{[]string{"main.main"}, ""},
		{nil, ""},
	} {
		if got := workOf(c.stack); got != c.want {
			t.Errorf("%s is %q, want %q", c.stack, got, c.want)
		}
	}
}

package flowtable

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/test/bed/size"
)

// simulatedAnswers returns how many answers each part of a simulation checks, and whether all parts
// run. At 200 runs each simulation of this file checks 10,000,000 answers.
func simulatedAnswers(t *testing.T, parts int) (answers int, all bool) {
	n := size.Runs(t, 0, 50_000)
	switch {
	case n > 0:
		return n / parts, true
	case size.Race:
		return 125, false
	case testing.Short():
		return 3_000, false
	}
	return 20_000, false
}

// A udpServer decides how a backend answers a question that reaches it. reply appends the delays of
// the answers to after, or nothing for a question without an answer.
type udpServer struct {
	name  string
	reply func(rnd *rand.Rand, now Time, after []Time) []Time
	lost  float64 // part of the datagrams that are lost, in each direction
	// single: each socket asks one question. The table cannot distinguish an answer of several
	// datagrams from answers to several questions.
	single bool
}

const millisecond = second / 1000

// every returns a function of time that is true for the first part of each period.
func every(period, part Time) func(Time) (left Time, in bool) {
	return func(now Time) (Time, bool) {
		at := (now - bootTime) % period
		return part - min(at, part), at < part
	}
}

var udpServers = []udpServer{
	{name: "prompt", reply: func(rnd *rand.Rand, _ Time, after []Time) []Time {
		return append(after, Time(rnd.IntN(int(2*millisecond))))
	}},
	{name: "one of 100 late", reply: func(rnd *rand.Rand, _ Time, after []Time) []Time {
		if rnd.IntN(100) == 0 {
			return append(after, 4500*millisecond)
		}
		return append(after, millisecond)
	}},
	{name: "pauses for 5 s", reply: func(_ *rand.Rand, now Time, after []Time) []Time {
		left, paused := every(20*second, 5*second)(now)
		if !paused {
			left = 0
		}
		return append(after, left+millisecond)
	}},
	{name: "restarts", reply: func(_ *rand.Rand, now Time, after []Time) []Time {
		if _, down := every(7*second, second)(now); down {
			return after
		}
		return append(after, millisecond)
	}},
	{name: "slow", reply: func(rnd *rand.Rand, _ Time, after []Time) []Time {
		return append(after, Time(rnd.IntN(int(29*second))))
	}},
	{name: "lossy", lost: 0.05, reply: func(rnd *rand.Rand, _ Time, after []Time) []Time {
		return append(after, Time(rnd.IntN(int(20*millisecond))))
	}},
	{name: "answers in bursts", single: true, reply: func(rnd *rand.Rand, _ Time, after []Time) []Time {
		first := Time(rnd.IntN(int(2 * second)))
		for n := range 1 + rnd.IntN(4) {
			after = append(after, first+Time(n)*50*millisecond)
		}
		return after
	}},
}

// event is a datagram that arrives at the gateway: a question of a client, or the backend's answer.
type event struct {
	at     Time
	socket int    // of the client
	port   uint16 // of an answer: where the backend sends it; 0: a question
}

type events []event

func (e events) Len() int           { return len(e) }
func (e events) Less(i, j int) bool { return e[i].at < e[j].at }
func (e events) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)        { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

// udpSimulation has a thousand clients that ask one backend through a table with few ports.
type udpSimulation struct {
	t       *testing.T
	rnd     *rand.Rand
	server  udpServer
	tb      *Table
	h       *Handle
	now     Time
	ports   uint16
	pending events
	sockets []NewFlow // one for each socket of a client
	delays  []Time

	asked, refused, answers, unknown, wrong int
}

// open makes a client's socket, which asks its first question now.
func (s *udpSimulation) open() {
	n := uint32(len(s.sockets))
	f := newFlow(header.ProtoUDP, false, n)
	f.Client.Src, f.Client.SrcPort = addrN(false, 10, n%1000*97), uint16(1024+n/1000)
	f.Backend = addrN(false, 11, 1)
	f.Ports = Ports{First: 16384, Count: s.ports, Start: uint16(s.rnd.IntN(int(s.ports))), Stride: 257}
	kind := s.rnd.IntN(10)
	switch {
	case s.server.single:
	case kind == 0: // A and AAAA records, from one socket
		heap.Push(&s.pending, event{at: s.now + 1, socket: int(n)})
	case kind == 1: // a series, each question some time after the previous one
		for i := range s.rnd.IntN(6) {
			heap.Push(&s.pending, event{at: s.now + Time(i+1)*Time(s.rnd.IntN(int(2*second))), socket: int(n)})
		}
	}
	s.sockets = append(s.sockets, f)
	heap.Push(&s.pending, event{at: s.now, socket: int(n)})
}

// ask sends a question of a socket through the table to the backend, which answers.
func (s *udpSimulation) ask(n int) {
	f := &s.sockets[n]
	s.asked++
	r, side := s.h.lookup(&f.Client, s.now)
	if r == 0 {
		status := Created
		if r, status = s.h.Create(s.now, f); status != Created {
			s.refused++
			return
		}
		side = ClientSide
	}
	if side != ClientSide {
		s.t.Fatalf("a question on side %d", side)
	}
	s.h.Observe(r, ClientSide, Segment{}, s.now)
	if s.rnd.Float64() < s.server.lost {
		return
	}
	port := s.h.reply(r).DstPort
	s.delays = s.server.reply(s.rnd, s.now, s.delays[:0])
	for _, d := range s.delays {
		heap.Push(&s.pending, event{at: s.now + d, socket: n, port: port})
	}
}

// answer checks which client gets the answer to a socket's question.
func (s *udpSimulation) answer(e event) {
	if s.rnd.Float64() < s.server.lost {
		return
	}
	s.answers++
	f := &s.sockets[e.socket]
	reply := header.Tuple{Src: f.Backend, SrcPort: f.BackendPort, Dst: f.Source, DstPort: e.port,
		Proto: header.ProtoUDP}
	r, _ := s.h.lookup(&reply, s.now)
	if r == 0 {
		s.unknown++
		return
	}
	var to header.Tuple
	s.h.Outgoing(r, ReplySide, &to)
	if to.Dst != f.Client.Src || to.DstPort != f.Client.SrcPort {
		s.wrong++
	}
	s.h.Observe(r, ReplySide, Segment{}, s.now)
}

// run asks rate questions a second from new sockets, until there were answers answers.
func (s *udpSimulation) run(rate, answers int) {
	next, swept := s.now, s.now
	for s.answers < answers {
		if len(s.pending) == 0 || next <= s.pending[0].at {
			s.now = next
			next += second / Time(rate)
			s.enter(&swept)
			s.open()
			continue
		}
		e := heap.Pop(&s.pending).(event)
		s.now = max(s.now, e.at)
		s.enter(&swept)
		if e.port != 0 {
			s.answer(e)
		} else {
			s.ask(e.socket)
		}
	}
}

func (s *udpSimulation) enter(swept *Time) {
	s.h.Enter(s.now)
	if s.now-*swept > 10*millisecond {
		s.h.Sweep(s.now, s.tb.SweepQuota(time.Duration(s.now-*swept)))
		*swept = s.now
	}
}

// TestAnswersReachWhoAsked: for any rate, any number of ports and any behaviour of the backend, an
// answer reaches only the client that asked. If all holders of ports wait for their answers, Create
// fails for new questions.
func TestAnswersReachWhoAsked(t *testing.T) {
	rates, ranges := []int{1000, 4000, 16_000}, []uint16{2048, backendPorts}
	answers, all := simulatedAnswers(t, len(udpServers)*len(rates)*len(ranges))
	if !all {
		rates, ranges = []int{2000}, []uint16{2048}
	}
	for _, server := range udpServers {
		for _, rate := range rates {
			for _, ports := range ranges {
				t.Run(fmt.Sprintf("%s, %d a second, %d ports", server.name, rate, ports), func(t *testing.T) {
					tb, h := testTable(t, 200_000, 0)
					s := udpSimulation{t: t, rnd: rand.New(rand.NewPCG(testSeed(t), 1)), server: server, tb: tb, h: h,
						now: bootTime, ports: ports}
					s.run(rate, answers)
					taken := tb.Counts().PortsTaken[restingUDP]
					t.Logf("%d questions, %d refused; %d answers, %d to no flow, %d to another client; %d ports taken",
						s.asked, s.refused, s.answers, s.unknown, s.wrong, taken)
					if s.wrong > 0 {
						t.Errorf("%d of %d answers reached another client", s.wrong, s.answers)
					}
					validate(t, tb)
				})
			}
		}
	}
}

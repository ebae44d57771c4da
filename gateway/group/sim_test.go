package group

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/nat/header"
)

// runsVariable is how often faults are injected (package test/faults).
const runsVariable = "SLUICE_FAULT_RUNS"

const (
	simMembers = 2
	simSlots   = 4
	simPorts   = 2 // of each source address
)

// simFlow is a flow of the owner's table.
type simFlow struct {
	client, port uint16
	live, left   bool
}

// simMember is a member, its flow table, and the stream to it.
type simMember struct {
	alive   bool
	copies  *Copies
	table   map[header.Tuple]uint16 // clients by reply tuple
	lease   MemberLease
	stream  bool
	queue   []Message
	answers []answer
	heard   int64 // the latest time that the owner got from the member
	waiting OwnerLease
}

type answer struct {
	seq     uint64
	refused []uint64
}

func (m *simMember) Put(r *Record) Refusal     { m.table[r.Reply] = r.Client.SrcPort; return Accepted }
func (m *simMember) Remove(reply header.Tuple) { delete(m.table, reply) }

// simConnection is the backend's connection at a port.
type simConnection struct {
	client    uint16
	protected bool
	failures  int
}

// simulation is an owner, its members, a backend, and a clock. Its events are methods, which do
// nothing and return false where they cannot happen.
type simulation struct {
	*rand.Rand
	now         int64
	alive       bool
	incarnation uint64
	addresses   Addresses
	table       [simSlots]simFlow
	ledger      *Ledger
	members     [simMembers]*simMember
	backend     [2 * simPorts]simConnection
	clients     uint16
	kept        []*held // held ports of a killed process, in its file
	complete    bool    // as the killed process knew
	without     omission
	log         []string
}

// omission is a rule of ADR 37 that a simulation leaves out.
type omission int

const (
	nothing omission = iota
	holdPort
	keepHeld
	takeBack
	useSpare
	keepCopies
	waitForCopy
	waitForLease
)

func replyOf(port uint16) header.Tuple { return header.Tuple{DstPort: port + 1} }
func portOf(reply header.Tuple) uint16 { return reply.DstPort - 1 }

func newSimulation(seed uint64) *simulation {
	s := &simulation{Rand: rand.New(rand.NewPCG(seed, 0)), addresses: FirstAddresses(), complete: true, incarnation: 1}
	for i := range s.members {
		s.members[i] = &simMember{alive: true}
		s.members[i].forget()
	}
	s.start()
	return s
}

func (m *simMember) forget() {
	m.table = map[header.Tuple]uint16{}
	m.copies, m.lease = NewCopies(m), MemberLease{}
	m.cut()
}

func (m *simMember) cut() { m.stream, m.queue, m.answers = false, nil, nil }

// start makes the ledger of a new process.
func (s *simulation) start() {
	everybody := Members(1<<simMembers - 1)
	s.ledger = NewLedger(Config{Members: everybody, Slots: simSlots, Window: 4}, s.complete)
	for i := range s.table {
		if s.table[i].live {
			s.ledger.Recovered(uint32(i))
		}
	}
	for _, h := range s.kept {
		s.ledger.RecoveredHeld(h.slot, h.reply)
	}
	s.kept, s.alive = nil, true
	for _, m := range s.members {
		m.waiting = OwnerLease{}
		m.waiting.Heard(s.now)
	}
}

// read is the flow table as the ledger reads it.
func (s *simulation) read(slot uint32) (r Record, live bool) {
	f := &s.table[slot]
	return Record{Client: header.Tuple{SrcPort: f.client}, Reply: replyOf(f.port)}, f.live
}

func (s *simulation) slotOf(port uint16) (slot int, found bool) {
	for i := range s.table {
		if s.table[i].live && s.table[i].port == port {
			return i, true
		}
	}
	return 0, false
}

func (s *simulation) note(format string, args ...any) bool {
	s.log = append(s.log, fmt.Sprintf("%4d ms  ", s.now/int64(time.Millisecond))+fmt.Sprintf(format, args...))
	return true
}

// events are all events, each as often as it is to be chosen.
func (s *simulation) events() []func() bool {
	m := s.members[s.IntN(simMembers)]
	i := Member(0)
	if m == s.members[1] {
		i = 1
	}
	return []func() bool{
		s.newFlow, s.newFlow, s.endFlow, s.synAck, s.synAck,
		func() bool { return s.send(i, m) }, func() bool { return s.send(i, m) }, func() bool { return s.send(i, m) },
		func() bool { return s.deliver(i, m) }, func() bool { return s.deliver(i, m) },
		func() bool { return s.acknowledge(i, m) }, func() bool { return s.acknowledge(i, m) },
		func() bool { return s.connect(i, m) }, func() bool { return s.lose(i, m) },
		func() bool { return s.leaseEnds(i, m) }, func() bool { return s.keeperEnds(i, m) },
		s.wait, s.restart, func() bool { return s.memberStarts(i, m) },
		func() bool { return s.IntN(6) == 0 && s.fails(i, m) },
	}
}

func (s *simulation) wait() bool { s.now += s.Int64N(LeaseNanos / 2); return true }

func (s *simulation) newFlow() bool {
	port := uint16(s.IntN(2 * simPorts))
	slot := s.IntN(simSlots)
	if _, used := s.slotOf(port); used || !s.alive || s.table[slot].live ||
		s.ledger.Held(replyOf(port)) && s.without != holdPort ||
		s.addresses[port/simPorts] != Open {
		return false
	}
	s.clients++
	s.table[slot] = simFlow{client: s.clients, port: port, live: true}
	s.backend[port] = simConnection{client: s.clients}
	s.ledger.Begin(uint32(slot))
	return s.note("client %d gets port %d and slot %d", s.clients, port, slot)
}

func (s *simulation) endFlow() bool {
	slot := s.IntN(simSlots)
	f := &s.table[slot]
	if !s.alive || !f.live {
		return false
	}
	if s.backend[f.port].client == f.client {
		s.backend[f.port] = simConnection{}
	}
	s.note("the flow of client %d at port %d ends", f.client, f.port)
	f.live = false
	s.ledger.End(uint32(slot), replyOf(f.port))
	return true
}

func (s *simulation) synAck() bool {
	slot := s.IntN(simSlots)
	f := &s.table[slot]
	if !s.alive || !f.live || f.left {
		return false
	}
	v := s.ledger.Verdict(uint32(slot))
	if s.without == waitForCopy {
		v = Protected
	}
	if v == Wait && s.IntN(4) != 0 {
		return false
	}
	f.left = true
	if c := &s.backend[f.port]; c.client == f.client {
		c.protected = v == Protected
	}
	return s.note("the SYN-ACK to client %d leaves, verdict %d", f.client, v)
}

func (s *simulation) send(i Member, m *simMember) bool {
	if !s.alive || !m.stream || s.ledger.View(i) < Sending {
		return false
	}
	msgs := s.ledger.Send(i, s.read, nil, 1+s.IntN(3))
	m.queue = append(m.queue, msgs...)
	for _, msg := range msgs {
		client := msg.Record.Client.SrcPort
		s.note("the owner sends member %d kind %d, slot %d, client %d", i, msg.Kind, msg.Slot, client)
	}
	return len(msgs) > 0
}

func (s *simulation) deliver(i Member, m *simMember) bool {
	if !m.alive || !m.stream || len(m.queue) == 0 {
		return false
	}
	msg := m.queue[0]
	m.queue = m.queue[1:]
	a := answer{seq: msg.Seq}
	if m.copies.Apply(&msg) != Accepted {
		a.refused = []uint64{msg.Seq}
	}
	m.answers = append(m.answers, a)
	return s.note("member %d applies kind %d, slot %d", i, msg.Kind, msg.Slot)
}

// acknowledge: the owner gets one answer of the member.
func (s *simulation) acknowledge(i Member, m *simMember) bool {
	if !s.alive || !m.alive || !m.stream || s.ledger.View(i) < Sending || len(m.answers) == 0 {
		return false
	}
	a := m.answers[0]
	m.answers = m.answers[1:]
	s.ledger.Applied(i, a.seq, a.refused)
	return s.note("the owner hears that member %d has applied message %d", i, a.seq)
}

// beat: the owner gets a message of the member, or the member gets the owner's answer, or both.
func (s *simulation) beat(i Member, m *simMember) {
	if !s.alive || !m.alive || !m.stream || s.ledger.View(i) < Sending {
		return
	}
	if s.IntN(2) == 0 {
		m.heard = s.now
		m.waiting.Heard(s.now)
	}
	if s.IntN(2) == 0 && m.heard != 0 {
		m.lease.Heard(m.heard)
	}
}

func (s *simulation) connect(i Member, m *simMember) bool {
	if !s.alive || !m.alive || m.stream && s.ledger.View(i) >= Sending {
		return false
	}
	m.cut()
	m.stream, m.lease, m.heard = true, MemberLease{}, 0
	earlier := m.copies.Connected(s.incarnation)
	slices.SortFunc(earlier, func(a, b header.Tuple) int { return cmp.Compare(a.DstPort, b.DstPort) })
	if s.without == takeBack {
		earlier = nil
	}
	for _, reply := range earlier {
		slot, live := s.slotOf(portOf(reply))
		if !s.ledger.TakeBack(i, uint32(slot), live, reply) {
			for slot = 0; s.table[slot].live; slot++ {
			}
			s.table[slot] = simFlow{client: m.table[reply], port: portOf(reply), live: true, left: true}
			s.ledger.Begin(uint32(slot))
			s.ledger.TakeBack(i, uint32(slot), true, reply)
			s.note("the owner takes back client %d at port %d from member %d", m.table[reply], portOf(reply), i)
		}
	}
	s.ledger.Connected(i)
	m.waiting.Heard(s.now)
	return s.note("member %d connects", i)
}

// lose: the owner waits for the member no more once the lease has ended.
func (s *simulation) lose(i Member, m *simMember) bool {
	view := s.ledger.View(i)
	if !s.alive || m.stream && view >= Sending || view == Out || !m.waiting.Ended(s.now) && s.without != waitForLease {
		return false
	}
	s.ledger.Lost(i)
	return s.note("the owner takes member %d for out of step", i)
}

func (s *simulation) leaseEnds(i Member, m *simMember) bool {
	if !m.alive || !m.copies.InStep() || m.lease.Holds(s.now) {
		return false
	}
	m.copies.Lost()
	m.cut()
	if s.without == keepCopies {
		m.forget()
	}
	return s.note("member %d finds that its lease has run out, and closes the stream", i)
}

func (s *simulation) keeperEnds(i Member, m *simMember) bool {
	if s.alive || !m.alive {
		return false
	}
	for port := range s.backend {
		reply := replyOf(uint16(port))
		client, has := m.table[reply]
		if !has || s.IntN(4) != 0 {
			continue
		}
		delete(m.table, reply)
		m.copies.Ended(reply)
		if s.backend[port].client == client {
			s.backend[port] = simConnection{}
		}
		return s.note("member %d ends the flow of client %d", i, client)
	}
	return false
}

// fails: one failure of four kinds.
func (s *simulation) fails(i Member, m *simMember) bool {
	kind := s.IntN(4)
	if kind < 2 && !s.alive || kind >= 2 && !m.alive || kind == 3 && !m.stream {
		return false
	}
	for port := range s.backend {
		s.backend[port].failures++
	}
	switch kind {
	case 0:
		s.alive, s.complete = false, s.ledger.Complete()
		if s.without != keepHeld {
			s.kept = slices.Collect(maps.Values(s.ledger.held))
		}
		return s.note("the owner is killed")
	case 1:
		s.alive, s.complete, s.kept, s.table = false, false, nil, [simSlots]simFlow{}
		if s.without != useSpare {
			s.addresses.MemoryLost()
		}
		s.incarnation++
		return s.note("the owner loses its memory")
	case 2:
		m.alive = false
		m.forget()
		return s.note("member %d loses its memory", i)
	}
	m.cut()
	return s.note("the network to member %d is cut", i)
}

func (s *simulation) restart() bool {
	if s.alive {
		return false
	}
	s.start()
	return s.note("the owner starts")
}

func (s *simulation) memberStarts(i Member, m *simMember) bool {
	if m.alive {
		return false
	}
	m.alive = true
	return s.note("member %d starts", i)
}

// settle takes the consequences of an event.
func (s *simulation) settle() {
	if !s.alive || !s.ledger.Complete() {
		return
	}
	var inUse [2]bool
	for port := range uint16(len(s.backend)) {
		_, used := s.slotOf(port)
		inUse[port/simPorts] = inUse[port/simPorts] || used || s.ledger.Held(replyOf(port))
	}
	s.addresses.AllReached(inUse)
	if !s.ledger.Settled() {
		return
	}
	for _, m := range s.members {
		if !m.alive || !m.stream {
			return
		}
	}
	for i := range s.table {
		if f := &s.table[i]; f.live && f.left && s.backend[f.port].client == f.client {
			s.backend[f.port].protected, s.backend[f.port].failures = true, 0
		}
	}
}

// violation checks the invariants of package model.
func (s *simulation) violation() string {
	for port := range uint16(len(s.backend)) {
		c, reply := s.backend[port], replyOf(port)
		if c.client == 0 {
			continue
		}
		guarded := c.protected && c.failures <= 1
		slot, owned := s.slotOf(port)
		owned = owned && s.alive
		if owned && s.table[slot].client != c.client {
			return fmt.Sprintf("MISDELIVERED: port %d is client %d's, the owner has %d", port, c.client,
				s.table[slot].client)
		}
		if guarded && s.alive && s.ledger.Complete() && !owned {
			return fmt.Sprintf("LOST: the owner answers client %d with RST", c.client)
		}
		for i, m := range s.members {
			client, has := m.table[reply]
			switch {
			case !m.alive:
			case has && client != c.client:
				return fmt.Sprintf("MISDELIVERED: port %d is client %d's, member %d has %d", port, c.client, i, client)
			case has:
				owned = true
			case guarded && m.copies.MayReset() && m.lease.Holds(s.now):
				return fmt.Sprintf("LOST: member %d answers client %d with RST", i, c.client)
			}
		}
		if guarded && !owned {
			return fmt.Sprintf("LOST: no living gateway has client %d at port %d", c.client, port)
		}
	}
	if s.alive && s.ledger.Complete() && s.ledger.Settled() && s.ledger.HeldPorts() > 0 {
		return "HELD FOR EVER: all members are in step, and a port is held"
	}
	return ""
}

// run takes random events until there is a violation, which it returns.
func (s *simulation) run() string {
	for range 300 {
		events := s.events()
		events[s.IntN(len(events))]()
		s.now += s.Int64N(int64(time.Millisecond))
		for i, m := range s.members {
			s.beat(Member(i), m)
		}
		s.settle()
		if v := s.violation(); v != "" {
			return v
		}
	}
	return ""
}

// TestRandomSchedules runs the state machines over simulated streams and clocks, in random orders
// of events and failures, under the invariants of package model.
func TestRandomSchedules(t *testing.T) {
	schedules := 2_000
	if v := os.Getenv(runsVariable); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil {
			t.Fatal(err)
		}
		schedules = n * 5_000
	}
	first := rand.Uint64()
	t.Logf("%d schedules, the seed of the first is %d", schedules, first)
	for k := range uint64(schedules) {
		s := newSimulation(first + k)
		if v := s.run(); v != "" {
			t.Fatalf("seed %d: %s\n%s", first+k, v, strings.Join(s.log, "\n"))
		}
	}
}

// TestSchedulesFindOmissions leaves out a rule each, and finds a violation.
func TestSchedulesFindOmissions(t *testing.T) {
	for _, c := range []struct {
		name    string
		without omission
		broken  string
	}{
		{"the port of an ended flow is free at once", holdPort, "MISDELIVERED"},
		{"a killed owner forgets held ports", keepHeld, "MISDELIVERED"},
		{"a restarted owner sends before it takes back", takeBack, "LOST"},
		{"an owner without memory takes ports of its open address", useSpare, "MISDELIVERED"},
		{"a member forgets an owner that it does not hear", keepCopies, "LOST"},
		{"the SYN-ACK does not wait for the copy", waitForCopy, "LOST"},
		{"the owner stops waiting before the lease has run out", waitForLease, "LOST"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for seed := range uint64(20_000) {
				s := newSimulation(seed)
				s.without = c.without
				if v := s.run(); strings.HasPrefix(v, c.broken+":") {
					t.Logf("after %d schedules, %d events: %s", seed+1, len(s.log), v)
					return
				}
			}
			t.Error("no violation")
		})
	}
}

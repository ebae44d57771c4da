package session

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/flowtable/conn"
	"sluice.dev/sluice/gateway/group"
	"sluice.dev/sluice/gateway/group/grouptest"
	"sluice.dev/sluice/gateway/group/wire"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/test/bed/size"
)

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

// simMember is a member, its flow table, and the stream to it. Each end of a stream lives until it
// finds that the other one is gone; frames that were sent may still arrive.
type simMember struct {
	alive  bool
	copies *group.Copies
	*grouptest.Table
	receiver *Receiver
	sender   *Sender  // the owner's end
	link     bool     // frames pass
	frames   [][]byte // to the member
	answers  [][]byte // to the owner
	waiting  group.OwnerLease
}

// client returns the client of the member's flow, if it has one.
func (m *simMember) client(reply header.Tuple) (client uint16, has bool) {
	r, has := m.Records[reply]
	return r.Client.SrcPort, has
}

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
	addresses   group.Addresses
	table       [simSlots]simFlow
	ledger      *group.Ledger
	members     [simMembers]*simMember
	backend     [2 * simPorts]simConnection
	clients     uint16
	kept        map[header.Tuple]uint32 // slots of the held ports of a killed process, in its file
	complete    bool                    // as the killed process knew
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

// sources are the owner's source addresses: the first one has the ports below simPorts.
var sources = []header.Addr{header.AddrFrom4([4]byte{10, 9, 0, 1}), header.AddrFrom4([4]byte{10, 9, 0, 2})}

func replyOf(port uint16) header.Tuple {
	backend, source := header.AddrFrom4([4]byte{10, 0, 0, 1}), sources[port/simPorts]
	return header.Tuple{Src: backend, SrcPort: 80, Dst: source, DstPort: port + 1, Proto: header.ProtoTCP}
}

func portOf(reply header.Tuple) uint16 { return reply.DstPort - 1 }

// recordOf returns the record of a client's flow.
func recordOf(client, port uint16) group.Record {
	from, vip := header.AddrFrom4([4]byte{192, 0, 2, 1}), header.AddrFrom4([4]byte{198, 51, 100, 1})
	return group.Record{
		Client: header.Tuple{Src: from, SrcPort: client, Dst: vip, DstPort: 80, Proto: header.ProtoTCP},
		Reply:  replyOf(port), State: conn.Established,
	}
}

func newSimulation(seed uint64) *simulation {
	s := &simulation{Rand: rand.New(rand.NewPCG(seed, 0)), complete: true, incarnation: 1}
	s.addresses = group.Addresses{group.Open, group.Spare}
	for i := range s.members {
		s.members[i] = &simMember{alive: true}
		s.members[i].forget()
	}
	s.start()
	return s
}

func (m *simMember) forget() {
	m.Table = grouptest.NewTable()
	m.copies, m.receiver = group.NewCopies(1, group.NewIndex(100), m), nil
	m.cut()
}

func (m *simMember) cut() { m.link, m.frames, m.answers = false, nil, nil }

// start makes the ledger of a new process.
func (s *simulation) start() {
	everybody := group.Members(1<<simMembers - 1)
	sizes := group.Config{Members: everybody, Slots: simSlots, Window: 1 + s.IntN(6)}
	s.ledger = group.NewLedger(sizes, s.complete)
	for i := range s.table {
		if s.table[i].live {
			s.ledger.Recovered(uint32(i))
		}
	}
	for reply, slot := range s.kept {
		s.ledger.RecoveredHeld(slot, reply)
	}
	s.kept, s.alive = nil, true
	for _, m := range s.members {
		m.waiting = group.OwnerLease{}
		m.waiting.Renew(s.now)
	}
}

// Read, Find and Make are the flow table as a Sender sees it.
func (s *simulation) Read(slot uint32) (r group.Record, live bool) {
	f := &s.table[slot]
	return recordOf(f.client, f.port), f.live
}

func (s *simulation) Find(reply header.Tuple) (slot uint32, found bool) {
	i, found := s.slotOf(portOf(reply))
	return uint32(i), found
}

func (s *simulation) Make(r *group.Record) (slot uint32, ok bool) {
	for i := range s.table {
		if !s.table[i].live {
			s.table[i] = simFlow{client: r.Client.SrcPort, port: portOf(r.Reply), live: true, left: true}
			return uint32(i), s.note("the owner takes back client %d at port %d", r.Client.SrcPort, portOf(r.Reply))
		}
	}
	return 0, false
}

// Hold holds no slot: a table with room for a record of each port is not in the simulation.
func (s *simulation) Hold(*group.Record) (slot uint32, ok bool) { return 0, true }
func (*simulation) ApplyCopyState(group.CopyState)              {}

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
	i := group.Member(0)
	if m == s.members[1] {
		i = 1
	}
	return []func() bool{
		s.newFlow, s.newFlow, s.endFlow, s.synAck, s.synAck,
		func() bool { return s.carry(i, m) }, func() bool { return s.carry(i, m) },
		func() bool { return s.carry(i, m) },
		func() bool { return s.connect(i, m) }, func() bool { return s.lose(i, m) },
		func() bool { return s.leaseEnds(i, m) }, func() bool { return s.keeperEnds(i, m) },
		s.wait, s.restart, func() bool { return s.memberStarts(i, m) },
		func() bool { return s.IntN(6) == 0 && s.fails(i, m) },
	}
}

// wait is short mostly, as beats are due each third of a lease.
func (s *simulation) wait() bool {
	s.now += s.Int64N([]int64{group.LeaseNanos / 50, group.LeaseNanos / 50, group.LeaseNanos}[s.IntN(3)])
	return true
}

func (s *simulation) newFlow() bool {
	port := uint16(s.IntN(2 * simPorts))
	slot := s.IntN(simSlots)
	if _, used := s.slotOf(port); used || !s.alive || s.table[slot].live ||
		s.ledger.Held(replyOf(port)) && s.without != holdPort ||
		s.addresses[port/simPorts] != group.Open {
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
		v = group.Protected
	}
	if v == group.Wait && s.IntN(4) != 0 {
		return false
	}
	f.left = true
	if c := &s.backend[f.port]; c.client == f.client {
		c.protected = v == group.Protected
	}
	return s.note("the SYN-ACK to client %d leaves, verdict %d", f.client, v)
}

// carry takes one of the four steps of a frame, or of an answer.
func (s *simulation) carry(i group.Member, m *simMember) bool {
	switch s.IntN(4) {
	case 0:
		return s.send(i, m)
	case 1:
		return s.deliver(i, m)
	case 2:
		return s.answer(i, m)
	}
	return s.acknowledge(i, m)
}

func (s *simulation) send(i group.Member, m *simMember) bool {
	if !s.alive || !m.link || m.sender == nil {
		return false
	}
	frame := m.sender.Next(s.now, nil)
	if len(frame) == 0 {
		return false
	}
	m.frames = append(m.frames, frame)
	return s.note("the owner sends member %d %s", i, text(frame))
}

func (s *simulation) deliver(i group.Member, m *simMember) bool {
	if !m.alive || m.receiver == nil || len(m.frames) == 0 {
		return false
	}
	frame := m.frames[0]
	m.frames = m.frames[1:]
	if err := m.receiver.Receive(frame); err != nil {
		panic(fmt.Sprintf("member %d: %v\n%s", i, err, strings.Join(s.log, "\n")))
	}
	return s.note("member %d reads %s", i, text(frame))
}

func (s *simulation) answer(i group.Member, m *simMember) bool {
	if !m.alive || !m.link || m.receiver == nil {
		return false
	}
	frame := m.receiver.Next(s.now, nil)
	if len(frame) == 0 {
		return false
	}
	m.answers = append(m.answers, frame)
	return s.note("member %d sends %s", i, text(frame))
}

func (s *simulation) acknowledge(i group.Member, m *simMember) bool {
	if !s.alive || m.sender == nil || len(m.answers) == 0 {
		return false
	}
	frame := m.answers[0]
	m.answers = m.answers[1:]
	if err := m.sender.Receive(frame, s.now); err != nil {
		panic(fmt.Sprintf("owner, member %d: %v\n%s", i, err, strings.Join(s.log, "\n")))
	}
	return s.note("the owner reads %s of member %d", text(frame), i)
}

// text describes a frame.
func text(frame []byte) string {
	var b strings.Builder
	switch wire.KindOf(frame) {
	case wire.Hello:
		g, _ := wire.ReadHello(frame)
		fmt.Fprintf(&b, "Hello of incarnation %d", g.Incarnation)
	case wire.Records:
		msgs, _ := wire.ReadRecords(frame, nil)
		for _, m := range msgs {
			name := [...]string{"", "All", "Set", "Clear", "AllDone", "Complete"}[m.Kind]
			fmt.Fprintf(&b, "%d:%s slot %d client %d, ", m.Seq, name, m.Slot, m.Record.Client.SrcPort)
		}
	case wire.Beat:
		b.WriteString("Beat")
	case wire.Applied:
		var a wire.Acknowledgement
		_ = wire.ReadApplied(frame, &a)
		fmt.Fprintf(&b, "Applied %d", a.Seq)
	case wire.Mine:
		records, last, _ := wire.ReadMine(frame, nil)
		fmt.Fprintf(&b, "Mine, %d records, last %t", len(records), last)
	}
	return b.String()
}

// connect opens a new stream. The ends of an earlier one are closed.
func (s *simulation) connect(i group.Member, m *simMember) bool {
	if !s.alive || !m.alive || m.link && m.sender != nil && m.receiver != nil {
		return false
	}
	m.cut()
	m.link = true
	owner, member := "owner", fmt.Sprintf("member%d", i)
	m.sender = NewSender(Owner{
		Self: wire.Greeting{Name: owner, Incarnation: s.incarnation}, Sources: sources, Ledger: s.ledger, Flows: s,
		Member: i, Name: member, Lease: &m.waiting,
	})
	m.receiver = NewReceiver(Member{
		Self: wire.Greeting{Name: member}, Owner: owner, Sources: sources, Copies: m.copies,
		Read: func(n uint32) (group.Record, bool) {
			r, ok := m.Read(n)
			return r, ok && s.without != takeBack
		},
	})
	return s.note("member %d gets a new stream", i)
}

// lose: the owner waits for the member no more once the lease has ended, and closes the stream.
func (s *simulation) lose(i group.Member, m *simMember) bool {
	early := s.without == waitForLease && (m.sender == nil || !m.link)
	if !s.alive || s.ledger.View(i) == group.Out || !m.waiting.Ended(s.now) && !early {
		return false
	}
	s.ledger.Lost(i)
	m.sender = nil
	return s.note("the owner takes member %d for out of step", i)
}

func (s *simulation) leaseEnds(i group.Member, m *simMember) bool {
	if !m.alive || m.receiver == nil || !m.receiver.Lapsed(s.now) {
		return false
	}
	m.copies.Lost()
	m.receiver = nil
	if s.without == keepCopies {
		m.forget()
	}
	return s.note("member %d finds that its lease has run out, and closes the stream", i)
}

func (s *simulation) keeperEnds(i group.Member, m *simMember) bool {
	if s.alive || !m.alive {
		return false
	}
	for port := range s.backend {
		reply := replyOf(uint16(port))
		client, has := m.client(reply)
		if !has || s.IntN(4) != 0 {
			continue
		}
		m.copies.Ended(m.End(reply))
		if s.backend[port].client == client {
			s.backend[port] = simConnection{}
		}
		return s.note("member %d ends the flow of client %d", i, client)
	}
	return false
}

// fails: one failure of four kinds.
func (s *simulation) fails(i group.Member, m *simMember) bool {
	kind := s.IntN(4)
	if kind < 2 && !s.alive || kind >= 2 && !m.alive || kind == 3 && !m.link {
		return false
	}
	for port := range s.backend {
		s.backend[port].failures++
	}
	if kind < 2 {
		for _, m := range s.members {
			m.sender = nil
		}
	}
	switch kind {
	case 0:
		s.alive, s.complete = false, s.ledger.Complete()
		if s.without != keepHeld {
			s.kept = map[header.Tuple]uint32{}
			s.ledger.EachHeld(func(slot uint32, reply header.Tuple) { s.kept[reply] = slot })
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

// restart starts the owner, with a table of another size in every second case: its flows have other
// slots.
func (s *simulation) restart() bool {
	if s.alive {
		return false
	}
	other := s.IntN(2) == 0
	if other {
		slices.Reverse(s.table[:])
		for reply, slot := range s.kept {
			s.kept[reply] = simSlots - 1 - slot
		}
	}
	s.start()
	return s.note("the owner starts, slots have other numbers: %t", other)
}

func (s *simulation) memberStarts(i group.Member, m *simMember) bool {
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
		ends := m.alive && m.link && m.sender != nil && m.receiver != nil
		if !ends || !m.sender.Running() || !m.receiver.InStep(s.now) {
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
			client, has := m.client(reply)
			switch {
			case !m.alive:
			case has && client != c.client:
				return fmt.Sprintf("MISDELIVERED: port %d is client %d's, member %d has %d", port, c.client, i, client)
			case has:
				owned = true
			case guarded && m.receiver != nil && m.receiver.MayReset(s.now):
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
			s.carry(group.Member(i), m)
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
	schedules := size.Runs(t, 2_000, 5_000)
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

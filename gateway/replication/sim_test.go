package replication

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sluice.dev/sluice/fastpath/copies"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/gateway/group"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/test/bed/size"
)

const simGateways = 3

// simulation is a group of gateways with real flow tables and workers, a backend and clients, whose
// events come in random order.
//
//	MISDELIVERED  a packet of one connection reaches another client, or the backend as another
//	              client's, unless no gateway has a record of the connection any more
//	LOST          a protected connection gets an RST after one failure, or does not pass at the end
type simulation struct {
	*rand.Rand
	*lab
	addresses   [simGateways]group.Addresses
	incarnation [simGateways]uint64
	complete    [simGateways]bool // as the killed process knew
	reached     [simGateways]bool // AllReached was called since the loss of memory
	clients     int
	open        []*simConnection
	log         []string
	violation   string
	protected   int // connections whose SYN-ACK left protected
}

// simConnection is an established connection, as client and backend have it.
type simConnection struct {
	*connection
	protected bool
	proven    bool // data has passed
	ended     bool
	failures  int
	recorded  [simGateways]bool // in the tables of gateways, as far as survey has looked
}

func newSimulation(t *testing.T, seed uint64) *simulation {
	s := &simulation{Rand: rand.New(rand.NewPCG(seed, 0)), lab: newLab(t, simGateways, time.Hour)}
	s.ports = 3
	for i := range s.gateways {
		s.addresses[i], s.incarnation[i], s.reached[i] = group.Addresses{group.Open, group.Spare}, 1, true
		s.lab.open(s.gateways[i], 0)
	}
	return s
}

func (s *simulation) note(format string, args ...any) {
	s.log = append(s.log, fmt.Sprintf("%v  ", time.Duration(s.now())-time.Hour)+fmt.Sprintf(format, args...))
}

func (s *simulation) violate(format string, args ...any) {
	s.note(format, args...)
	if s.violation == "" {
		s.violation = s.log[len(s.log)-1]
	}
}

// alive returns a random gateway that is alive, or -1.
func (s *simulation) alive() int {
	for range 20 {
		if i := s.IntN(simGateways); s.gateways[i].worker != nil {
			return i
		}
	}
	return -1
}

// keeper returns a gateway that gets the packets for a source address: its owner if it is alive.
func (s *simulation) keeper(source string) int {
	for i, g := range s.gateways {
		if g.worker != nil && g.owns(source) {
			return i
		}
	}
	return s.alive()
}

func (g *gateway) owns(source string) bool {
	for _, a := range sources(g.id) {
		if strings.HasPrefix(source, a.String()+":") || strings.HasPrefix(source, "["+a.String()+"]:") {
			return true
		}
	}
	return false
}

// passes sends a packet by a gateway, and reports whether it was forwarded; reset says that it was
// answered with RST.
func (s *simulation) pass(id int, p *headertest.Packet, src, dst, what string) (passed, reset bool) {
	s.send(id, p)
	list, _ := s.take(id)
	for i := range list {
		from, to := ends(&list[i].Tuple)
		switch {
		case list[i].TCPFlags&header.TCPRST != 0:
			reset = true
		case from == src && to == dst:
			passed = true
		default:
			s.violate("MISDELIVERED: gateway %d sends %s from %s to %s, want %s, %s", id, what, from, to, src, dst)
		}
	}
	return passed, reset
}

// connect: a new client connects by a gateway; its SYN may be repeated at another one.
func (s *simulation) connect() {
	id := s.alive()
	if id < 0 {
		return
	}
	s.clients++
	c := newConnection(families[s.IntN(2)], 1000+s.clients)
	s.send(id, headertest.TCP(c.client, c.vip, syn))
	list, _ := s.take(id)
	if len(list) != 1 || list[0].TCPFlags&header.TCPSYN == 0 {
		return // no port is free, or the gateway has no address
	}
	c.source, c.backend = ends(&list[0].Tuple)
	for _, o := range s.open {
		if o.source != c.source {
			continue
		}
		if o.proven && !o.ended {
			s.violate("MISDELIVERED: client %s gets port %s of client %s", c.client, c.source, o.client)
		}
		o.ended = true // the backend has the later connection
	}
	s.note("client %s connects by gateway %d from %s", c.client, id, c.source)
	before := s.outcomes()
	c.answer(s.lab, id)
	for range 30 {
		synctest.Wait()
		s.step()
		if list, _ = s.take(id); len(list) > 0 {
			break
		}
		time.Sleep(100 * time.Microsecond)
	}
	protected := s.outcomes() > before
	if len(list) != 1 {
		s.note("the SYN-ACK is lost: %s", s.drops(id))
		return
	}
	s.note("its SYN-ACK leaves, protected %t", protected)
	if protected {
		s.protected++
	}
	o := &simConnection{connection: c, protected: protected}
	s.open = append(s.open, o)
	s.data(o)
}

func (s *simulation) outcomes() (n uint64) {
	for _, g := range s.gateways {
		n += g.Board().Flows()[copies.Protected]
	}
	return n
}

// data passes in one direction by a random gateway.
func (s *simulation) data(c *simConnection) {
	id, p, src, dst := s.alive(), headertest.TCP(c.client, c.vip, psh|ack), c.source, c.backend
	if s.IntN(2) == 0 {
		id, p, src, dst = s.keeper(c.source), headertest.TCP(c.backend, c.source, psh|ack), c.vip, c.client
	}
	if id < 0 || c.ended {
		return
	}
	p.Payload = []byte("x")
	passed, reset := s.pass(id, p, src, dst, "data of "+c.client)
	if reset && c.guarded() {
		s.violate("LOST: gateway %d answers client %s with RST", id, c.client)
	}
	c.ended, c.proven = c.ended || reset, c.proven || passed
}

// guarded reports whether the connection must live. One on which no data has passed is half-open:
// it may lose its port to another client.
func (c *simConnection) guarded() bool { return c.protected && c.proven && !c.ended && c.failures <= 1 }

// finish: both ends close, by the gateway that keeps the source address.
func (s *simulation) finish(i int) {
	c := s.open[i]
	id := s.keeper(c.source)
	if id < 0 || c.ended {
		return
	}
	s.note("client %s closes by gateway %d", c.client, id)
	s.pass(id, headertest.TCP(c.client, c.vip, fin|ack), c.source, c.backend, "FIN")
	s.pass(id, headertest.TCP(c.backend, c.source, fin|ack), c.vip, c.client, "FIN")
	s.pass(id, headertest.TCP(c.client, c.vip, ack), c.source, c.backend, "ACK")
	s.open = append(s.open[:i], s.open[i+1:]...)
}

// fail: one failure.
func (s *simulation) fail() {
	i, j := s.IntN(simGateways), s.IntN(simGateways)
	kind := s.IntN(3)
	if kind < 2 && s.gateways[i].worker == nil || kind == 2 && i == j {
		return
	}
	for _, c := range s.open {
		c.failures++
	}
	switch kind {
	case 0:
		s.crash(i, false)
	case 1:
		s.crash(i, true)
	case 2:
		s.cut[i][j].Store(true)
		s.note("the network between gateways %d and %d is cut", i, j)
	}
}

func (s *simulation) crash(i int, memory bool) {
	s.gateways[i].x.Do(func() { s.complete[i] = s.gateways[i].Ledger().Complete() })
	s.survey()
	s.kill(i)
	s.note("gateway %d is killed, its memory is lost: %t", i, memory)
	if memory {
		s.lose(i)
		s.addresses[i].MemoryLost()
		s.incarnation[i]++
		s.complete[i], s.reached[i] = false, false
		for _, c := range s.open {
			c.recorded[i] = false
			// After one failure a protected connection has a record.
			c.ended = c.ended || !c.guarded() && c.recorded == [simGateways]bool{}
		}
	}
}

// survey notes which tables of gateways that are alive have the flows of open connections.
func (s *simulation) survey() {
	for i, g := range s.gateways {
		if g.worker == nil {
			continue
		}
		g.x.Do(func() {
			g.enter()
			for _, c := range s.open {
				t := c.reply()
				c.recorded[i] = g.find(&t, flowtable.ReplySide) != 0
			}
		})
	}
}

func (s *simulation) mend() {
	for i := range simGateways {
		for j := range simGateways {
			if s.cut[i][j].Load() && s.IntN(2) == 0 {
				s.cut[i][j].Store(false)
				s.note("the network between gateways %d and %d heals", i, j)
			}
		}
		if s.gateways[i].worker == nil && s.IntN(2) == 0 {
			s.lab.start(i, s.incarnation[i], s.complete[i])
			s.publish(i)
			s.note("gateway %d starts", i)
		}
	}
}

// publish gives a gateway its open address.
func (s *simulation) publish(i int) {
	which := -1
	for k, a := range s.addresses[i] {
		if a == group.Open {
			which = k
		}
	}
	s.lab.open(s.gateways[i], which)
}

// reach opens addresses again when all members were reached.
func (s *simulation) reach() {
	for i, g := range s.gateways {
		if g.worker == nil || s.reached[i] {
			continue
		}
		complete := false
		g.x.Do(func() { complete = g.Ledger().Complete() })
		if complete {
			s.reached[i] = true
			s.addresses[i].AllReached([2]bool{true, true}) // no address becomes a spare
			s.publish(i)
			s.note("gateway %d has reached all", i)
		}
	}
}

// inStep reports whether all gateways are in step, and settled.
func (s *simulation) inStep() bool {
	for i, g := range s.gateways {
		if g.worker == nil {
			return false
		}
		ok := true
		g.x.Do(func() {
			ok = g.Ledger().Settled() && g.Ledger().Complete()
			for k := range simGateways - 1 {
				ok = ok && g.x.InStep(k)
			}
		})
		for j := range simGateways {
			ok = ok && !s.cut[i][j].Load()
		}
		if !ok {
			return false
		}
	}
	return true
}

// known reports whether the owner of a connection's source address has its flow.
func (s *simulation) known(c *simConnection) (found bool) {
	g := s.gateways[s.keeper(c.source)]
	g.x.Do(func() { _, found = g.Find(c.reply()) })
	return found
}

// reply returns the tuple of the backend's packets.
func (c *simConnection) reply() header.Tuple {
	from, to := netip.MustParseAddrPort(c.backend), netip.MustParseAddrPort(c.source)
	return header.Tuple{
		Src: header.AddrFrom(from.Addr()), SrcPort: from.Port(), Dst: header.AddrFrom(to.Addr()), DstPort: to.Port(),
		Proto: header.ProtoTCP, V6: from.Addr().Is6(),
	}
}

func (s *simulation) run() string {
	s.settle(500 * time.Millisecond)
	for range 150 {
		switch n := s.IntN(20); {
		case n < 6:
			s.connect()
		case n < 12 && len(s.open) > 0:
			s.data(s.open[s.IntN(len(s.open))])
		case n < 14 && len(s.open) > 0:
			s.finish(s.IntN(len(s.open)))
		case n < 15 && s.IntN(3) == 0:
			s.fail()
		case n < 17:
			s.mend()
		default:
			s.settle([]time.Duration{0, time.Millisecond, 100 * time.Millisecond, 400 * time.Millisecond,
				5 * time.Second}[s.IntN(5)])
		}
		synctest.Wait()
		s.reach()
		if s.violation != "" {
			return s.violation
		}
		if s.inStep() {
			for _, c := range s.open {
				if s.known(c) {
					c.protected, c.failures = true, 0
				}
			}
		}
	}
	return s.last()
}

// last ends all failures, and requires that each protected connection passes each gateway.
func (s *simulation) last() string {
	guarded := map[*simConnection]bool{}
	for _, c := range s.open {
		guarded[c] = c.guarded()
	}
	for i := 0; i < 20; i++ {
		s.mend()
	}
	s.settle(2 * time.Second)
	s.reach()
	s.settle(time.Second)
	for _, c := range s.open {
		for id := range s.gateways {
			if c.ended {
				continue
			}
			p := headertest.TCP(c.client, c.vip, psh|ack)
			passed, reset := s.pass(id, p, c.source, c.backend, "data of "+c.client)
			if guarded[c] && (reset || !passed) {
				s.violate("LOST: at the end gateway %d does not forward for client %s: %s", id, c.client, s.drops(id))
			}
		}
	}
	for i, g := range s.gateways {
		if err := g.table.Validate(); err != nil {
			s.violate("gateway %d: %v", i, err)
		}
		if n := g.table.HeldPorts(); n > 0 && s.inStep() {
			s.violate("gateway %d holds %d ports for ever", i, n)
		}
	}
	return s.violation
}

// TestRandomSchedules runs gateways in random orders of events and failures.
func TestRandomSchedules(t *testing.T) {
	schedules := 40
	if size.Race {
		schedules = 10
	}
	schedules = size.Runs(t, schedules, 400)
	first := rand.Uint64()
	t.Logf("%d schedules, the seed of the first is %d", schedules, first)
	protected := 0
	for k := range uint64(schedules) {
		synctest.Test(t, func(t *testing.T) {
			s := newSimulation(t, first+k)
			v := s.run()
			protected += s.protected
			if v != "" {
				t.Errorf("seed %d: %s\n%s", first+k, v, strings.Join(s.log, "\n"))
			}
		})
		if t.Failed() {
			return
		}
	}
	t.Logf("%d connections left protected", protected)
}

package exchange

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"sluice.dev/sluice/flowtable/conn"
	"sluice.dev/sluice/gateway/group"
	"sluice.dev/sluice/gateway/group/grouptest"
	"sluice.dev/sluice/gateway/group/session"
	"sluice.dev/sluice/gateway/group/wire"
	"sluice.dev/sluice/nat/header"
)

const slots = 8192

// gateway is a gateway of a test. Its exchange's Run owns its tables.
type gateway struct {
	*Exchange
	id      int
	ledger  *group.Ledger
	flows   map[uint32]group.Record
	table   *grouptest.Table // copies of all owners
	waiter  grouptest.Waiter
	stop    context.CancelFunc
	stalled atomic.Bool                // others' streams are not read
	failed  atomic.Pointer[chan error] // gets the errors of streams; nil: nobody wants them
}

func (g *gateway) Read(slot uint32) (group.Record, bool) { r, ok := g.flows[slot]; return r, ok }

func (g *gateway) Hold(*group.Record) (slot uint32, ok bool) { return 0, false }
func (*gateway) ApplyCopyState(group.CopyState)              {}

func (g *gateway) Find(reply header.Tuple) (slot uint32, found bool) {
	return uint32(reply.DstPort), g.flows[uint32(reply.DstPort)].Reply == reply
}

func (g *gateway) Make(r *group.Record) (slot uint32, ok bool) {
	g.flows[uint32(r.Reply.DstPort)] = *r
	return uint32(r.Reply.DstPort), true
}

func source(id int) header.Addr { return header.AddrFrom4([4]byte{10, 9, 0, byte(id)}) }

// flow returns the record of a client's flow; the port is the slot.
func flow(id int, slot uint32, client uint16) group.Record {
	a := func(last byte) header.Addr { return header.AddrFrom4([4]byte{192, 0, 2, last}) }
	return group.Record{
		Client: header.Tuple{Src: a(1), Dst: a(2), SrcPort: client, DstPort: 80, Proto: header.ProtoTCP},
		Reply:  header.Tuple{Src: a(3), Dst: source(id), SrcPort: 80, DstPort: uint16(slot), Proto: header.ProtoTCP},
		State:  conn.Established,
	}
}

// cluster is a group of gateways, which reach each other by pipes.
type cluster struct {
	t        *testing.T
	gateways [3]*gateway
	live     [3]atomic.Pointer[gateway] // as dialing goroutines see them
}

func newCluster(t *testing.T) *cluster {
	c := &cluster{t: t}
	for i := range c.gateways {
		c.start(i, 1, true)
	}
	t.Cleanup(func() {
		for _, g := range c.gateways {
			g.stop()
		}
	})
	return c
}

// start starts a gateway without memory.
func (c *cluster) start(id int, incarnation uint64, complete bool) {
	name := func(i int) string { return fmt.Sprint("gw-", i) }
	g := &gateway{id: id, flows: map[uint32]group.Record{}, table: grouptest.NewTable(),
		waiter: grouptest.NewWaiter()}
	numbers := group.NewIndex(3 * slots)
	var members group.Members
	for m := range group.Member(2) {
		members |= group.One(m)
	}
	g.ledger = group.NewLedger(group.Config{Members: members, Slots: slots}, complete)
	self := wire.Greeting{Name: name(id), Incarnation: incarnation}
	var list []Peer
	for i := range c.gateways {
		if i == id {
			continue
		}
		list = append(list, Peer{
			Owner: session.Owner{
				Self: self, Sources: []header.Addr{source(id)}, Ledger: g.ledger, Flows: g,
				Member: group.Member(len(list)), Name: name(i),
			},
			Member: session.Member{
				Self: self, Owner: name(i), Sources: []header.Addr{source(i)},
				Copies: group.NewCopies(i+1, numbers, g.table), Read: g.table.Read,
			},
			Dial: func(ctx context.Context) (Stream, error) {
				to := c.live[i].Load()
				if to == nil {
					return nil, grouptest.ErrClosed
				}
				dialing, listening := grouptest.Pipe(g.waiter, to.waiter, nil, &to.stalled, nil)
				if err := to.Accept(index(i, id), listening); err != nil {
					return nil, err
				}
				return dialing, nil
			},
		})
	}
	g.Exchange = New(Config{Ledger: g.ledger, Peers: list, Waiter: g.waiter,
		Failed: func(_ int, err error) {
			if failed := g.failed.Load(); failed != nil {
				*failed <- err
			}
		},
		Now: func() int64 { return time.Now().UnixNano() }})
	ctx, cancel := context.WithCancel(context.Background())
	g.stop = cancel
	c.gateways[id] = g
	c.live[id].Store(g)
	go g.Run(ctx)
}

// index returns the index of a peer in a gateway's configuration.
func index(of, peer int) int {
	if peer > of {
		return peer - 1
	}
	return peer
}

// begin makes a gateway's flow unless its port is held, and end ends it.
func (g *gateway) begin(slot uint32, client uint16) {
	g.Do(func() {
		if r := flow(g.id, slot, client); !g.ledger.Held(r.Reply) {
			g.flows[slot] = r
			g.ledger.Begin(slot)
		}
	})
}

func (g *gateway) end(slot uint32) {
	g.Do(func() {
		if r, found := g.flows[slot]; found {
			delete(g.flows, slot)
			g.ledger.End(slot, r.Reply)
		}
	})
}

// copies returns how many copies of an owner a gateway has.
func (g *gateway) copies(owner int) (n int) {
	g.Do(func() {
		for reply := range g.table.Records {
			if reply.Dst == source(owner) {
				n++
			}
		}
	})
	return n
}

func (g *gateway) inStep(with int) (in bool) {
	g.Do(func() { in = g.InStep(index(g.id, with)) })
	return in
}

func (g *gateway) verdict(slot uint32) (v group.Verdict) {
	g.Do(func() { v = g.ledger.Verdict(slot) })
	return v
}

func (g *gateway) held() (n int) {
	g.Do(func() { n = g.ledger.HeldPorts() })
	return n
}

// check requires that each gateway is in step with each other one, and has its flows.
func (c *cluster) check(when string, flows [3]int) {
	c.t.Helper()
	for i, g := range c.gateways {
		for j := range c.gateways {
			if i != j && (!g.inStep(j) || g.copies(j) != flows[j]) {
				c.t.Errorf("%s gateway %d is in step with gateway %d: %t; it has %d copies, want %d", when, i, j,
					g.inStep(j), g.copies(j), flows[j])
			}
		}
	}
}

func TestThreeGateways(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		for i, g := range c.gateways {
			for slot := range uint32(2000 * (i + 1)) {
				g.begin(slot, 1)
			}
		}
		time.Sleep(time.Second)
		c.check("at first", [3]int{2000, 4000, 6000})
		g := c.gateways[0]
		g.begin(3000, 2)
		synctest.Wait() // no time passes
		if v := g.verdict(3000); v != group.Protected {
			t.Errorf("the verdict is %d, want Protected", v)
		}
		for slot := range uint32(1000) {
			g.end(slot)
		}
		synctest.Wait()
		c.check("after 1000 ends,", [3]int{1001, 4000, 6000})
		if n := g.held(); n != 0 {
			t.Errorf("%d ports are held", n)
		}
		time.Sleep(time.Minute)
		c.check("after a minute", [3]int{1001, 4000, 6000})
	})
}

// TestMemoryLost: the others keep the copies of a gateway that dies, and it takes them back.
func TestMemoryLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		for slot := range uint32(3000) {
			c.gateways[0].begin(slot, 1)
		}
		time.Sleep(time.Second)
		c.gateways[0].stop()
		c.gateways[1].begin(1, 1)
		if v := c.gateways[1].verdict(1); v != group.Wait {
			t.Errorf("before the lease has run out the verdict is %d, want Wait", v)
		}
		time.Sleep(400 * time.Millisecond)
		for _, g := range c.gateways[1:] {
			if g.inStep(0) || g.copies(0) != 3000 {
				t.Errorf("in step %t, %d copies of the gateway that died", g.inStep(0), g.copies(0))
			}
		}
		if v := c.gateways[1].verdict(1); v != group.Protected {
			t.Errorf("after the lease the verdict is %d, want Protected by the third gateway", v)
		}
		c.start(0, 2, false)
		synctest.Wait() // no time passes, though the records are three frames of each member
		var flows int
		c.gateways[0].Do(func() { flows = len(c.gateways[0].flows) })
		if flows != 3000 {
			t.Errorf("the restarted gateway has taken back %d flows at once, want 3000", flows)
		}
		time.Sleep(time.Second)
		c.check("after the restart", [3]int{3000, 1, 0})
		var complete bool
		c.gateways[0].Do(func() { complete = c.gateways[0].ledger.Complete() })
		if !complete {
			t.Error("the restarted gateway has not taken back its flows from all")
		}
	})
}

// TestSilentOwner: a member closes a stream that brings nothing, though nothing has ended it.
func TestSilentOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.gateways[0].stop()
		time.Sleep(time.Second)
		waiter, member := grouptest.NewWaiter(), c.gateways[1]
		dialing, listening := grouptest.Pipe(waiter, member.waiter, nil, nil, nil)
		defer dialing.End(nil)
		ended := make(chan error, 9)
		if err := member.Accept(index(1, 0), listening); err != nil {
			t.Fatal(err)
		}
		ledger, now := group.NewLedger(group.Config{Members: group.One(0), Slots: slots}, true), time.Now().UnixNano()
		s := session.NewSender(session.Owner{
			Self: wire.Greeting{Name: "gw-0", Incarnation: 2}, Ledger: ledger, Name: "gw-1", Flows: c.gateways[0],
			Lease: &group.OwnerLease{},
		})
		for beats := 0; beats == 0 || !ledger.Settled(); {
			f := s.Next(now, nil)
			if wire.KindOf(f) == wire.Beat {
				beats++
			}
			if len(f) > 0 {
				if err := dialing.Send(f); err != nil {
					t.Fatal(err)
				}
				continue
			}
			switch f, err := dialing.Receive(); {
			case err != nil:
				t.Fatal(err)
			case f == nil:
				waiter.Wait(time.Hour)
			case s.Receive(f, now) != nil:
				t.Fatal("the owner refuses a frame")
			}
		}
		synctest.Wait()
		member.failed.Store(&ended)
		if !c.gateways[1].inStep(0) {
			t.Error("the member is not in step at first")
		}
		began := time.Now()
		err := <-ended
		for errors.Is(err, ErrStopped) { // it dials the gateway that stopped
			err = <-ended
		}
		after := time.Since(began)
		if !errors.Is(err, errLease) || after < 300*time.Millisecond || after > 300*time.Millisecond+2*tick {
			t.Errorf("after %s the stream ends: %v", after, err)
		}
	})
}

// TestInherit: a process that gets the flows of another one long after New waits for the lease of a
// member, which may be in step with the other process.
func TestInherit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ledger := group.NewLedger(group.Config{Members: group.One(0), Slots: slots}, true)
		ledger.Recovered(1)
		x := New(Config{Ledger: ledger, Failed: func(int, error) {}, Now: func() int64 { return time.Now().UnixNano() },
			Waiter: grouptest.NewWaiter(),
			Peers: []Peer{{Owner: session.Owner{Ledger: ledger}, Dial: func(context.Context) (Stream, error) {
				return nil, grouptest.ErrClosed
			}}}})
		time.Sleep(10 * time.Second)
		x.Inherit()
		go x.Run(t.Context())
		verdict := func() (v group.Verdict) {
			x.Do(func() { v = ledger.Verdict(1) })
			return v
		}
		time.Sleep(time.Duration(group.LeaseNanos) - 2*tick)
		if v := verdict(); v != group.Wait {
			t.Errorf("before the lease has run out the verdict is %d, want Wait", v)
		}
		time.Sleep(5 * tick)
		if v := verdict(); v != group.NoMember {
			t.Errorf("after that the verdict is %d, want NoMember", v)
		}
	})
}

// TestStoppedMember: a member that reads nothing costs its own protection only, holds the ports
// that it may have, and gets everything anew.
func TestStoppedMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		g := c.gateways[0]
		for slot := range uint32(2000) {
			g.begin(slot, 1)
		}
		time.Sleep(time.Second)
		c.gateways[2].stalled.Store(true)
		for slot := range uint32(1000) {
			g.end(slot)
		}
		for round := range 60 { // seconds
			for slot := uint32(4000); slot < 5000; slot++ {
				g.begin(slot, uint16(round))
			}
			time.Sleep(time.Second)
			if g.verdict(1999) != group.Protected || !c.gateways[1].inStep(0) {
				t.Fatalf("in round %d the verdict is %d, want Protected by the other member", round, g.verdict(1999))
			}
			for slot := uint32(4000); slot < 5000; slot++ {
				g.end(slot)
			}
		}
		time.Sleep(time.Second)
		if n := g.held(); n < 1000 || n > 2000 {
			t.Errorf("%d ports are held for the stopped member, want 1000, and of the flows until its lease ran out", n)
		}
		c.gateways[2].stalled.Store(false)
		time.Sleep(10 * time.Second)
		c.check("when it reads again,", [3]int{1000, 0, 0})
		if n := g.held(); n != 0 {
			t.Errorf("%d ports are held", n)
		}
	})
}

// slowStore is a group.Store that takes 2 us for each record. A copy is numbered by its source
// address and its slot, which are its reply tuple.
type slowStore struct{ made int }

const slowFlows = 200_000 // of each owner

func slowFlow(owner int, slot uint32) group.Record {
	r := flow(owner, slot, uint16(slot))
	r.Client.DstPort, r.Reply.SrcPort = uint16(slot>>16), uint16(slot>>16)
	return r
}

func (*slowStore) number(r *group.Record) uint32 {
	owner := r.Reply.Dst.As4()[3]
	return 1 + uint32(owner)*slowFlows + uint32(r.Reply.SrcPort)<<16 + uint32(r.Reply.DstPort)
}

func (*slowStore) Find(*group.Record) uint32 { return 0 }

func (s *slowStore) Put(_ uint32, r *group.Record) (uint32, group.Refusal) {
	if s.made++; s.made%256 == 0 {
		time.Sleep(256 * 2 * time.Microsecond)
	}
	return s.number(r), group.Accepted
}

func (*slowStore) CopyState(uint32) conn.CopyState { return conn.CopyState{} }
func (*slowStore) Remove(uint32) group.Age         { return 0 }

// slowOwner is a session.Flows that never changes.
type slowOwner int

func (o slowOwner) Read(slot uint32) (group.Record, bool)   { return slowFlow(int(o), slot), true }
func (slowOwner) Find(header.Tuple) (slot uint32, ok bool)  { return 0, false }
func (slowOwner) Make(*group.Record) (slot uint32, ok bool) { return 0, false }
func (slowOwner) Hold(*group.Record) (slot uint32, ok bool) { return 0, false }
func (slowOwner) ApplyCopyState(group.CopyState)            {}

// TestOwnersAnew: a gateway that gets the flows of six others at once keeps its leases, and soon
// acknowledges flows of a seventh one, with which it is in step.
func TestOwnersAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const owners, other = 7, 6
		now := func() int64 { return time.Now().UnixNano() }
		index, store, waiter := group.NewIndex(1+owners*slowFlows), new(slowStore), grouptest.NewWaiter()
		never := func(ctx context.Context) (Stream, error) { <-ctx.Done(); return nil, ctx.Err() }
		failed := func(_ int, err error) {
			if !errors.Is(err, ErrStopped) && !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}
		self := wire.Greeting{Name: "member", Incarnation: 1}
		c := Config{Ledger: group.NewLedger(group.Config{}, true), Waiter: waiter, Now: now, Failed: failed}
		for i := range owners {
			c.Peers = append(c.Peers, Peer{Dial: never, Owner: session.Owner{Self: self, Ledger: c.Ledger},
				Member: session.Member{Self: self, Owner: fmt.Sprint("gw-", i), Sources: []header.Addr{source(i)},
					Copies: group.NewCopies(i+1, index, store)}})
		}
		member := New(c)
		go member.Run(t.Context())
		var owner *Exchange
		var ledger *group.Ledger
		for i := range owners {
			ledger = group.NewLedger(group.Config{Members: group.One(0), Slots: slowFlows}, true)
			for slot := range uint32(slowFlows) {
				if i != other {
					ledger.Begin(slot)
				}
			}
			w := grouptest.NewWaiter()
			owner = New(Config{Ledger: ledger, Waiter: w, Now: now, Failed: failed, Peers: []Peer{{
				Owner: session.Owner{Self: wire.Greeting{Name: fmt.Sprint("gw-", i), Incarnation: 1},
					Sources: []header.Addr{source(i)}, Ledger: ledger, Flows: slowOwner(i), Name: "member"},
				Dial: func(context.Context) (Stream, error) {
					dialing, listening := grouptest.Pipe(w, waiter, nil, nil, nil)
					return dialing, member.Accept(i, listening)
				}}}})
			go owner.Run(t.Context())
		}
		began, longest := time.Now(), time.Duration(0)
		for slot, in := uint32(0), 0; in < owners; slot++ {
			time.Sleep(50 * time.Millisecond)
			asked := time.Now()
			owner.Do(func() { ledger.Begin(slot) })
			for v := group.Wait; v == group.Wait; {
				time.Sleep(time.Millisecond)
				owner.Do(func() { v = ledger.Verdict(slot) })
			}
			longest = max(longest, time.Since(asked))
			member.Do(func() {
				for in = 0; in < owners && member.InStep(in); {
					in++
				}
			})
			if time.Since(began) > time.Minute || t.Failed() {
				t.Fatalf("after %s the member is in step with the first %d owners", time.Since(began), in)
			}
		}
		t.Logf("in step with all after %s, a flow of gateway %d waited for %s", time.Since(began), other, longest)
		if longest > 25*time.Millisecond {
			t.Errorf("a flow of gateway %d waited for %s", other, longest)
		}
	})
}

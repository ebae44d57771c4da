package peers

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"sluice.dev/sluice/flowtable/conn"
	"sluice.dev/sluice/gateway/group"
	"sluice.dev/sluice/gateway/group/exchange"
	"sluice.dev/sluice/gateway/group/grouptest"
	"sluice.dev/sluice/gateway/group/session"
	"sluice.dev/sluice/gateway/group/wire"
	"sluice.dev/sluice/nat/header"
)

// table is a gateway's flows and copies. Its exchange's Run owns it.
type table struct {
	flows  map[uint32]group.Record
	copies *grouptest.Table
}

func (g *table) Read(slot uint32) (group.Record, bool)     { r, ok := g.flows[slot]; return r, ok }
func (g *table) Find(header.Tuple) (slot uint32, ok bool)  { return 0, false }
func (g *table) Make(*group.Record) (slot uint32, ok bool) { return 0, false }
func (g *table) Hold(*group.Record) (slot uint32, ok bool) { return 0, false }
func (*table) ApplyCopyState(group.CopyState)              {}

// connect runs the exchanges of two gateways over TLS, and returns the exchange and the ledger of
// a, which owns the flows.
func connect(t *testing.T, a, b *member, flows, copies *table) (owner *exchange.Exchange, ledger *group.Ledger) {
	const slots = 1 << 16
	source := []header.Addr{header.AddrFrom4([4]byte{10, 9, 0, 1})}
	start := time.Now()
	now := func() int64 { return int64(time.Since(start)) }
	gateway := func(self, other *member, mine, theirs []header.Addr, g *table) (*exchange.Exchange, *group.Ledger) {
		l := group.NewLedger(group.Config{Members: group.One(0), Slots: slots}, true)
		greeting := wire.Greeting{Name: self.Name, Incarnation: 1}
		x := exchange.New(exchange.Config{Ledger: l, Now: now, Failed: func(int, error) {}, Waiter: self.Transport,
			Peers: []exchange.Peer{{
				Owner: session.Owner{Self: greeting, Sources: mine, Ledger: l, Flows: g, Name: other.Name},
				Member: session.Member{
					Self: greeting, Owner: other.Name, Sources: theirs, Read: g.copies.Read,
					Copies: group.NewCopies(1, group.NewIndex(slots), g.copies),
				},
				Dial: func(ctx context.Context) (exchange.Stream, error) { return self.Dial(ctx, other.Peer) },
			}}})
		return x, l
	}
	owner, ledger = gateway(a, b, source, nil, flows)
	peer, _ := gateway(b, a, nil, source, copies)
	ctx, cancel := context.WithCancel(context.Background())
	a.accept(t, owner)
	b.accept(t, peer)
	var running sync.WaitGroup
	t.Cleanup(running.Wait)
	t.Cleanup(cancel)
	running.Go(func() { owner.Run(ctx) })
	running.Go(func() { peer.Run(ctx) })
	return owner, ledger
}

// accept starts the listener of a member, which gives each stream to its exchange.
func (m *member) accept(t *testing.T, x *exchange.Exchange) {
	m.listen(t, func(_ Peer, s *Stream) error { return x.Accept(0, s) })
}

// TestCopies passes flows between two gateways over TLS, and logs how long a SYN-ACK would wait.
func TestCopies(t *testing.T) {
	ca := newAuthority(t)
	flows := &table{map[uint32]group.Record{}, grouptest.NewTable()}
	copies := &table{map[uint32]group.Record{}, grouptest.NewTable()}
	x, ledger := connect(t, good(t, "gw-a", ca), good(t, "gw-b", ca), flows, copies)
	begin := func(slot uint32) {
		client := header.AddrFrom4([4]byte{192, 0, 2, 1})
		flows.flows[slot] = group.Record{
			Client: header.Tuple{Src: client, Dst: client, SrcPort: uint16(slot), DstPort: 80, Proto: header.ProtoTCP},
			Reply: header.Tuple{Src: client, Dst: header.AddrFrom4([4]byte{10, 9, 0, 1}), SrcPort: 80,
				DstPort: uint16(slot), Proto: header.ProtoTCP},
			State: conn.Established,
		}
		ledger.Begin(slot)
	}
	wait := func(what string, until func() bool) {
		for end := time.Now().Add(20 * time.Second); ; {
			var ok bool
			x.Do(func() { ok = until() })
			if ok {
				return
			} else if time.Now().After(end) {
				t.Fatalf("after 20 s the member has not %s", what)
			}
			time.Sleep(20 * time.Microsecond)
		}
	}
	x.Do(func() {
		for slot := range uint32(20_000) {
			begin(slot)
		}
	})
	wait("read 20,000 flows", ledger.Settled)
	var waits []time.Duration
	for slot := uint32(20_000); slot < 20_300; slot++ {
		began := time.Now()
		x.Do(func() { begin(slot) })
		wait("acknowledged a flow", func() bool { return ledger.Verdict(slot) == group.Protected })
		waits = append(waits, time.Since(began))
	}
	slices.Sort(waits)
	t.Logf("a SYN-ACK waits %s at the median, %s at p99", waits[len(waits)/2], waits[len(waits)*99/100])
}

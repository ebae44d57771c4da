package members

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/fastpath/copies"
	"sluice.dev/sluice/fastpath/thread"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/gateway/group"
	"sluice.dev/sluice/gateway/group/exchange"
	"sluice.dev/sluice/gateway/group/session"
	"sluice.dev/sluice/gateway/group/wire"
	"sluice.dev/sluice/gateway/peers"
	"sluice.dev/sluice/gateway/replication"
	"sluice.dev/sluice/gateway/sources"
	"sluice.dev/sluice/internal/boottime"
	"sluice.dev/sluice/internal/heartbeat"
	"sluice.dev/sluice/internal/logs"
	"sluice.dev/sluice/nat/header"
)

// Config configures Members.
type Config struct {
	Log   *slog.Logger
	Group *config.Group
	Self  string // this node's name, one of the group's
	// Removed are gateways that an earlier process removed: the flow table may have copies of their
	// flows.
	Removed []config.GroupMember
	// StateDir is the directory of the flow table. Kept: the table has the flows of the previous
	// process.
	StateDir string
	Kept     bool
	// Taken: the previous process still uses the flow table. Recover must be called when this
	// process owns it.
	Taken   bool
	Table   *flowtable.Table // of a group
	Workers int
	// KeepAfter is how long after the loss of an owner the copies of its flows do not expire: by
	// then each live connection has had a packet here.
	KeepAfter time.Duration
	// InUse counts the flows with a source address.
	InUse func(netip.Addr) int
	// Opened is called when new flows may get ports of another source address.
	Opened func()
	// RealTime gives the calling thread the precedence of a worker over other processes.
	RealTime func() error
	Beats    *heartbeat.Set
}

// Members is this gateway in its group.
type Members struct {
	c         Config
	self      config.GroupMember
	sources   *sources.Sources
	flows     *replication.Flows
	exchange  *exchange.Exchange
	transport *peers.Transport
	view      atomic.Pointer[View]
	beat      *heartbeat.Beat // of the exchange
	watch     watch
	running   atomic.Bool   // Run has begun
	refused   logs.Limit    // of lines about connections, which any host can open
	refusal   atomic.Uint64 // a later incarnation of this gateway, for which another one has refused it; 0: none has
	joined    atomic.Int64  // when another gateway first had all flows of this process; 0: none has
	unread    bool          // the previous process still uses the flow table: its copies are not counted yet

	mu     sync.Mutex // guards the fields below; the exchange's goroutine reads others without it
	others others     // the exchange's goroutine writes it, after New
	listen string     // why the listener is not open; empty: it is
	slow   string     // why flows may be copied late; empty: the exchange has precedence
}

// others are the other gateways; the index is the group.Member. A gateway keeps its number until it
// is removed and this gateway has no more copies of its flows.
type others [group.MaxMembers]*other

// other is another gateway.
type other struct {
	config.GroupMember
	removed bool   // for good
	err     string // why its last stream has ended; empty: no stream has ended since it was in step
	cause   string // causeOf err, when that was logged
	left    int64  // when a stream ended with ErrLeft; 0: none has since it was in step
}

// find returns the number of a gateway.
func (o *others) find(name string) (i int, found bool) {
	i = slices.IndexFunc(o[:], func(o *other) bool { return o != nil && o.Name == name })
	return i, i >= 0
}

// present returns the gateways that were not removed.
func (o *others) present() (list []*other) {
	for _, of := range o {
		if of != nil && !of.removed {
			list = append(list, of)
		}
	}
	return list
}

// refusedPerSecond bounds the lines about refused connections: any host that reaches the port can
// cause them, and they must not displace all other events.
const refusedPerSecond = 1

// New reads the files, and registers with the flow table. No worker may run yet.
func New(c Config) (*Members, error) {
	at, found := c.Group.Find(c.Self)
	if !found {
		return nil, fmt.Errorf("group.members has no entry for %s, the name of this node", c.Self)
	}
	m := &Members{c: c, self: c.Group.Members[at], listen: "it is not open yet",
		refused: logs.Limit{PerSecond: refusedPerSecond}, unread: c.Taken}
	list := slices.Delete(slices.Clone(c.Group.Members), at, at+1)
	if n := len(list) + len(c.Removed); n > len(m.others) {
		return nil, fmt.Errorf("the group has %d other gateways, with removed ones that may have flows here, and room "+
			"for %d", n, len(m.others))
	}
	slices.SortFunc(list, func(a, b config.GroupMember) int { return cmp.Compare(a.Name, b.Name) })
	for i := range list {
		m.others[i] = &other{GroupMember: list[i]}
	}
	for i := range c.Removed {
		m.others[len(list)+i] = &other{GroupMember: c.Removed[i], removed: true}
	}
	var err error
	if m.transport, err = peers.New(m.peers()); err != nil {
		return nil, fmt.Errorf("group.tls: %w", err)
	}
	if m.sources, err = sources.Start(sources.Config{Log: c.Log, Disk: c.Group.StateDir, Memory: c.StateDir,
		Own: m.self.Sources, Others: sourcesOf(list), Kept: c.Kept, Now: time.Now()}); err != nil {
		return nil, err
	}
	rc := replication.Config{Table: c.Table, Workers: c.Workers, Sources: addresses(m.self.Sources),
		Unowned: c.Taken, Now: now}
	for _, o := range m.others {
		switch {
		case o == nil:
		case o.removed:
			rc.Removed = append(rc.Removed, m.replicated(o))
		default:
			rc.Others = append(rc.Others, m.replicated(o))
		}
	}
	if m.flows, err = replication.New(rc); err != nil {
		return nil, err
	}
	m.exchange = exchange.New(m.streams())
	m.flows.Attach(m.exchange)
	m.updateOrder()
	m.noteInherited()
	m.updateView()
	return m, nil
}

func now() int64 { return int64(boottime.Nanos()) }

// sourcesOf returns the source addresses of gateways.
func sourcesOf(list []config.GroupMember) (of []netip.Addr) {
	for i := range list {
		of = append(of, list[i].Sources...)
	}
	return of
}

func addresses(list []netip.Addr) (of []header.Addr) {
	for _, a := range list {
		of = append(of, header.AddrFrom(a))
	}
	return of
}

// peers returns the configuration of the transport.
func (m *Members) peers() peers.Config {
	c := peers.Config{Self: peer(&m.self), Refused: func(err error) {
		m.refused.Warn(m.c.Log, time.Now(), "a connection of the group is refused", "error", err)
	}}
	c.Files = peers.Files{Certificate: m.c.Group.TLS.CertFile, Key: m.c.Group.TLS.KeyFile,
		Authorities: m.c.Group.TLS.CAFile}
	c.Peers = m.others.peers()
	return c
}

// peers returns the gateways that may connect.
func (o *others) peers() (list []peers.Peer) {
	for _, of := range o.present() {
		list = append(list, peer(&of.GroupMember))
	}
	return list
}

func peer(m *config.GroupMember) peers.Peer { return peers.Peer{Name: m.Name, Address: m.Address} }

func owner(m *config.GroupMember) sources.Owner {
	return sources.Owner{Name: m.Name, Addresses: m.Sources}
}

// streams returns the configuration of the exchange.
func (m *Members) streams() exchange.Config {
	c := exchange.Config{Ledger: m.flows.Ledger(), Waiter: m.transport, Now: now, Step: m.step, Failed: m.failed}
	for i, o := range m.others {
		if o != nil && !o.removed {
			c.Peers = append(c.Peers, m.peerOf(i, o))
		}
	}
	return c
}

func (m *Members) replicated(o *other) replication.Other {
	return replication.Other{Sources: addresses(o.Sources), Later: m.self.Name < o.Name}
}

// peerOf returns the two streams with another gateway.
func (m *Members) peerOf(i int, o *other) exchange.Peer {
	incarnation, _ := m.sources.Incarnation()
	self := wire.Greeting{Name: m.self.Name, Incarnation: incarnation, Sources: sources.Hash(
		owner(&m.self), owner(&o.GroupMember))}
	to := peer(&o.GroupMember)
	return exchange.Peer{
		Owner: session.Owner{Self: self, Sources: addresses(m.self.Sources), Ledger: m.flows.Ledger(),
			Flows: m.flows, Member: group.Member(i), Name: o.Name},
		Member: session.Member{Self: self, Owner: o.Name, Sources: addresses(o.Sources),
			Copies: m.flows.Copies(i), Read: m.flows.ReadCopy},
		Dial: func(ctx context.Context) (exchange.Stream, error) { return m.transport.Dial(ctx, to) },
	}
}

// Board returns the Board that workers share with the streams.
func (m *Members) Board() *copies.Board { return m.flows.Board() }

// OpenAddress returns the family's source address from which new flows get ports; false if no
// address is open.
func (m *Members) OpenAddress(is6 bool) (netip.Addr, bool) { return m.sources.OpenAddress(is6) }

// Former returns this gateway's former source addresses, which flows may still have.
func (m *Members) Former() []netip.Addr { return m.sources.Former() }

// Recover takes over the flows of the previous process. No worker may run yet. The previous process
// attracted packets for the VIPs, and so does this one at once (View.Joined).
func (m *Members) Recover() {
	m.flows.Recover()
	m.unread = false
	m.exchange.Inherit()
	m.watch.joined, m.watch.next = true, 0
	m.noteInherited()
	m.updateView()
}

// Pause stops the use of the flow table until resume is called. It returns an error if the exchange
// has not stopped when ctx ends. Run must have begun.
func (m *Members) Pause(ctx context.Context) (resume func(), err error) {
	paused, resumed := make(chan struct{}), make(chan struct{})
	go func() {
		if !m.exchange.Do(func() { close(paused); <-resumed }) {
			close(paused) // Run has ended
		}
	}()
	resume = sync.OnceFunc(func() { close(resumed) })
	select {
	case <-paused:
		return resume, nil
	case <-ctx.Done():
		resume() // so that an exchange that stops later continues
		return nil, fmt.Errorf("the exchange of flows with other gateways does not stop: %w", ctx.Err())
	}
}

// step is called by the exchange.
func (m *Members) step() {
	m.beat.Beat()
	m.flows.Step()
	m.updateView()
}

// failed is called by the exchange when a stream has ended.
func (m *Members) failed(i int, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	o := m.others[i]
	var refused *peers.RefusedError
	if errors.As(err, &refused) {
		if refused.Reason == exchange.ErrLeft.Error() {
			o.left = now()
		}
		if n, ok := session.Newer(refused.Reason); ok {
			m.refusal.Store(n)
		}
	}
	o.err = err.Error()
	if cause := causeOf(err); o.cause != cause {
		o.cause = cause
		m.c.Log.Warn("a stream with another gateway has ended, and is opened again", "gateway", o.Name, "error", o.err)
	}
}

// causeOf returns the text of an error without the ports of a connection, which differ for each
// attempt to open a stream.
func causeOf(err error) string {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Op + " " + op.Err.Error()
	}
	return err.Error()
}

// Run exchanges flows with the other gateways until ctx is done. Packets to the source addresses of
// all gateways must reach the workers.
func (m *Members) Run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	m.beat = m.c.Beats.Add("exchange of flows with other gateways", heartbeat.DefaultBounds)
	defer m.beat.Rest()
	m.watch.began = now()
	m.running.Store(true)
	running.Go(func() { m.serve(ctx) })
	running.Go(func() { m.openAddresses(ctx) })
	running.Go(func() {
		thread.OnOwnThread(func() {
			m.setPrecedence()
			m.exchange.Run(ctx)
		})
	})
}

// setPrecedence gives the calling thread precedence over other processes: an answer to a SYN waits
// for it at most 2 ms, and other gateways' leases 300 ms.
func (m *Members) setPrecedence() {
	err := m.c.RealTime()
	if err == nil {
		return
	}
	m.mu.Lock()
	m.slow = err.Error()
	m.mu.Unlock()
	m.c.Log.Warn("flows may be copied late while other processes use the CPUs", "error", err)
}

// Verdicts returns for each slot of the flow table whether other gateways have copies of its flow;
// nil if Run does not run. Any goroutine may call it, unless it holds a lock for which Run waits.
func (m *Members) Verdicts(slots []uint32) (list []group.Verdict) {
	if !m.running.Load() {
		return nil
	}
	m.exchange.Do(func() {
		for _, slot := range slots {
			list = append(list, m.flows.Ledger().Verdict(slot))
		}
	})
	return list
}

// Leave tells the other gateways, when Run ends, that no flows stay for a next process. It must be
// called before the end of Run's context.
func (m *Members) Leave() { m.exchange.Leave() }

// Close ends the use of the flow table. Run must have ended.
func (m *Members) Close() {
	m.flows.Close()
	_ = m.transport.Close()
}

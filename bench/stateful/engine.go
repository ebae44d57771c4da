package stateful

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"net/netip"
	"sync/atomic"

	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/nat/header"
)

// Config has an engine's profile and link.
type Config struct {
	Role    Side
	Profile *Profile // validated
	Link    fastpath.Link
	Pool    *fastpath.Pool // the engine's from now on
	UMEM    []byte         // frames of 2 KiB or more
	MAC     [6]byte        // of the interface

	// Own is an address of the interface that is no part of the pool; it may be
	// invalid. The engine answers ARP for it, and resolves the gateway with it.
	Own netip.Addr
	// Gateway is where all packets go. Its MAC is resolved, unless GatewayMAC is set.
	Gateway    netip.Addr
	GatewayMAC [6]byte

	// Targets are what a client connects to, in turn.
	Targets Pool
	// Capacity is how many connections there is room for, those that linger included;
	// enough for the profile if zero.
	Capacity int
	// Removed says for each server when its last removal from service was complete:
	// nanoseconds of the clock that Step is given; zero for never, Removing while it is
	// under way. May be nil. It tells a UDP exchange that had to move from a violation.
	Removed []atomic.Uint64
}

// Removing stands in Config.Removed for a removal that may have been applied or not.
const Removing = math.MaxUint64

// Engine plays one side of a profile on one link. It belongs to one goroutine.
type Engine struct {
	c       Config
	plan    *plan
	link    fastpath.Link
	pool    *fastpath.Pool
	mem     []byte
	role    Side
	six     bool
	tcp     TCP
	mss     uint16
	seed    uint64
	minRTO  uint32 // microseconds
	waitMS  uint32 // of those that linger
	mine    Pool
	targets [][16]byte

	ethernet  [header.EthernetBytes]byte // of everything that is sent; complete once resolved
	resolved  bool
	askedAt   uint32   // milliseconds; time of the last request for the gateway
	first4    uint32   // last four bytes of the pool's first address
	first6    [16]byte // IPv6: its first twelve
	addresses uint32

	conns   []conn
	table   table
	wheel   wheel
	free    uint32 // a stack through next: the last to leave is likely still in cache
	lingers queue
	ready   ring // connections that have something to send
	stats   Stats

	began  uint64 // nanoseconds, of the clock that Step is given
	since  uint64 // nanoseconds since began
	us, ms uint32 // now, since began; from 1

	start  starter
	rx     [rxBatch]fastpath.Desc
	parsed [rxBatch]packet
	tx     [txBatch]fastpath.Desc
	txN    int
	frame  []byte // of the packet that is being written

	observe func(number uint32, payload []byte) // tests: what arrived in order
}

const (
	rxBatch = 64
	txBatch = 64
	// frameHead is how far into a frame packets are written at least; every next frame
	// a cache line more, so that headers do not share the same few lines of the cache.
	frameHead = 64
	// frameRoom is what remains of the smallest frame behind the last of those lines. It is enough
	// for 1500 bytes and the Ethernet header.
	frameRoom = 2048 - frameHead - 7<<6
)

// New returns an engine. Its clock begins with the first Step.
func New(c Config) (*Engine, error) {
	p := c.Profile
	e := &Engine{
		c: c, plan: newPlan(p), link: c.Link, pool: c.Pool, mem: c.UMEM, role: c.Role, tcp: p.TCP,
		mss: uint16(p.TCP.MSS), seed: 0x51ce + uint64(c.Role), minRTO: uint32(p.TCP.MinRTO.Microseconds()),
		waitMS: milliseconds(p.TCP.TimeWait), six: p.Clients.Is6(), stats: NewStats(p), mine: p.Servers,
	}
	if c.Role == Client {
		e.mine = p.Clients
		if c.Targets.Len() < 1 {
			return nil, errors.New("stateful: a client needs targets")
		}
	}
	if e.six {
		e.mss = min(e.mss, 1440)
	}
	if c.Capacity == 0 {
		c.Capacity = capacity(p)
	}
	if c.Capacity > maxConns {
		return nil, fmt.Errorf("stateful: room for %d connections: at most %d are possible", c.Capacity, maxConns)
	}
	e.conns = make([]conn, c.Capacity+1)
	e.table = newTable(c.Capacity)
	e.ready = newRing(c.Capacity)
	for i := range uint32(c.Capacity) {
		e.conns[i+1].next = i
	}
	e.free = uint32(c.Capacity)
	e.wheel = newWheel(0)
	first := e.mine.First.As16()
	e.first6, e.first4, e.addresses = first, binary.BigEndian.Uint32(first[12:]), uint32(e.mine.Len())
	for i := range c.Targets.Len() {
		e.targets = append(e.targets, wireAddress(c.Targets.At(i)))
	}
	copy(e.ethernet[6:], c.MAC[:])
	binary.BigEndian.PutUint16(e.ethernet[12:], header.EtherTypeIPv4)
	if e.six {
		binary.BigEndian.PutUint16(e.ethernet[12:], header.EtherTypeIPv6)
	}
	if c.GatewayMAC != ([6]byte{}) {
		e.resolve(c.GatewayMAC)
	} else if !c.Gateway.IsValid() || c.Gateway.Is6() != e.six {
		return nil, fmt.Errorf("stateful: the gateway %s is no address of the pools' family, and its MAC is not given",
			c.Gateway)
	}
	e.start = newStarter(p)
	return e, nil
}

// capacity is room for all that are open and for those that linger meanwhile.
func capacity(p *Profile) int {
	linger := p.CPS * p.TCP.TimeWait.Seconds()
	if p.CPS == 0 {
		linger = float64(p.Concurrency)
	}
	return min(2*p.Concurrency+int(linger)+1024, maxConns)
}

// wireAddress is an address as records have it: IPv4 in the last four bytes, the rest
// zero.
func wireAddress(a netip.Addr) (b [16]byte) {
	if a.Is4() {
		v4 := a.As4()
		copy(b[12:], v4[:])
		return b
	}
	return a.As16()
}

func (e *Engine) netip(b [16]byte) netip.Addr {
	if e.six {
		return netip.AddrFrom16(b)
	}
	return netip.AddrFrom4([4]byte(b[12:]))
}

// Step does everything there is to do now: it receives, plays timers, begins
// connections and sends. now is in nanoseconds of a clock that only moves forward. It returns how
// many packets moved.
func (e *Engine) Step(now uint64) (moved int) {
	e.setClock(now)
	e.link.Complete(e.pool)
	e.link.Refill(e.pool)
	moved = e.receive()
	e.expire()
	if e.resolved {
		if e.role == Client {
			e.begin()
		}
		e.sendReady()
	} else {
		e.ask()
	}
	moved += e.transmit()
	e.link.Flush()
	return moved
}

func (e *Engine) setClock(now uint64) {
	if e.began == 0 {
		e.began = now - 1_000_000 // so that no time is zero
	}
	e.since = now - e.began
	e.us, e.ms = uint32(e.since/1000), uint32(e.since/1_000_000)
}

// Ready reports whether the gateway's MAC is known.
func (e *Engine) Ready() bool { return e.resolved }

// Stop ends the client's new connections; those that are open go on.
func (e *Engine) Stop() { e.start.stopped = true }

// Frames counts all frames that the engine and its link have: it must stay the UMEM's.
func (e *Engine) Frames() int { return e.pool.Free() + e.link.Frames() + e.txN }

// receive takes one batch. What its packets will touch is loaded for all of them
// before it is used for the first, so that the misses overlap.
func (e *Engine) receive() int {
	n := e.link.Receive(e.rx[:])
	e.stats.Packets.In += uint64(n)
	for i := range n {
		d := e.rx[i]
		p := &e.parsed[i]
		frame := e.mem[d.Addr : d.Addr+uint64(d.Len)]
		p.ok = e.read(p, frame)
	}
	var touched uint32
	var candidates [rxBatch]uint32
	for i := range n {
		if e.parsed[i].ok {
			candidates[i] = e.table.touch(e.parsed[i].hash)
		}
	}
	for i := range n {
		touched += e.conns[candidates[i]].sndUna + uint32(e.conns[candidates[i]].state)
	}
	e.start.touched = touched // used, so that the loads are not left out
	for i := range n {
		if e.parsed[i].ok {
			e.handle(&e.parsed[i])
		}
	}
	for i := range n {
		e.pool.Put(e.rx[i].Addr)
	}
	return n
}

// read parses a frame that is for a connection; others are dealt with at once.
func (e *Engine) read(p *packet, frame []byte) bool {
	switch {
	case len(frame) < header.EthernetBytes:
		e.stats.Packets.Ignored++
		return false
	case [2]byte(frame[12:]) != [2]byte(e.ethernet[12:]):
		e.arp(frame)
		return false
	case e.neighbour(frame):
		return false
	}
	return e.parse(p, frame)
}

// handle finds the packet's connection.
func (e *Engine) handle(p *packet) {
	i := e.table.find(e.conns, &p.key, p.hash)
	switch {
	case i == 0 && e.role == Server && (p.key.protocol == ProtocolUDP ||
		p.flags&(header.TCPSYN|header.TCPACK|header.TCPRST|header.TCPFIN) == header.TCPSYN):
		e.accept(p)
	case i == 0:
		e.stray(p)
	case p.key.protocol == ProtocolUDP:
		e.datagram(i, p)
	default:
		e.segment(i, p)
	}
}

// sendReady lets every connection send that has something to send, until there is
// no room; the others keep their turn.
func (e *Engine) sendReady() {
	for n := e.ready.len(); n > 0; n-- { // not those that are woken meanwhile
		i := e.ready.first()
		c := &e.conns[i]
		if c.state != closed && !e.output(i, c) {
			return
		}
		c.flags &^= queued
		e.ready.drop()
	}
}

// ring is a queue of connection numbers that each is in once at most.
type ring struct {
	v          []uint32
	head, tail uint32
}

func newRing(n int) ring { return ring{v: make([]uint32, 1<<bits.Len(uint(n)))} }

func (r *ring) len() uint32   { return r.tail - r.head }
func (r *ring) first() uint32 { return r.v[r.head&uint32(len(r.v)-1)] }
func (r *ring) drop()         { r.head++ }
func (r *ring) push(i uint32) { r.v[r.tail&uint32(len(r.v)-1)] = i; r.tail++ }

// wake gives the connection a turn to send.
func (e *Engine) wake(i uint32) {
	c := &e.conns[i]
	if c.flags&queued == 0 {
		c.flags |= queued
		e.ready.push(i)
	}
}

// take begins a packet: room in a frame and its headers up to the transport's, which
// begins at the offset that is returned. ok is false if there is no room now.
func (e *Engine) take(c *conn, transportBytes int) (at int, ok bool) {
	if e.txN == txBatch && e.transmit() == 0 {
		return 0, false
	}
	addr, ok := e.pool.Get()
	if !ok {
		return 0, false
	}
	addr += frameHead + (addr>>11&7)<<6
	e.tx[e.txN] = fastpath.Desc{Addr: addr}
	e.frame = e.mem[addr : addr+frameRoom]
	return e.header(e.frame, c, transportBytes), true
}

// sent ends the packet that take began.
func (e *Engine) sent(length int) {
	e.tx[e.txN].Len = uint32(length)
	e.txN++
	e.stats.Packets.Out++
}

// transmit hands over what was written. What the link does not take is kept.
func (e *Engine) transmit() int {
	n := e.link.Transmit(e.tx[:e.txN])
	copy(e.tx[:], e.tx[n:e.txN])
	e.txN -= n
	return n
}

// allocate makes a connection's record; 0 if there is no room. One that lingers gives
// way.
func (e *Engine) allocate(k *key, hash uint32) uint32 {
	if e.free == 0 {
		i := e.lingers.head
		if i == 0 {
			return 0
		}
		e.stats.Packets.CutShort++
		e.release(i)
	}
	i := e.free
	e.free = e.conns[i].next
	c := &e.conns[i]
	was := c.flags & queued // it may still be in ready
	*c = conn{
		peer: k.peer, local: k.local, localPort: k.localPort, peerPort: k.peerPort, protocol: k.protocol,
		hash: hash, opened: e.us, flags: was,
	}
	e.table.insert(hash, i)
	return i
}

// release ends a record, in any state.
func (e *Engine) release(i uint32) {
	c := &e.conns[i]
	e.leave(c)
	if c.state == lingering {
		e.lingers.remove(e.conns, i)
	} else {
		e.wheel.unlink(e.conns, i)
	}
	e.table.remove(c.hash, i)
	c.state = closed
	c.next, e.free = e.free, i
}

// linger keeps a connection that is over for a while: TIME_WAIT.
func (e *Engine) linger(i uint32) {
	c := &e.conns[i]
	e.leave(c)
	e.wheel.unlink(e.conns, i)
	if c.state == lingering {
		e.lingers.remove(e.conns, i)
	}
	c.state = lingering
	c.deadline = e.ms + e.waitMS
	e.lingers.push(e.conns, i)
}

// leave takes a connection out of those that are active.
func (e *Engine) leave(c *conn) {
	if c.flags&counted != 0 {
		c.flags &^= counted
		e.stats.Templates[c.template].Active--
		e.start.active--
	}
}

func (e *Engine) enter(c *conn) {
	c.flags |= counted
	e.stats.Templates[c.template].Active++
	e.stats.Templates[c.template].Opened++
	e.start.active++
}

// expire plays the timers that are due.
func (e *Engine) expire() {
	for i := e.lingers.head; i != 0 && e.conns[i].deadline <= e.ms; i = e.lingers.head {
		e.release(i)
	}
	for {
		i := e.wheel.pop(e.conns, e.ms)
		if i == 0 {
			return
		}
		e.due(i)
	}
}

func (e *Engine) arm(i, afterMS uint32) { e.wheel.arm(e.conns, i, e.ms+max(afterMS, 1)) }

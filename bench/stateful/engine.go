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

// Config holds an engine's profile and link.
type Config struct {
	Role    Side
	Profile *Profile // validated
	Link    fastpath.Link
	Pool    *fastpath.Pool // owned by the engine after New
	UMEM    []byte         // frames of 2 KiB or more
	MAC     [6]byte        // of the interface

	// Own is an address of the interface outside the pool; it may be invalid. The engine answers
	// ARP for it, and resolves the gateway with it.
	Own netip.Addr
	// Gateway is the next hop of all packets. Its MAC is resolved, unless GatewayMAC is set.
	Gateway    netip.Addr
	GatewayMAC [6]byte

	// Targets are the addresses to which a client connects, in turn.
	Targets Pool
	// Capacity is the maximum number of connections, including lingering ones; 0: enough for the
	// profile.
	Capacity int
	// Removed holds for each server the time at which its last removal from service was complete,
	// in nanoseconds of the clock passed to Step; zero for never, Removing during a removal. May be
	// nil. It distinguishes a UDP exchange that had to move from a violation.
	Removed []atomic.Uint64
}

// Removing in Config.Removed means that a removal may or may not have been applied.
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
	waitMS  uint32 // how long connections linger
	mine    Pool
	targets [][16]byte

	ethernet  [header.EthernetBytes]byte // of all outgoing packets; complete once resolved
	resolved  bool
	askedAt   uint32   // milliseconds; time of the last request for the gateway
	first4    uint32   // last four bytes of the pool's first address
	first6    [16]byte // IPv6: its first twelve
	addresses uint32

	conns   []conn
	table   table
	wheel   wheel
	free    uint32 // a stack linked through next: the record released last is likely still in cache
	lingers queue
	ready   ring // connections that have something to send
	stats   Stats

	began  uint64 // nanoseconds, of the clock passed to Step
	since  uint64 // nanoseconds since began
	us, ms uint32 // now, since began; starts at 1

	start  starter
	rx     [rxBatch]fastpath.Desc
	parsed [rxBatch]packet
	tx     [txBatch]fastpath.Desc
	txN    int
	frame  []byte // of the packet being written

	observe func(number uint32, payload []byte) // tests: receives the payload in order
}

const (
	rxBatch = 64
	txBatch = 64
	// frameHead is the least offset of packets in a frame; each next frame adds a cache line, so
	// that headers do not compete for the same few cache lines.
	frameHead = 64
	// frameRoom is the rest of the smallest frame behind the last of these lines. It is enough for
	// 1500 bytes and the Ethernet header.
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

// capacity is room for all open connections and the connections that linger meanwhile.
func capacity(p *Profile) int {
	linger := p.CPS * p.TCP.TimeWait.Seconds()
	if p.CPS == 0 {
		linger = float64(p.Concurrency)
	}
	return min(2*p.Concurrency+int(linger)+1024, maxConns)
}

// wireAddress is an address in the form of records: IPv4 in the last four bytes, the rest zero.
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

// Step receives, runs timers, begins connections and sends, as far as they are due. now is in
// nanoseconds of a monotonic clock. It returns the number of packets received and sent.
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

// Stop ends the opening of connections by the client; open connections continue.
func (e *Engine) Stop() { e.start.stopped = true }

// Frames counts all frames held by the engine and its link: it must always equal the UMEM's.
func (e *Engine) Frames() int { return e.pool.Free() + e.link.Frames() + e.txN }

// receive handles one batch. It first loads the memory that all packets of the batch will use, so
// that the cache misses overlap.
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
	e.start.touched = touched // stored, so that the compiler keeps the loads
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

// read parses a frame of a connection; it handles all other frames at once.
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

// handle finds the packet's connection and passes the packet on.
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

// sendReady lets every connection with pending data send, until there is no room; the others keep
// their place in the queue.
func (e *Engine) sendReady() {
	for n := e.ready.len(); n > 0; n-- { // without connections queued during the loop
		i := e.ready.first()
		c := &e.conns[i]
		if c.state != closed && !e.output(i, c) {
			return
		}
		c.flags &^= queued
		e.ready.drop()
	}
}

// ring is a queue of connection numbers; each number is in it at most once.
type ring struct {
	v          []uint32
	head, tail uint32
}

func newRing(n int) ring { return ring{v: make([]uint32, 1<<bits.Len(uint(n)))} }

func (r *ring) len() uint32   { return r.tail - r.head }
func (r *ring) first() uint32 { return r.v[r.head&uint32(len(r.v)-1)] }
func (r *ring) drop()         { r.head++ }
func (r *ring) push(i uint32) { r.v[r.tail&uint32(len(r.v)-1)] = i; r.tail++ }

// wake queues the connection to send.
func (e *Engine) wake(i uint32) {
	c := &e.conns[i]
	if c.flags&queued == 0 {
		c.flags |= queued
		e.ready.push(i)
	}
}

// take begins a packet: it reserves a frame and writes the headers before the transport header,
// whose offset it returns. ok is false if there is no room now.
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

// sent finishes the packet that take began.
func (e *Engine) sent(length int) {
	e.tx[e.txN].Len = uint32(length)
	e.txN++
	e.stats.Packets.Out++
}

// transmit passes the written packets to the link. It keeps packets that the link does not accept.
func (e *Engine) transmit() int {
	n := e.link.Transmit(e.tx[:e.txN])
	copy(e.tx[:], e.tx[n:e.txN])
	e.txN -= n
	return n
}

// allocate returns a record for a new connection; 0 if there is no room. If the table is full, it
// evicts a lingering connection.
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

// release frees a record, in any state.
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

// linger keeps a finished connection for a while: TIME_WAIT.
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

// leave removes a connection from the active ones.
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

// expire runs the timers that are due.
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

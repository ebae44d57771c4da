package flowtable

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"sluice.dev/sluice/flowtable/conn"
)

// Config sizes a table.
type Config struct {
	// IPv4Flows and IPv6Flows are the maximum numbers of live flows of each family. Either may be
	// 0.
	IPv4Flows, IPv6Flows uint32
	// HalfOpen is the maximum number of half-open flows of both families; 0 means an eighth of all
	// flows.
	HalfOpen uint32
	// LimitSources is the maximum number of tracked sources of limited services, 64 bytes each; 0
	// means DefaultLimitSources.
	LimitSources uint32
	Timeouts     Timeouts
	// Group: other gateways have copies of flows, and the table has copies of theirs (group.go).
	Group bool
	// HashKey is for tests that must be repeatable; zero means a random key.
	HashKey HashKey
}

const (
	maxFlows = 1 << 29 // of each family: record numbers must stay below refV6, and counters within 31 bits

	// bucketLoad is the average number of keys in a bucket of 11 when the table is full. A chain of
	// four buckets then has 20 keys on average; one in 10^6 inserts meets more than 44. If the
	// chain is full, a reply key skips its source port, and a client key ends another flow of the
	// chain (makeRoom).
	bucketLoad = 5

	// The reserve has room for the free records that all handles keep for themselves, and for
	// limbo.
	minReserve   = MaxHandles*(2*magazineSize+freshSize) + 4096
	reserveShare = 32
)

// reserve returns how many records there are beyond the maximum number of live flows: dead records
// wait in limbo, and handles keep some free ones for themselves.
func reserve(flows uint32) uint32 {
	if flows == 0 {
		return 0
	}
	return max(minReserve, flows/reserveShare)
}

func homesFor(flows uint32) uint64 {
	return (2*uint64(flows) + bucketLoad - 1) / bucketLoad
}

// layout has the offsets of the parts in the memory, in bytes.
type layout struct {
	records, buckets [2]int64
	size             int64
}

const headerSize = 4096

func (c *Config) layout() (l layout) {
	at := int64(headerSize)
	for f, flows := range [2]uint32{c.IPv4Flows, c.IPv6Flows} {
		recordSize := int64(unsafe.Sizeof(record4{}))
		if f == 1 {
			recordSize = int64(unsafe.Sizeof(record6{}))
		}
		l.records[f], l.buckets[f] = at, at
		if flows == 0 {
			continue
		}
		at += recordSize * (int64(flows) + int64(reserve(flows)) + 1) // record 0 means none
		l.buckets[f] = (at + 63) &^ 63
		at = l.buckets[f] + int64(unsafe.Sizeof(bucket{}))*int64(homesFor(flows)+chainBuckets-1)
	}
	l.size = (at + headerSize - 1) &^ (headerSize - 1)
	return l
}

// check rejects sizes that cannot be laid out.
func (c *Config) check() error {
	switch {
	case c.IPv4Flows == 0 && c.IPv6Flows == 0:
		return errors.New("flowtable: no flows: set the number of IPv4 or IPv6 flows")
	case c.IPv4Flows > maxFlows || c.IPv6Flows > maxFlows:
		return fmt.Errorf("flowtable: more than %d flows of one family", maxFlows)
	}
	if _, err := c.Timeouts.Lifetimes(); err != nil {
		return fmt.Errorf("flowtable: %w", err)
	}
	return nil
}

// Size returns how many bytes of memory a table needs.
func Size(c Config) (int64, error) {
	if err := c.check(); err != nil {
		return 0, err
	}
	return c.layout().size, nil
}

// Table is the shared table. The head, the records and the index are mapped; everything else is
// lost with the process, and Recover rebuilds it.
type Table struct {
	mem        []byte // keeps heap memory alive
	head       *head
	arenas     [2]arena // IPv4, IPv6
	secret     HashKey
	lifetimes  conn.Lifetimes
	steady     conn.Steady
	geometry   geometries
	halfOpen   int32
	udpIdle    int32  // ticks
	unanswered int32  // how long a UDP question waits for its answer, ticks
	workers    uint32 // number of handles that share the rings

	_        [64]byte
	epoch    atomic.Uint64
	_        [56]byte
	sweep    atomic.Uint64
	_        [56]byte
	orphaned orphaned
	_        [64]byte

	published published

	watermark    atomic.Int32 // participants ever registered at once
	participants [MaxHandles]participant
	orphans      [MaxHandles]orphans
	recovered    [2][16]int32        // live flows at Recover, by state
	leftover     [2][madeRings]*ring // flows at Recover, by kind; nil if there were none
	resting      [restingTables]resting
	abandoned    abandoned
	group        group
	loads        []atomic.Int32
	serviceUses  []serviceUse // by service
	sources      *sources
	log          *Log   // nil: flows are not recorded
	waits        *waits // nil: no handle measures waits; mu guards the pointer

	mu      sync.Mutex // Register and Handle.Close
	handles [MaxHandles]*Handle
}

// published has the sums of the participants' live counters, as of the last Enter or Leave of each.
type published struct {
	live [2][16]atomic.Int32
	_    [64]byte
}

// head is the first page of the memory.
type head struct {
	magic       uint64
	version     uint32
	slots       uint32 // bucketSlots, and so the meaning of ctl
	recordSize  [2]uint32
	flows       [2]uint32
	records     [2]uint32
	homes       [2]uint64
	size        int64
	secret      HashKey
	incarnation uint64 // how often the memory was opened; the highest bit is unnoted
}

// unnoted: flows of a group were lost, and NoteLosses was not called (Recovery.Unnoted). The bit is
// set before the memory lacks the first of them: the process may be killed at any instruction.
const (
	unnoted     = 1 << 63
	unnotedMask = 1<<63 - 1
)

const headMagic = 0x656c626174776f6c // "lowtable", little endian

// view lays a Table over memory.
func view(mem []byte, c *Config) (*Table, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	l := c.layout()
	if int64(len(mem)) < l.size {
		return nil, fmt.Errorf("flowtable: memory of %d bytes, %d needed: see Size", len(mem), l.size)
	}
	if uintptr(unsafe.Pointer(&mem[0]))%64 != 0 {
		return nil, errors.New("flowtable: memory is not aligned to 64 bytes")
	}
	// Pages of loads that no backend uses are never touched.
	t := &Table{mem: mem, halfOpen: int32(c.HalfOpen), loads: make([]atomic.Int32, MaxBackends)}
	t.serviceUses, t.sources = make([]serviceUse, MaxServices), newSources(c.LimitSources)
	t.lifetimes, _ = c.Timeouts.Lifetimes() // checked
	t.steady = t.lifetimes.Steady()
	t.udpIdle = conn.TicksOf(c.Timeouts.UDPIdle)
	t.unanswered = conn.TicksOf(c.Timeouts.UDPUnreplied) + conn.RefreshTicks
	t.resting[restingUDP].makeRoom(c.IPv4Flows + c.IPv6Flows)
	t.resting[restingConnections].makeRoom(minResting)
	t.workers = 1
	if c.HalfOpen == 0 {
		t.halfOpen = int32(max(1, (uint64(c.IPv4Flows)+uint64(c.IPv6Flows))/8))
	}
	// Safety: layout keeps every part inside l.size <= len(mem), and at a multiple of 64.
	t.head = (*head)(unsafe.Pointer(&mem[0]))
	for f, flows := range [2]uint32{c.IPv4Flows, c.IPv6Flows} {
		a := &t.arenas[f]
		a.v6 = f == 1
		if a.flows = flows; flows == 0 {
			a.none()
			continue
		}
		a.records = flows + reserve(flows)
		a.indexBits = indexBits(a.records)
		a.homes = homesFor(flows)
		a.fresh.Store(1)
		// Safety: as above; the types are pointer-free, and their sizes are asserted.
		a.buckets = unsafe.Slice((*bucket)(unsafe.Pointer(&mem[l.buckets[f]])), int(a.homes)+chainBuckets-1)
		if a.v6 {
			a.six = unsafe.Slice((*record6)(unsafe.Pointer(&mem[l.records[f]])), int(a.records)+1)
		} else {
			a.four = unsafe.Slice((*record4)(unsafe.Pointer(&mem[l.records[f]])), int(a.records)+1)
		}
	}
	t.geometry = t.layOut()
	if c.Group {
		t.makeGroup()
	}
	return t, nil
}

// none creates the empty index of a family without flows.
func (a *arena) none() {
	a.homes, a.buckets = 1, make([]bucket, chainBuckets)
	if a.v6 {
		a.six = make([]record6, 1)
	} else {
		a.four = make([]record4, 1)
	}
}

// describe returns the head of this table's memory.
func (t *Table) describe(c *Config) head {
	h := head{magic: headMagic, version: headVersion, slots: bucketSlots, size: c.layout().size}
	h.recordSize = [2]uint32{uint32(unsafe.Sizeof(record4{})), uint32(unsafe.Sizeof(record6{}))}
	for f := range t.arenas {
		a := &t.arenas[f]
		h.flows[f], h.records[f] = a.flows, a.records
		if a.flows != 0 {
			h.homes[f] = a.homes
		}
	}
	return h
}

// New formats memory, which must be aligned to 64 bytes, and returns the empty table in it.
func New(mem []byte, c Config) (*Table, error) { return format(mem, c, 1) }

// format is New with a first value of the head's incarnation.
func format(mem []byte, c Config, incarnation uint64) (*Table, error) {
	t, err := view(mem, &c)
	if err != nil {
		return nil, err
	}
	clear(mem)
	h := t.describe(&c)
	h.secret = c.HashKey
	if h.secret == (HashKey{}) {
		h.secret = randomKey()
	}
	h.incarnation = incarnation
	t.secret = h.secret
	*t.head = h
	return t, nil
}

// NewHeap returns a table in ordinary memory: for tests, replay, and gateways that need not recover
// their flows.
func NewHeap(c Config) (*Table, error) {
	size, err := Size(c)
	if err != nil {
		return nil, err
	}
	return New(heapMemory(size), c)
}

// heapMemory returns size bytes aligned to 64.
func heapMemory(size int64) []byte {
	mem := make([]byte, size+63)
	skip := -uintptr(unsafe.Pointer(&mem[0])) & 63
	return mem[skip : skip+uintptr(size) : skip+uintptr(size)]
}

// Incarnation returns how often the memory was opened: 1 for a table made by New.
func (t *Table) Incarnation() uint64 { return t.head.incarnation & unnotedMask }

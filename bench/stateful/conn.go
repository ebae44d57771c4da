package stateful

import (
	"encoding/binary"
	"math/bits"
)

// conn is one connection: pointer-free, two cache lines. Number 0 of the array is not used, so that
// 0 means "none" in lists and tables.
type conn struct {
	peer [16]byte // IPv4 in the last four bytes

	// Timer links, see wheel; or links of the queue of lingering connections.
	next, prev uint32
	deadline   uint32 // milliseconds; 0: no timeout
	at         uint32 // millisecond of the wheel slot, possibly before deadline; 0: not on the wheel

	// TCP, with the names of RFC 9293, section 3.3.1. For UDP, sndNxt counts the datagrams sent of
	// the own step.
	sndUna, sndNxt, sndMax uint32
	sndEnd                 uint32 // behind the last byte of the own message: the position of FIN
	rcvNxt                 uint32
	rcvDone                uint32 // bytes of the peer's step that have arrived
	rttSeq                 uint32 // the RTT sample ends when this is acknowledged
	srtt, rttvar           uint32 // microseconds

	// Microseconds since the engine began.
	opened, asked, rttAt uint32

	got              uint64 // UDP: datagrams of the peer's step; TCP: a tag received in pieces
	server, peerHash uint32 // of the first tag; server 0: no tag yet
	hash             uint32 // hash of the key, as in the table

	step                uint16 // index of the current step
	local               uint16 // number of the own address in the pool
	localPort, peerPort uint16
	peerWnd, mss        uint16
	template            uint8
	protocol            Protocol
	state               state
	flags               flags
	retries             uint8 // retransmissions since the last answer
	probes              uint8 // probes of a closed window so far; each doubles the interval
	_                   [4]byte
}

type state uint8

const (
	closed    state = iota // in the free list
	synSent                //
	synRcvd                //
	open                   // ESTABLISHED to LAST-ACK; flags distinguish them
	exchange               // UDP
	lingering              // TIME_WAIT, and UDP exchanges whose client may repeat a request
)

type flags uint16

const (
	needAck     flags = 1 << iota
	queued            // is in Engine.ready
	thinking          // the own step waits for its think time
	timing            // a round trip is being timed
	asking            // client: waits for the first answer since asked
	finQueued         // FIN follows sndEnd
	activeClose       // our FIN was queued before the peer's came
	peerFin           // the peer's FIN arrived
	counted           // is in Counts.Active
	probing           // TCP: the peer's window is probed, and is not open yet
	again             // UDP: the step is repeated; datagrams of the answer that have arrived still count
)

// key identifies a connection.
type key struct {
	peer                [16]byte
	local               uint16
	localPort, peerPort uint16
	protocol            Protocol
}

func (c *conn) is(k *key) bool {
	return c.localPort == k.localPort && c.peerPort == k.peerPort && c.local == k.local &&
		c.protocol == k.protocol && c.peer == k.peer
}

// hash is a keyed hash of two multiplications; it never returns 0.
func (k *key) hash(seed uint64) uint32 {
	a := binary.LittleEndian.Uint64(k.peer[:])
	b := binary.LittleEndian.Uint64(k.peer[8:])
	ports := uint64(k.localPort)<<48 | uint64(k.peerPort)<<32 | uint64(k.local)<<16 | uint64(k.protocol)
	hi, lo := bits.Mul64(a^0x9e3779b97f4a7c15^seed, b^0xe7037ed1a0b428db)
	hi, lo = bits.Mul64(hi^lo^ports, 0x8ebc6af09c88c6e3^seed)
	return uint32(hi^lo) | 1
}

// peerHash is the hash of a client's address and port in tags.
func peerHash(peer [16]byte, port uint16) uint32 {
	k := key{peer: peer, peerPort: port}
	return k.hash(0)
}

// table finds connections by key: open addressing with linear probing. Deletion moves later entries
// back, so the table never fills with tombstones. A slot holds the hash and the connection's
// number.
type table struct {
	slots []uint64
	mask  uint32
}

// newTable returns a table for n connections at a load of at most one half.
func newTable(n int) table {
	size := 1 << bits.Len(uint(2*n-1))
	return table{slots: make([]uint64, size), mask: uint32(size - 1)}
}

func (t *table) find(conns []conn, k *key, hash uint32) uint32 {
	for i := hash >> 1 & t.mask; ; i = (i + 1) & t.mask {
		e := t.slots[i]
		if e == 0 {
			return 0
		}
		if uint32(e>>32) == hash && conns[uint32(e)].is(k) {
			return uint32(e)
		}
	}
}

// touch loads the slot that find will read, and returns the first candidate.
func (t *table) touch(hash uint32) uint32 { return uint32(t.slots[hash>>1&t.mask]) }

func (t *table) insert(hash, number uint32) {
	i := hash >> 1 & t.mask
	for t.slots[i] != 0 {
		i = (i + 1) & t.mask
	}
	t.slots[i] = uint64(hash)<<32 | uint64(number)
}

func (t *table) remove(hash, number uint32) {
	i := hash >> 1 & t.mask
	for uint32(t.slots[i]) != number {
		if t.slots[i] == 0 {
			panic("stateful: a connection is not in the table; its key or hash was changed")
		}
		i = (i + 1) & t.mask
	}
	for j := i; ; {
		j = (j + 1) & t.mask
		e := t.slots[j]
		if e == 0 {
			break
		}
		home := uint32(e>>32) >> 1 & t.mask
		if (j-home)&t.mask >= (j-i)&t.mask { // it may move to i
			t.slots[i] = e
			i = j
		}
	}
	t.slots[i] = 0
}

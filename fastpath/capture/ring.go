package capture

import (
	"sync/atomic"

	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/reason"
)

// Point is where a packet was recorded.
type Point uint8

// The points.
const (
	In      Point = iota // as it was received
	Out                  // as it was given to a link
	Dropped              // as it was when it was dropped
)

// Verdict is the worker's decision about a packet.
type Verdict uint8

// The verdicts.
const (
	Forwarded Verdict = iota // to its next hop, perhaps after waiting for it
	ToKernel                 // to the kernel, by the host link
	Drop                     // for Record.Reason
	Generated                // the worker made the packet: an error, an RST, a fragment
)

// Flow is the flow of a packet, as far as it is known.
type Flow struct {
	Known bool // if not, Client and Frontend are the packet's source and destination
	// Reply: the packet is on the reply side, from the backend to the client.
	Reply   bool
	Proto   uint8  // IANA protocol number
	Service uint32 // services.ServiceID; 0 is none
	// Client and Frontend are the client's tuple; Source and Backend are the packet's towards the
	// backend.
	Client, Frontend, Source, Backend flowtable.Socket
}

// Record describes a recorded packet. Its bytes are in the ring.
type Record struct {
	At      uint64 // CLOCK_BOOTTIME, nanoseconds: the start of the step
	Bytes   uint32 // length of the packet
	Link    uint16 // position in the worker's links; not set if Point is Dropped
	Point   Point
	Verdict Verdict
	Reason  reason.Drop
	// Later: the packet is a later fragment, which has no ports.
	Later bool
	Flow  Flow

	// The fields below are set only in samples of dropped packets. Weight is the number of packets
	// that it stands for, Quoted the source and destination of the packet that an ICMP error
	// quotes, QuotedProto its protocol.
	Weight      uint64
	Quoted      [2]flowtable.Socket
	QuotedProto uint8

	start, end uint64 // in the ring's bytes, counted from the ring's beginning
}

// Ring passes records from one worker to one reader. Both sides are wait-free.
//
//	records  ┃ read │ published: [taken, filled) │ being written: [filled, next) ┃
//	bytes    the same, in one piece for each record; a piece that would wrap begins at the start
type Ring struct {
	records []Record // a power of two
	bytes   []byte   // a power of two

	filled atomic.Uint64 // records published; the store in Publish pairs with the load in Read: it publishes them
	_      [7]uint64
	taken  atomic.Uint64 // records read; the store in Read pairs with the load in Add: their room may be reused
	freed  atomic.Uint64 // end of the last record that was read
	_      [6]uint64

	// Only the worker uses these: its own positions, and the reader's as last loaded.
	next, end            uint64
	seenTaken, seenFreed uint64
	lost, over           uint64

	// Lost counts records for which there was no room, Over records beyond the rate. Only the
	// worker stores them.
	Lost, Over atomic.Uint64
}

// minRecord is the packet length for which a ring has records: smaller packets fill the records
// first.
const minRecord = 256

// NewRing returns a ring for bytes bytes of packets, a power of two.
func NewRing(bytes int) *Ring {
	return &Ring{records: make([]Record, bytes/minRecord), bytes: make([]byte, bytes)}
}

// NewRecords returns a ring for n records without bytes, a power of two.
func NewRecords(n int) *Ring { return &Ring{records: make([]Record, n)} }

// Add appends a record with n bytes, at most half of the ring, and returns where to write them; ok
// is false if there is no room. The worker calls it.
func (r *Ring) Add(rec *Record, n int) (b []byte, ok bool) {
	size := uint64(len(r.bytes))
	start := r.end
	if at := start & (size - 1); at+uint64(n) > size {
		start += size - at
	}
	end := start + uint64(n)
	if r.full(end) {
		r.seenTaken = r.taken.Load()
		r.seenFreed = r.freed.Load()
		if r.full(end) {
			r.lost++
			return nil, false
		}
	}
	to := &r.records[r.next&uint64(len(r.records)-1)]
	*to = *rec
	to.start, to.end = start, end
	r.next++
	r.end = end
	at := start & (size - 1)
	return r.bytes[at : at+uint64(n)], true
}

func (r *Ring) full(end uint64) bool {
	return r.next-r.seenTaken == uint64(len(r.records)) || end-r.seenFreed > uint64(len(r.bytes))
}

// Added returns the number of records that were added. Rewind removes those beyond a number that
// Added returned after the last Publish. The worker calls both.
func (r *Ring) Added() uint64 { return r.next }

// Rewind is described at Added.
func (r *Ring) Rewind(added uint64) {
	for r.next > added {
		r.next--
		r.end = r.records[r.next&uint64(len(r.records)-1)].start
	}
}

// CountOver counts n records beyond the rate.
func (r *Ring) CountOver(n uint64) { r.over += n }

// Publish gives the added records to the reader.
func (r *Ring) Publish() {
	if r.filled.Load() != r.next {
		r.filled.Store(r.next)
	}
	if r.lost != r.Lost.Load() {
		r.Lost.Store(r.lost)
	}
	if r.over != r.Over.Load() {
		r.Over.Store(r.over)
	}
}

// Read calls f for the published records, oldest first, until f returns false, and frees their
// room. The record and its bytes are valid during the call only. The reader calls it.
func (r *Ring) Read(f func(*Record, []byte) bool) {
	at := r.taken.Load()
	for end := r.filled.Load(); at != end; {
		rec := &r.records[at&uint64(len(r.records)-1)]
		from := rec.start & uint64(len(r.bytes)-1)
		more := f(rec, r.bytes[from:from+rec.end-rec.start])
		at++
		r.freed.Store(rec.end)
		r.taken.Store(at)
		if !more {
			return
		}
	}
}

// Peek returns the time of the oldest published record; ok is false if there is none.
func (r *Ring) Peek() (at uint64, ok bool) {
	n := r.taken.Load()
	if n == r.filled.Load() {
		return 0, false
	}
	return r.records[n&uint64(len(r.records)-1)].At, true
}

package flowtable

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"sluice.dev/sluice/flowtable/conn"
)

// A table with a Log records where each flow begins and ends. Each handle has a ring of Events: the
// handle that makes or ends a flow writes, and one reader reads all rings (Log.Read). No handle
// waits for the reader: an event for which its ring has no room is counted. Without a Log a flow
// costs three comparisons.

// End is the reason why a flow was removed from the table. The Shed kinds follow EndTimeout: a flow
// shed as kind k has the End EndTimeout+k.
type End uint8

// The reasons.
const (
	EndTimeout      End = End(ShedExpired)         // its timer ran out
	EndDeleted      End = End(NumSheds) + iota - 1 // by an operator, or its frontend is an address of the node now
	EndMoved                                       // its backend did not answer, or GiveUp: its client has another flow
	EndReopened                                    // its client opens it again, or the backend has another connection
	EndEndpointGone                                // its backend does not serve any more
	EndRenumbered                                  // the same connection goes on in a new flow, by other numbers
	EndStopped                                     // the gateway ended, and left no flows to a next process
	numEnds
)

// String returns the name used in the log.
func (e End) String() string {
	switch {
	case e == EndTimeout:
		return "timeout"
	case e < EndDeleted:
		return "shed_" + Shed(e).String()
	case e >= numEnds:
		return "invalid"
	}
	return [...]string{"deleted", "moved", "reopened", "endpoint_gone", "renumbered", "stopped"}[e-EndDeleted]
}

// Event is the begin or the end of a flow.
type Event struct {
	At    Time
	Start Time // of the flow; 0 if it is not known
	// Client and Frontend are the client's tuple, Backend and Source the reply's.
	Client, Frontend, Source, Backend Socket
	Service, BackendRef               uint32 // as Flow.Owner; 0 for a flow of an earlier process without packets since
	Seen                              Ticks  // when the last packet came

	Proto   uint8
	Begins  bool
	V6      bool
	Ended   End
	State   State // at the end
	Reset   bool  // an RST was the last packet, from the side ResetBy
	ResetBy Side
	Fin     bool // direct return: the client has sent a FIN, and no data since
	Proxied bool

	// Counted: Traffic has all packets of the flow, by the side on which they arrived.
	Counted bool
	Traffic [2]Traffic
}

// Log has the events of a table.
type Log struct {
	t     *Table
	rings [MaxHandles]atomic.Pointer[logRing]
	size  int // of a ring, in events
	// accounts has the account of each record, by family.
	accounts accounts
	traffic  bool // packets are counted
}

// logRing passes the events of one handle to the reader.
type logRing struct {
	log    *Log
	events []Event // a power of two

	filled atomic.Uint64 // events written; the store in commit pairs with the load in Read: it publishes them
	_      [7]uint64
	taken  atomic.Uint64 // events read; the store in Read pairs with the load in next: their room may be reused
	_      [7]uint64

	// Only the handle uses these: its own position, and the reader's as last loaded.
	at, seenTaken uint64

	lost atomic.Uint64 // events without room; only the handle stores it
}

// StartLog gives the table a log with rings of size events, a power of two, and with the accounts
// in mem, of AccountBytes bytes, aligned to 8. traffic: packets and bytes of each flow are counted.
// It must be called before the first Register.
func (t *Table) StartLog(size int, mem []byte, traffic bool) (*Log, error) {
	if int64(len(mem)) < t.AccountBytes() {
		return nil, fmt.Errorf("flowtable: accounts of %d bytes, %d needed: see AccountBytes", len(mem),
			t.AccountBytes())
	}
	t.log = &Log{t: t, size: size, traffic: traffic}
	for f := range t.arenas {
		n := t.arenas[f].accounts()
		// Safety: len(mem) was checked; an account is pointer-free.
		t.log.accounts[f] = unsafe.Slice((*account)(unsafe.Pointer(&mem[0])), n)
		mem = mem[n*accountBytes:]
	}
	return t.log, nil
}

// ring returns the ring of a participant. A later owner of the place continues it. Register calls
// it with the table's lock.
func (l *Log) ring(id int) *logRing {
	if l == nil {
		return nil
	}
	r := l.rings[id].Load()
	if r == nil {
		r = &logRing{log: l, events: make([]Event, l.size)}
		l.rings[id].Store(r)
	}
	return r
}

// Read calls f for the events of all handles: for each handle the oldest first. The event is valid
// during the call only. Only one goroutine may call Read at a time.
func (l *Log) Read(f func(*Event)) {
	for id := range l.t.watermark.Load() {
		r := l.rings[id].Load()
		if r == nil {
			continue
		}
		at := r.taken.Load()
		for end := r.filled.Load(); at != end; at++ {
			f(&r.events[at&uint64(len(r.events)-1)])
		}
		r.taken.Store(at)
	}
}

// Lost returns how many events had no room.
func (l *Log) Lost() (n uint64) {
	for id := range l.t.watermark.Load() {
		if r := l.rings[id].Load(); r != nil {
			n += r.lost.Load()
		}
	}
	return n
}

// LogRoom reports whether the handle can end n flows without losing events. A caller that is no
// worker, and ends many flows, waits until it can.
func (h *Handle) LogRoom(n int) bool {
	r := h.log
	return r == nil || r.at-r.taken.Load()+uint64(n) <= uint64(len(r.events))
}

// next returns the event to write, or nil if there is no room. commit publishes it.
func (r *logRing) next() *Event {
	if r.at-r.seenTaken == uint64(len(r.events)) {
		if r.seenTaken = r.taken.Load(); r.at-r.seenTaken == uint64(len(r.events)) {
			r.lost.Store(r.lost.Load() + 1) // one writer
			return nil
		}
	}
	return &r.events[r.at&uint64(len(r.events)-1)]
}

func (r *logRing) commit() {
	r.at++
	r.filled.Store(r.at)
}

// open begins the account of a pending flow, whose sum is set.
func (r *logRing) open(a *arena, i uint32, now Time) {
	r.log.accounts[family(a.v6)][i].open(a.flow(i), now, r.log.traffic)
}

// describe sets the parts of an event that do not depend on its kind.
func (e *Event) describe(a *arena, i uint32, m conn.Meta, now Time) {
	f := a.flow(i)
	*e = Event{
		At: now, Client: f.Source(ClientSide, a.v6), Frontend: f.Destination(ClientSide, a.v6),
		Backend: f.Source(ReplySide, a.v6), Source: f.Destination(ReplySide, a.v6),
		Proto: m.Proto(), V6: a.v6, State: m.State(), Proxied: m.Proxied(), Seen: m.Seen(),
	}
	e.Service, e.BackendRef = f.Owner()
}

// began records a flow that the handle has made. Another handle may have ended it already.
func (r *logRing) began(a *arena, i uint32, now Time) {
	e := r.next()
	if e == nil {
		return
	}
	e.describe(a, i, a.flow(i).load(), now)
	e.Begins, e.Start = true, now
	r.commit()
}

// ended records a flow that the handle has killed; m was its meta. The record is not in limbo yet.
func (r *logRing) ended(a *arena, i uint32, m conn.Meta, why End, now Time) {
	e := r.next()
	if e == nil {
		return
	}
	e.describe(a, i, m, now)
	e.Ended, e.ResetBy, e.Fin = why, m.ResetBy(), m.FinOneSided() && a.direct(i)
	e.Reset = m.Reset() && !e.Fin
	account := &r.log.accounts[family(a.v6)][i]
	if e.Start, e.Counted = r.log.startOf(account, a.flow(i)); e.Counted {
		e.Traffic = [2]Traffic{account.of(ClientSide), account.of(ReplySide)}
	}
	r.commit()
}

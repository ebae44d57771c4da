package flowtable

import (
	"encoding/binary"
	"math/bits"
	"sync/atomic"
	"time"

	"sluice.dev/sluice/flowtable/conn"
	"sluice.dev/sluice/nat/header"
)

// resting holds reply keys whose flow has ended, and whose source port must not yet go to another
// client towards the same backend:
//
//   - UDP: the backend may still answer the first client (answersUntil). Create never takes such a
//     port: the answer would reach another client. Questions and answers are counted (package
//     conn).
//   - TCP and SCTP: the backend may be in TIME_WAIT (conn.Meta.BackendInTimeWait), or may still
//     answer an abandoned handshake. It would compare another client's SYN with the old connection,
//     and accept it only if its timestamp or sequence number is higher (RFC 6191 section 2). Create
//     takes such a port if no other is free.
//
// The reply key of a direct flow has no source port of the gateway, and never rests.
//
// Several keys share a word, which holds the tick up to which they rest. So a key that rests is
// always found, and a port may be skipped because its key shares the word of a resting key. If 95 %
// of the words rest, 96 % of new flows find a free port in maxPortTries tries. UDP has at least one
// word for each flow of the table, so 95 % are reached only if three times as many flows as the
// table holds end early within maxRest.
//
// The words of UDP are in a file next to the table's file (File), for the next process, also if its
// table has another size: a restart does not make the server answer sooner. The words of TCP and
// SCTP are empty after a restart.
type resting struct {
	words []atomic.Uint32
	// latest is the latest tick in words. While no key rests, it saves the load of a word, which
	// may be a cache miss.
	latest atomic.Uint32
}

// minResting is the least number of words.
const minResting = 1 << 18

// makeRoom allocates words for the given number of keys.
func (r *resting) makeRoom(keys uint32) {
	r.words = make([]atomic.Uint32, 1<<bits.Len32(max(minResting, keys)-1))
}

// keep takes over the resting keys of a table of another size; words has that table's words, in
// native byte order. Both numbers of words are powers of two, so a key's word in the larger table
// determines its word in the smaller one. If the other table had fewer words, each word is copied
// to several words here, and keys rest that only shared it.
func (r *resting) keep(words []byte) {
	const wordBytes = 4
	n := len(words) / wordBytes
	if n == 0 || n&(n-1) != 0 {
		return
	}
	for i := range max(n, len(r.words)) {
		if until := binary.NativeEndian.Uint32(words[i%n*wordBytes:]); until != 0 {
			raise(&r.words[i%len(r.words)], Ticks(until))
		}
	}
}

// assume accepts the words of another process, whose keys may rest for longer than limit, because
// the setting was higher there. It clears words with times in the past or far ahead, which may be
// from before the last reboot.
func (r *resting) assume(now Ticks, limit int32) {
	for i := range r.words {
		until := Ticks(r.words[i].Load())
		switch left := until.Since(now); {
		case until == 0:
			continue
		case left < 0 || left > impossibleRestTicks:
			r.words[i].Store(0)
			continue
		case left > limit:
			until = now + Ticks(limit)
			r.words[i].Store(uint32(until))
		}
		raise(&r.latest, until)
	}
}

// impossibleRestTicks is longer than any key rests.
const impossibleRestTicks = int32(time.Hour / conn.Tick)

// There is a table for UDP, and one for TCP and SCTP: a flood of one must not fill the table of the
// other.
const (
	restingUDP = iota
	restingConnections
	restingTables
)

// restingOf returns the table for the keys of a protocol.
func (t *Table) restingOf(proto uint8) *resting { return &t.resting[b2i(header.Stateful(proto))] }

func (r *resting) at(hash uint64) *atomic.Uint32 { return &r.words[hash%uint64(len(r.words))] }

// begin makes a key rest until a tick. It must be called before the swap that ends the flow, or
// that releases its port, because the swap frees the key. If the swap fails, the key rests although
// the flow still has the port, and may rest too long after the flow's end.
func (r *resting) begin(hash uint64, until Ticks) {
	raise(r.at(hash), until)
	raise(&r.latest, until)
}

// raise stores a tick unless the word holds a later one.
func raise(w *atomic.Uint32, until Ticks) {
	for old := w.Load(); until.Since(Ticks(old)) > 0 && !w.CompareAndSwap(old, uint32(until)); {
		old = w.Load()
	}
}

// has reports whether a key rests, or a key that shares its word.
func (r *resting) has(hash uint64, now Ticks) bool {
	return Ticks(r.latest.Load()).Since(now) > 0 && Ticks(r.at(hash).Load()).Since(now) > 0
}

// A UDP flow holds its source port as long as its backend may answer:
//
//	a question has no answer yet    UDPUnreplied after the last datagram
//	as many answers as questions    quietAfterAnswer after the last datagram
//	the datagrams are not counted   UDPUnreplied after the last datagram
//
// When ports run short, a new flow takes a port only from a flow that no longer waits for an
// answer. The port of a flow that ends earlier rests, for at most maxRest. If another gateway has
// forwarded a datagram by its copy, the port rests for UDPUnreplied after that datagram (Release).

// quietAfterAnswer is how long a flow keeps its port after all its questions are answered. The
// other datagrams of an answer, and duplicates, follow the first one at once.
const quietAfterAnswer = Ticks(time.Second/conn.Tick) + 1

// maxRest bounds how long the port of a UDP flow rests if the flow was ended to make room in the
// table, by an operator or with its endpoint. While a flood fills the table, resting must have room
// for all flows that end in that time. If the bound were longer, no client would get a port.
const maxRest = int32(10 * time.Second / conn.Tick)

// maxRestTicks returns the longest time that the port of a UDP flow rests.
func (t *Table) maxRestTicks() int32 { return max(maxRest, t.unanswered) }

// answersUntil returns the time up to which the backend of a UDP flow may still answer its client.
// For other protocols it returns the flow's last-seen time.
func (t *Table) answersUntil(m conn.Meta) Ticks {
	switch {
	case !m.State().UDP():
		return m.Seen()
	case m.Questions() == conn.AllAnswered && m.State() != UDPNew:
		return m.Seen() + quietAfterAnswer
	}
	return m.Seen() + Ticks(t.unanswered)
}

// restsUntil returns the time up to which the port of a flow that ends now rests.
func (t *Table) restsUntil(m conn.Meta, now Ticks) Ticks {
	switch until := t.answersUntil(m); {
	case m.BackendInTimeWait():
		return m.Seen() + Ticks(t.lifetimes[conn.MakeMeta(TimeWaitBackend, 0, 0).Life()])
	case until.Since(now) > maxRest:
		return now + Ticks(maxRest)
	default:
		return until
	}
}

// awaitsAnswer reports whether the backend of a flow may still answer its client.
func (t *Table) awaitsAnswer(m conn.Meta, now Ticks) bool { return t.answersUntil(m).Since(now) > 0 }

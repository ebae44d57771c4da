package layer2

import (
	"net/netip"
	"time"

	"golang.org/x/time/rate"
)

// rounds are the pauses before each repetition of an announcement. RFC 5227, section 2.3, asks for
// two at 2 s, RFC 4861, section 7.2.6, for three at most at 1 s. Busy hosts miss the first ones, so
// they are repeated while a client waits for the answer to its second and third SYN.
var rounds = [...]time.Duration{0, 250 * time.Millisecond, 750 * time.Millisecond, time.Second, 2 * time.Second}

const (
	// announcedPerSecond bounds the announced VIPs per second on a link: an IPv4 address takes two
	// frames, which all hosts of the link process.
	announcedPerSecond = 1000
	announcedAtOnce    = 200
)

// queue has the pending announcements. All entries of a round wait equally long, so each round is a
// queue in time order. A VIP waits in one round at most (waits): entries of it in other rounds are
// void, and are removed when they are first.
type queue struct {
	rounds [len(rounds)][]announcement
	waits  map[netip.Addr]int // by VIP: the round in which it waits
	limit  *rate.Limiter
}

type announcement struct {
	vip  netip.Addr
	at   time.Time
	once bool // belongs to no round, and is never void
}

func newQueue() queue {
	return queue{waits: map[netip.Addr]int{}, limit: rate.NewLimiter(announcedPerSecond, announcedAtOnce)}
}

// add starts the announcements of a VIP, or starts them again.
func (q *queue) add(vip netip.Addr, now time.Time) {
	if round, waits := q.waits[vip]; !waits || round > 0 {
		q.put(0, vip, now)
	}
}

func (q *queue) put(round int, vip netip.Addr, at time.Time) {
	q.waits[vip] = round
	q.rounds[round] = append(q.rounds[round], announcement{vip: vip, at: at})
}

// again announces a VIP once more.
func (q *queue) again(vip netip.Addr, now time.Time) {
	last := len(q.rounds) - 1
	q.rounds[last] = append([]announcement{{vip, now, true}}, q.rounds[last]...)
}

// skip removes void entries at the front of a round.
func (q *queue) skip(round int) {
	for len(q.rounds[round]) > 0 {
		a := q.rounds[round][0]
		if at, waits := q.waits[a.vip]; a.once || waits && at == round {
			return
		}
		q.rounds[round] = q.rounds[round][1:]
	}
}

// take returns the due VIPs within the limit, early rounds first. It drops VIPs that are no longer
// owned.
func (q *queue) take(now time.Time, owned func(netip.Addr) bool) (list []netip.Addr) {
	for r := range q.rounds { // for all rounds first: the limit may end the loop below early
		q.skip(r)
	}
	for r := range q.rounds {
		for ; len(q.rounds[r]) > 0 && !now.Before(q.rounds[r][0].at); q.skip(r) {
			a := q.rounds[r][0]
			is := owned(a.vip)
			if is && !q.limit.AllowN(now, 1) {
				return list
			}
			q.rounds[r] = q.rounds[r][1:]
			if is {
				list = append(list, a.vip)
			}
			switch {
			case a.once:
			case is && r+1 < len(rounds):
				q.put(r+1, a.vip, now.Add(rounds[r+1]))
			default:
				delete(q.waits, a.vip)
			}
		}
	}
	return list
}

// pause is how long to wait when the limit was reached.
const pause = 10 * time.Millisecond

// next returns when the next announcement is due; there is false if none is pending.
func (q *queue) next(now time.Time) (next time.Time, there bool) {
	for _, round := range q.rounds {
		if len(round) == 0 {
			continue
		}
		if at := round[0].at; !there || at.Before(next) {
			next, there = at, true
		}
	}
	if there && !next.After(now) {
		next = now.Add(pause) // the limit was reached
	}
	return next, there
}

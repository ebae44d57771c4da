package layer2

import (
	"net/netip"
	"time"

	"golang.org/x/time/rate"
)

// rounds are how long after the one before an announcement is repeated. RFC 5227, section 2.3, asks
// for two at 2 s, RFC 4861, section 7.2.6, for three at most at 1 s, and hosts that were busy
// missed the first ones: they are repeated while a client waits for its second and third SYN.
var rounds = [...]time.Duration{0, 250 * time.Millisecond, 750 * time.Millisecond, time.Second, 2 * time.Second}

const (
	// announcedPerSecond bounds how many VIPs are announced in a second on a link: an IPv4 address
	// takes two frames, which all hosts of the link read.
	announcedPerSecond = 1000
	announcedAtOnce    = 200
)

// queue has the announcements that are to be made. All of a round wait equally long, so each round
// is a queue in the order of time. A VIP waits in one round at most: what is left of it in others,
// since it began anew, is void, and is taken out when it is first.
type queue struct {
	rounds [len(rounds)][]announcement
	waits  map[netip.Addr]int // the round in which a VIP waits
	limit  *rate.Limiter
}

type announcement struct {
	vip  netip.Addr
	at   time.Time
	once bool // it is of no round, and never void
}

func newQueue() queue {
	return queue{waits: map[netip.Addr]int{}, limit: rate.NewLimiter(announcedPerSecond, announcedAtOnce)}
}

// add begins the announcements of a VIP, also where it was in the middle of them.
func (q *queue) add(vip netip.Addr, now time.Time) {
	if round, waits := q.waits[vip]; !waits || round > 0 {
		q.put(0, vip, now)
	}
}

func (q *queue) put(round int, vip netip.Addr, at time.Time) {
	q.waits[vip] = round
	q.rounds[round] = append(q.rounds[round], announcement{vip: vip, at: at})
}

// again announces a VIP once.
func (q *queue) again(vip netip.Addr, now time.Time) {
	last := len(q.rounds) - 1
	q.rounds[last] = append([]announcement{{vip, now, true}}, q.rounds[last]...)
}

// skip takes out what is void and first.
func (q *queue) skip(round int) {
	for len(q.rounds[round]) > 0 {
		a := q.rounds[round][0]
		if at, waits := q.waits[a.vip]; a.once || waits && at == round {
			return
		}
		q.rounds[round] = q.rounds[round][1:]
	}
}

// take returns the VIPs that are due, as far as the limit allows, the first rounds first. VIPs
// which are not owned any more are left out.
func (q *queue) take(now time.Time, owned func(netip.Addr) bool) (list []netip.Addr) {
	for r := range q.rounds { // all of them: the limit may keep the last ones from being looked at
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

// pause is how long is waited where the limit was met.
const pause = 10 * time.Millisecond

// next returns when something is due.
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
		next = now.Add(pause) // the limit
	}
	return next, there
}

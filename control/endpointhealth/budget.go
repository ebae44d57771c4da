package endpointhealth

import (
	"time"

	"sluice.dev/sluice/control/compiler"
)

// budget bounds the checks a second of all endpoints, and those of each namespace, so that who
// writes Services of one namespace cannot use up what all share (ADR 18). Who comes first has room.
// It counts in checks by TCP a day, so that no check counts as none; other kinds count as many as
// they cost (CheckCost). What checks cost beyond that, by retries for instance, is charged when it
// happens (admit.go).
type budget struct {
	left, share int64
	used        map[string]int64
}

const day = 24 * time.Hour

func newBudget(perSecond, share int) *budget {
	total := int64(perSecond) * int64(day/time.Second)
	b := &budget{left: total, share: total, used: map[string]int64{}}
	if share > 0 {
		b.share = total * int64(share) / 100
	}
	return b
}

// take reserves the checks of a port's endpoints, or reports that there is no room for all.
func (b *budget) take(p *compiler.CheckedPort) bool {
	n := int64(len(p.Endpoints)) * int64(day/p.Check.Interval) * int64(CheckCost(p.Check.Kind)/tcpCost)
	if n > b.left || b.used[p.Namespace]+n > b.share {
		return false
	}
	b.left -= n
	b.used[p.Namespace] += n
	return true
}

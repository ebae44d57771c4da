package endpointhealth

import (
	"time"

	"sluice.dev/sluice/control/compiler"
)

// budget bounds the checks per second of all endpoints and of each namespace, so that an author of
// Services in one namespace cannot use up the shared room (ADR 18). First come, first served. The
// unit is TCP checks per day, so that even a rare check counts; other kinds count by their cost
// (CheckCost). Further costs, such as retries, are charged when they occur (admit.go).
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

// take reserves the checks of a port's endpoints. It returns false, and reserves none, if there is
// no room for all of them.
func (b *budget) take(p *compiler.CheckedPort) bool {
	n := int64(len(p.Endpoints)) * int64(day/p.Check.Interval) * int64(CheckCost(p.Check.Kind)/tcpCost)
	if n > b.left || b.used[p.Namespace]+n > b.share {
		return false
	}
	b.left -= n
	b.used[p.Namespace] += n
	return true
}

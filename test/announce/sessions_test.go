//go:build root

package announce

import (
	"testing"
	"time"
)

// The time from the announcer's start until the router's kernel has the route. Most of it is
// GoBGP's: it waits for 1.5 to 2 s before it connects, which no setting shortens.
func TestStart(t *testing.T) {
	onlyFull(t)
	timed(t, func(t *testing.T, kind string) {
		l := withSession(t, kind, false, false)
		var took []time.Duration
		for range runs() {
			must(t, l.ours.Stop())
			l.routed(vip, false, 5*time.Second)
			begin := time.Now()
			l.start()
			l.routed(vip, true, 20*time.Second)
			took = append(took, time.Since(begin))
		}
		report(t, "the announcer is started", 3*time.Second, took)
	})
}

// steady is longer than the least time between two immediate restarts of a session (package bgp).
const steady = 11 * time.Second

// A session that the router ends, for example because it restarts, is up again as fast as a new
// one: GoBGP itself would wait for 5 s more.
func TestSessionReturns(t *testing.T) {
	onlyFull(t)
	beside(t, func(t *testing.T, kind string) {
		l := withSession(t, kind, false, false)
		command := map[string]string{"bird": "restart four", "frr": "clear bgp *"}[kind]
		var took []time.Duration
		for range runs() {
			l.stays(steady, "before its session ends")
			begin := time.Now()
			_, err := l.router.Ask(l.ctx, command)
			must(t, err)
			l.routed(vip, false, 5*time.Second)
			l.routed(vip, true, 20*time.Second)
			took = append(took, time.Since(begin))
		}
		report(t, "the router has ended the session", 5*time.Second, took)
	})
}

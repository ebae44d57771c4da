package vip

import (
	"context"
	"runtime"
	"testing"
	"time"

	"sluice.dev/sluice/test/bed/machine"
)

// TestBoundFollowsTheMachine: if threads wake late, a bound is longer by that delay for each
// wake-up.
func TestBoundFollowsTheMachine(t *testing.T) {
	d := &demo{Config: Config{Patience: 2}}
	if got := d.within(time.Second, routeWakeUps); got != machine.Slower(2*time.Second) {
		t.Errorf("nothing was late: %v", got)
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	go func() {
		for ctx.Err() == nil { // occupies the only processor, from which the scheduler removes it after 10 ms
		}
	}()
	d.late.Watch(ctx)
	_, late := d.late.Bound(0, 0)
	if got := d.within(time.Second, routeWakeUps); late == 0 || got != machine.Slower(2*time.Second)+routeWakeUps*late {
		t.Errorf("the latest was %v: %v", late, got)
	}
}

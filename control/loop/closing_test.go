package loop_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"sluice.dev/sluice/control/loop"
	"sluice.dev/sluice/control/steer"
	"sluice.dev/sluice/fastpath/services"
)

// slowFlows takes as long for a walk as the test says; what is in use is known when a
// walk begins.
type slowFlows struct {
	begun chan []services.FrontendKey // what is in use
	end   chan struct{}
}

func (f *slowFlows) InUse(s *steer.Set) (used steer.Set) {
	inUse := <-f.begun
	for _, k := range s.Frontends {
		if slices.Contains(inUse, k) {
			used.Frontends = append(used.Frontends, k)
		}
	}
	<-f.end
	return used
}

// TestWalkDoesNotBlockTheLoop: while the flows are walked the loop works on, and
// what was open meanwhile is not closed by the answer, because it may have flows by now.
func TestWalkDoesNotBlockTheLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &slowFlows{make(chan []services.FrontendKey), make(chan struct{})}
		r := newRig(t, func(_ *rig, c *loop.Config) { c.Flows = f })
		for i := 1; i <= 3; i++ {
			r.add(i)
		}
		r.remove(1)
		r.remove(3)
		f.begun <- nil // nobody uses either
		r.add(2)
		r.add(4)
		if _, served := r.handle.Load().FrontendByKey(vipKey(4)); !served || !r.kernel.Frontends[vipKey(4)] {
			t.Error("a new frontend waits for the walk")
		}
		r.add(1)
		r.remove(1)
		f.end <- struct{}{}
		synctest.Wait()
		if !r.kernel.Frontends[vipKey(1)] {
			t.Error("closed by the answer of a walk that began before it was open again")
		}
		if r.kernel.Frontends[vipKey(3)] {
			t.Error("open, and nobody uses it")
		}
		f.begun <- []services.FrontendKey{vipKey(1)}
		f.end <- struct{}{}
		synctest.Wait()
		if !r.kernel.Frontends[vipKey(1)] {
			t.Error("closed while a flow uses it")
		}
		f.begun <- nil
		f.end <- struct{}{}
		synctest.Wait()
		if r.kernel.Frontends[vipKey(1)] || r.Status().Closing != 0 {
			t.Errorf("open, and nobody uses it; %d still to close", r.Status().Closing)
		}
		r.remove(4)
		f.begun <- nil
		r.end()
		time.Sleep(time.Second)
		select {
		case <-r.ended:
			t.Error("the loop ended while its walk goes on: the table may be unmapped")
		default:
		}
		f.end <- struct{}{}
		<-r.ended
	})
}

package loop_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"sluice.dev/sluice/control/compiler"
	"sluice.dev/sluice/control/controltest"
	"sluice.dev/sluice/control/loop"
	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/control/steer"
	"sluice.dev/sluice/control/tracker"
	"sluice.dev/sluice/nat/header"
)

// narrow is a kernel program with room for so many frontends. It does what it can.
type narrow struct {
	*controltest.Kernel
	room  int
	asked []int // how many frontends each Open was for
}

func (k *narrow) Open(s *steer.Set) error {
	k.asked = append(k.asked, len(s.Frontends))
	return k.fill(s)
}

func (k *narrow) Replace(s *steer.Set) error {
	k.Clear()
	return k.fill(s)
}

func (k *narrow) fill(s *steer.Set) error {
	fits, refused := *s, steer.Set{}
	fits.Frontends = nil
	left := k.room - len(k.Frontends)
	for _, f := range s.Frontends {
		switch {
		case k.Frontends[f]:
		case left > 0:
			left--
			fits.Frontends = append(fits.Frontends, f)
		default:
			refused.Frontends = append(refused.Frontends, f)
		}
	}
	k.Set(&fits, true)
	if refused.Empty() {
		return nil
	}
	return &steer.RefusedError{Set: refused, Err: errors.New("the map is full")}
}

// TestFullKernelMapsDelayNothingElse: if the kernel program has no room for an entry, the loop
// becomes ready and applies all else. The entry is retried rarely and alone, and at once when there
// is room.
func TestFullKernelMapsDelayNothingElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &narrow{room: 3}
		r := newRig(t, func(r *rig, c *loop.Config) {
			k.Kernel, c.Steering = r.kernel, k
			var b tracker.Batch
			for i := range 5 {
				b.Upsert(objects.Source{Kind: "test"}, controltest.Service(i))
			}
			r.tracker.Apply(&b)
		})
		synctest.Wait()
		select {
		case <-r.Ready():
		default:
			t.Fatal("not ready with room for 3 of 5")
		}
		r.add(5)
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if read, applied, _ := r.Reached(); read != applied || len(k.Frontends) != 3 {
			t.Errorf("read %d, applied %d, %d frontends", read, applied, len(k.Frontends))
		}
		if r.SteeringError() == nil || r.Status().SteeringError == "" {
			t.Error("nobody hears of what is refused")
		}
		if len(k.asked) > 20 { // by ever more rarely up to a minute
			t.Errorf("asked %d times in ten minutes: %v", len(k.asked), k.asked)
		}
		asked := len(k.asked)
		r.remove(5)
		for i := range 2 {
			r.remove(i)
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if len(k.Frontends) != 3 || r.SteeringError() != nil {
			t.Errorf("after two went %d frontends are steered, want 3; %v", len(k.Frontends), r.SteeringError())
		}
		for _, n := range k.asked[asked:] {
			if n > 3 {
				t.Errorf("%d frontends were opened again, want only those that were refused", n)
			}
		}
		r.end()
	})
}

// TestFirstTableHasTheNodesConfiguration: the configuration of the first table is made when the
// feeds have synced, and nothing is steered by another.
func TestFirstTableHasTheNodesConfiguration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wrong, right := header.AddrFrom4([4]byte{192, 0, 2, 66}), header.AddrFrom4([4]byte{192, 0, 2, 7})
		prepared := 0
		r := newRig(t, func(r *rig, c *loop.Config) {
			away := errors.New("away")
			r.feed.err.Store(&away)
			c.Compiler = compiler.New(compiler.Config{NodeAddresses: []header.Addr{wrong}})
			c.Prepare = func(cfg *compiler.Config) {
				prepared++
				cfg.NodeAddresses = []header.Addr{right}
			}
		})
		if prepared != 0 {
			t.Error("asked before the feeds have synced")
		}
		r.feed.err.Store(nil)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if s := r.handle.Load(); prepared != 1 || s.Owned(right) == 0 || s.Owned(wrong) != 0 {
			t.Errorf("prepared %d times; the first table has another configuration", prepared)
		}
		if r.kernel.Flags(right) == 0 || r.kernel.Flags(wrong) != 0 || len(r.kernel.Log) != 1 {
			t.Errorf("the kernel program was asked %v, want once for the whole", r.kernel.Log)
		}
		r.end()
	})
}

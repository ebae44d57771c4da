package loop_test

import (
	"testing"
	"testing/synctest"
	"time"

	"sluice.dev/sluice/control/loop"
	"sluice.dev/sluice/control/steer"
	"sluice.dev/sluice/internal/heartbeat"
)

// stuck is a kernel program that does not answer while its channel has no value.
type stuck struct {
	loop.Steering
	answer chan struct{}
	stands *bool
}

func (s stuck) Open(set *steer.Set) error {
	if *s.stands {
		<-s.answer
	}
	return s.Steering.Open(set)
}

// TestBeat: an idle loop beats; one that is blocked is late after 15 s, and to be restarted after a
// minute.
func TestBeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var beats heartbeat.Set
		stands, answer := false, make(chan struct{})
		r := newRig(t, func(r *rig, c *loop.Config) {
			c.Beats = &beats
			c.Steering = stuck{r.kernel, answer, &stands}
		})
		r.add(1)
		time.Sleep(time.Hour)
		if late := beats.Late(); len(late) != 0 {
			t.Errorf("idle: %v", late)
		}
		stands = true
		r.add(2)
		time.Sleep(16 * time.Second)
		if late := beats.Late(); len(late) != 1 || late[0].Restart {
			t.Errorf("stalled for 16 s: %v", late)
		}
		time.Sleep(time.Minute)
		if late := beats.Late(); len(late) != 1 || !late[0].Restart {
			t.Errorf("stalled for 76 s: %v", late)
		}
		stands = false
		close(answer)
		r.settle()
		if late := beats.Late(); len(late) != 0 {
			t.Errorf("goes on: %v", late)
		}
		r.end()
		<-r.ended
		time.Sleep(time.Hour)
		if late := beats.Late(); len(late) != 0 {
			t.Errorf("ended: %v", late)
		}
	})
}

package kubewatch

import (
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/tools/cache"

	"sluice.dev/sluice/internal/heartbeat"
)

// TestBeating: a handler that does not return is late, and one that has returned is not.
func TestBeating(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s heartbeat.Set
		wait := func() { time.Sleep(time.Minute) }
		h := Beating(s.Add("reader of Services", heartbeat.DefaultBounds), cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { wait() }, UpdateFunc: func(any, any) { wait() }, DeleteFunc: func(any) { wait() },
		})
		for name, event := range map[string]func(){
			"add":    func() { h.OnAdd(nil, false) },
			"update": func() { h.OnUpdate(nil, nil) },
			"delete": func() { h.OnDelete(nil) },
		} {
			go event()
			time.Sleep(30 * time.Second)
			if len(s.Unready()) != 1 {
				t.Errorf("%s: not late after 30 s", name)
			}
			time.Sleep(time.Hour)
			if late := s.Unready(); len(late) > 0 {
				t.Errorf("%s: late after it has returned: %v", name, late)
			}
		}
	})
}

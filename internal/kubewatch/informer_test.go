package kubewatch

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/cache"

	"sluice.dev/sluice/internal/heartbeat"
)

// TestFailing: objects count as unread some seconds after a request failed or began without an
// answer, until a watch is open again. A list alone shows no later change.
func TestFailing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := &Informer{}
		forbidden := errors.New("forbidden")
		want := func(what string, err error, age time.Duration) {
			t.Helper()
			since, got := i.Failing()
			if !errors.Is(got, err) || got != nil && time.Since(since) != age {
				t.Errorf("%s: %v since %v, want %v since %v", what, got, time.Since(since), err, age)
			}
		}
		request := func(err error, watching bool) {
			i.begin()
			_ = i.note(t.Context(), err, watching)
		}
		request(nil, true)
		time.Sleep(time.Hour)
		want("watched", nil, 0)
		request(apierrors.NewResourceExpired("old"), true)
		time.Sleep(time.Hour)
		want("an expired watch", nil, 0)
		request(forbidden, true)
		want("forbidden now", nil, 0)
		time.Sleep(tolerated)
		request(nil, false)
		want("forbidden, and listed", forbidden, tolerated)
		request(nil, true)
		want("watched again", nil, 0)
		i.begin()
		time.Sleep(time.Minute)
		want("no answer", errNoAnswer, time.Minute)
	})
}

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

package neigh

import (
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/internal/heartbeat"
)

// TestStalledMirror: a mirror whose request to the kernel blocks is reported as late; an idle
// mirror, or one that continues, is not.
func TestStalledMirror(t *testing.T) {
	var beats heartbeat.Set
	inBubble(t, Config{Beats: &beats}, func(m *mirror, k *fakeKernel) {
		m.settle(time.Hour)
		if late := beats.Unready(); len(late) > 0 {
			t.Errorf("idle: %q", late)
		}
		hangs := make(chan struct{})
		k.set(func() { k.hangs = hangs })
		k.ch <- []event{{kind: topologyChanged}}
		m.settle(17 * time.Second)
		if late := beats.Unready(); len(late) != 1 ||
			!strings.HasPrefix(late[0], "mirror of routes and neighbours: stalled") {
			t.Errorf("blocked: %q", late)
		}
		close(hangs)
		m.settle(2 * time.Second)
		if late := beats.Unready(); len(late) > 0 {
			t.Errorf("goes on: %q", late)
		}
	})
}

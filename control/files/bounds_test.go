package files

import (
	"testing"
	"testing/synctest"
	"time"

	"sluice.dev/sluice/internal/heartbeat"
)

// TestReaderBounds: a reader that decodes the largest file on a busy machine is not late, and one
// that a disk blocks is, and asks for no restart.
func TestReaderBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s heartbeat.Set
		s.Add("reader", readerBounds).Beat()
		time.Sleep(3*100*time.Second - 1)
		if late := s.Unready(); len(late) > 0 {
			t.Errorf("the largest file, thrice as slow: %q", late)
		}
		time.Sleep(24 * time.Hour)
		if len(s.Unready()) != 1 || len(s.Dead()) != 0 {
			t.Errorf("blocked: unready %q, dead %q", s.Unready(), s.Dead())
		}
	})
}

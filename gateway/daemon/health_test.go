package daemon

import (
	"testing"

	"sluice.dev/sluice/gateway/workers"
)

// TestHealthIsCheap: the answer about health reads workers and loops alone. A daemon without a
// snapshot, a table and a control loop has it.
func TestHealthIsCheap(t *testing.T) {
	d := &Daemon{workers: &workers.Group{}}
	if list, stalled := d.progress(); len(list) != 0 || len(stalled) != 0 {
		t.Errorf("%v, %v", list, stalled)
	}
}

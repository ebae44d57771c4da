package flows

import (
	"testing"

	"sluice.dev/sluice/flowtable"
)

// TestConnections: only open TCP keeps a daemon that was asked to stop.
func TestConnections(t *testing.T) {
	var c flowtable.Counts
	for s, n := range map[flowtable.State]uint64{
		flowtable.TimeWaitClient: 1, flowtable.TimeWaitBackend: 1, flowtable.Closed: 1,
		flowtable.UDPNew: 100, flowtable.UDPReplied: 100, flowtable.UDPAssured: 100, flowtable.ICMPEcho: 100,
	} {
		c.Live[0] += n
		c.States[s] = n
	}
	if n := Connections(&c); n != 0 {
		t.Errorf("%d of flows that are over, or of other protocols", n)
	}
	for s := flowtable.SynSeen; s <= flowtable.LastAckBackend; s++ {
		c.States[s] = 2
	}
	if n := Connections(&c); n != 16 {
		t.Errorf("%d open, want 16", n)
	}
}

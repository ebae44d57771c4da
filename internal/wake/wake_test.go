package wake

import "testing"

// TestFlag: a flag that was raised any number of times is received once, and can be raised again.
func TestFlag(t *testing.T) {
	f := NewFlag()
	for range 2 {
		f.Raise()
		f.Raise()
		<-f
		select {
		case <-f:
			t.Fatal("received twice")
		default:
		}
	}
}

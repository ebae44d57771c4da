package prefetch

import "testing"

// TestAnyAddress: the stubs may be given any address, read and write nothing, and stop where they
// should; that they die of none is all that can be seen.
func TestAnyAddress(t *testing.T) {
	var v [40][64]byte
	Read(nil)
	offsets := []uint64{0, 1 << 40, 64}
	WriteAll(&v[0][0], &offsets[0], 8, len(offsets))
	if v != [40][64]byte{} {
		t.Fatal("something was written")
	}
}

package mapped

import "testing"

func TestSlice(t *testing.T) {
	mem := make([]byte, 64)
	s := Slice[uint64](mem, 16, 6)
	s[5] = 1<<56 | 2
	if len(s) != 6 || cap(s) != 6 || mem[56] != 2 || mem[63] != 1 {
		t.Errorf("6 values at 16: %d values, memory %v", len(s), mem)
	}
	for _, c := range []struct {
		name   string
		offset int64
		n      int
	}{
		{"one too many", 16, 7},
		{"none", 0, 0},
		{"behind the end", 64, 1},
		{"before the beginning", -8, 1},
		{"not aligned", 4, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("accepted")
				}
			}()
			Slice[uint64](mem, c.offset, c.n)
		})
	}
}

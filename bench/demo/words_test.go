package demo

import "testing"

func TestWords(t *testing.T) {
	for _, tc := range []struct{ name, got, want string }{
		{"counts, largest first, zeros left out", counts(map[string]uint64{"a": 1, "c": 2000, "b": 1, "none": 0}),
			"c 2,000, a 1, b 1"},
		{"counts beyond half the range", counts(map[string]uint64{"a": 1, "b": 1 << 63}),
			"b 9,223,372,036,854,775,808, a 1"},
		{"no counts", counts(nil), "none"},
		{"keys", keys(map[string]int64{"b": 1, "a": 2}), "a b"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.got != tc.want {
				t.Errorf("got %q, want %q", tc.got, tc.want)
			}
		})
	}
}

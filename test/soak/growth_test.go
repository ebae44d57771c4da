package soak

import "testing"

func TestGrowth(t *testing.T) {
	descriptors := func(values ...int) (list []sample) {
		for _, n := range values {
			list = append(list, sample{descriptors: n})
		}
		return list
	}
	memory := func(values ...uint64) (list []sample) {
		for _, n := range values {
			list = append(list, sample{anonymous: n << 20})
		}
		return list
	}
	for _, tc := range []struct {
		name    string
		bound   int // index in bounds
		samples []sample
		judged  bool
		grows   bool
	}{
		{"flat", 1, descriptors(40, 41, 40, 42, 40, 41, 40, 40), true, false},
		{"a start is not growth", 1, descriptors(10, 20, 40, 40, 41, 40, 40, 40), true, false},
		{"one more with each sample", 1, descriptors(40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51), true, true},
		{"one outlier", 1, descriptors(40, 40, 40, 40, 40, 40, 40, 40, 40, 90, 40, 40), true, false},
		{"too few", 1, descriptors(1, 2, 3, 4, 5, 6, 70), false, false},
		{"memory within its bound", 0, memory(90, 100, 100, 100, 100, 100, 100, 108), true, false},
		{"memory beyond its bound", 0, memory(90, 100, 100, 100, 104, 108, 112, 116), true, true},
		{"shrinks", 0, memory(90, 100, 100, 90, 80, 70, 60, 50), true, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g, judged := growthOf(&bounds[tc.bound], tc.samples)
			if judged != tc.judged {
				t.Fatalf("judged %v, want %v", judged, tc.judged)
			}
			if judged && (g.err() != nil) != tc.grows {
				t.Errorf("%v from %.0f to %.0f, want growth %v", g.err(), g.first, g.last, tc.grows)
			}
		})
	}
}

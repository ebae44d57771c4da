package drops

import "math/rand/v2"

// reservoir keeps at most max samples of one reason. Two samples are merged into one of them,
// chosen with a probability in proportion to its weight, which gets the weight of both. So the sum
// of the weights, and the expected weight of a client, do not change.
type reservoir struct {
	max  int
	list []Sample
	each int // samples that one of list stands for; 0 is 1
	last int // samples that the last one of list stands for so far
}

func (t *reservoir) add(s Sample) {
	if len(t.list) == t.max && t.max == 1 || len(t.list) > 0 && t.last < t.each {
		t.list[len(t.list)-1].merge(&s)
		t.last++
		return
	}
	if len(t.list) == t.max {
		t.halve()
		t.add(s)
		return
	}
	t.list, t.last = append(t.list, s), 1
}

// halve merges neighbours in time.
func (t *reservoir) halve() {
	t.each = max(1, t.each)
	n := 0
	for i := 0; i < len(t.list); i += 2 {
		t.list[n] = t.list[i]
		t.last = t.each
		if i+1 < len(t.list) {
			t.list[n].merge(&t.list[i+1])
			t.last = 2 * t.each
		}
		n++
	}
	t.list, t.each = t.list[:n], 2*t.each
}

// merge makes s stand for the packets of both.
func (s *Sample) merge(other *Sample) {
	both := s.Weight + other.Weight
	if rand.Uint64N(both) < other.Weight {
		*s = *other
	}
	s.Weight = both
}

package compiler

import "sluice.dev/sluice/control/steer"

// keptSources counts, by source, the backends whose replies must be caught by their source.
type keptSources struct {
	count map[steer.KeepSource]int32
	delta map[steer.KeepSource]int // in the running compile, +1: new, -1: gone, 0: both
}

func (k *keptSources) add(s steer.KeepSource, by int32) {
	before := k.count[s]
	now := before + by
	if now == 0 {
		delete(k.count, s)
	} else {
		k.count[s] = now
	}
	if before == 0 {
		k.delta[s]++
	} else if now == 0 {
		k.delta[s]--
	}
}

// steer lists the sources that opened and closed.
func (k *keptSources) steer(s *steer.Change) {
	for source, n := range k.delta {
		switch {
		case n > 0:
			s.Open.KeepSources = append(s.Open.KeepSources, source)
		case n < 0:
			s.Close.KeepSources = append(s.Close.KeepSources, source)
		}
	}
}

package compiler

import (
	"sluice.dev/sluice/control/steer"
	"sluice.dev/sluice/fastpath/services"
)

// draft is the snapshot that a compile makes.
type draft struct {
	builder    *services.Builder
	changed    bool // it differs from the snapshot before
	generation uint64
	frontends  map[services.FrontendKey]int // +1: new, -1: gone, 0: both
}

func newDraft(before *services.Snapshot) draft {
	d := draft{builder: services.NewBuilder(before), generation: 1, frontends: map[services.FrontendKey]int{}}
	if before != nil {
		d.generation = before.Generation + 1
	}
	return d
}

// steer lists the frontends that opened and closed.
func (d *draft) steer(s *steer.Change) {
	for k, n := range d.frontends {
		switch {
		case n > 0:
			s.Open.AddFrontend(k)
		case n < 0:
			s.Close.AddFrontend(k)
		}
	}
}

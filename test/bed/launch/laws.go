package launch

import (
	"context"
	"fmt"
	"time"

	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/test/bed/topo"
)

// Laws returns the statistics at a moment when both laws hold exactly for every
// worker, or says which one does not, after a while in which no traffic should flow.
func (g *Gateway) Laws(ctx context.Context) (status.StatsView, error) {
	var s status.StatsView
	err := topo.Until(ctx, g.patience(5*time.Second), 10*time.Millisecond, func(ctx context.Context) (err error) {
		if s, err = g.Client.Stats(ctx); err != nil {
			return topo.Final(err)
		}
		return brokenLaws(&s)
	})
	return s, err
}

func brokenLaws(s *status.StatsView) error {
	for i := range s.Workers {
		w := &s.Workers[i]
		if !w.PacketLaw.Holds {
			return fmt.Errorf("worker %d: packet law: in %d, accounted %d", w.Worker, w.PacketLaw.In,
				w.PacketLaw.Accounted)
		}
		if !w.FrameLaw.Holds {
			return fmt.Errorf("worker %d: frame law: %+v", w.Worker, w.FrameLaw)
		}
	}
	return nil
}

package launch

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sluice.dev/sluice/control/status"
)

// Laws returns the statistics at a moment when both laws hold exactly for every
// worker, or says which one does not, after a while in which no traffic should flow.
func (g *Gateway) Laws(ctx context.Context) (status.StatsView, error) {
	ctx, cancel := context.WithTimeout(ctx, g.patience(5*time.Second))
	defer cancel()
	for {
		s, err := g.Client.Stats(ctx)
		if err != nil {
			return s, err
		}
		broken := brokenLaws(&s)
		if broken == "" {
			return s, nil
		}
		select {
		case <-ctx.Done():
			return s, errors.New(broken)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func brokenLaws(s *status.StatsView) string {
	for i := range s.Workers {
		w := &s.Workers[i]
		if !w.PacketLaw.Holds {
			return fmt.Sprintf("worker %d: packet law: in %d, accounted %d", w.Worker, w.PacketLaw.In,
				w.PacketLaw.Accounted)
		}
		if !w.FrameLaw.Holds {
			return fmt.Sprintf("worker %d: frame law: %+v", w.Worker, w.FrameLaw)
		}
	}
	return ""
}

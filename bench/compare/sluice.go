package compare

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"sluice.dev/sluice/test/bed/launch"
)

// sluice is the daemon, with its defaults unless CPUs or options are given.
type sluice struct {
	path     string
	revision string            // of the binary's answers; "": that of this build
	files    map[string][]byte // manifests
	cpus     []int             // of the workers; nil: the daemon chooses
	options  string            // extra configuration
	room     string            // configuration that makes room for many flows
	ours     bool              // it belongs to this process's session
	gate     *launch.Gateway
}

func (s *sluice) start(ctx context.Context, p *place) (err error) {
	options := s.room
	if s.options != "" {
		options += s.options + "\n"
	}
	if s.cpus != nil {
		list, err := json.Marshal(s.cpus)
		if err != nil {
			return err
		}
		options += fmt.Sprintf("workers: %d\nworkerCPUs: %s\n", len(s.cpus), list)
	}
	s.gate, err = launch.New(launch.Config{Sluice: s.path, Host: p.gateway, NodeName: gatewayNode,
		Revision: s.revision, Options: options, InSession: s.ours})
	if err != nil {
		return err
	}
	for name, text := range s.files {
		if err := s.gate.Write(name, text); err != nil {
			return err
		}
	}
	if err := s.gate.Start(ctx); err != nil {
		return err
	}
	st, err := s.gate.Client.Status(ctx, true)
	if err != nil {
		return err
	}
	if st.Snapshot.Frontends == 0 || len(st.Problems) > 0 {
		return fmt.Errorf("the daemon serves %d frontends, %d problems: %+v", st.Snapshot.Frontends, len(st.Problems),
			st.Problems)
	}
	return nil
}

func (s *sluice) stop() error {
	if s.gate == nil {
		return nil
	}
	g := s.gate
	s.gate = nil
	return errors.Join(g.Stop(), g.Close())
}

// counters are the drops of the workers, of the sockets' rings and of the XDP program.
func (s *sluice) counters(ctx context.Context) (map[string]uint64, error) {
	v, err := s.gate.Client.Stats(ctx)
	if err != nil {
		return nil, err
	}
	c := map[string]uint64{}
	for _, w := range v.Workers {
		for reason, n := range w.Drops {
			c["sluice "+reason] += n
		}
	}
	for _, q := range v.Queues {
		c["sluice rx ring full"] += q.RxRingFull
		c["sluice fill ring empty"] += q.RxFillRingEmpty
		c["sluice rx dropped"] += q.RxDropped
	}
	for name, n := range v.FlowEvents {
		c["sluice flows "+name] += n
	}
	return c, nil
}

func (s *sluice) diagnosis() string {
	if s.gate == nil {
		return ""
	}
	return s.gate.Log()
}

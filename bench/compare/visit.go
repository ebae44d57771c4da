package compare

import (
	"context"
	"errors"

	"sluice.dev/sluice/test/bed/launch"
	"sluice.dev/sluice/test/bed/stateless"
	"sluice.dev/sluice/test/bed/topo"
)

// Visit is a system in its place, with a generator whose flows are established, for experiments
// other than a comparison.
type Visit struct {
	System  string
	Senders Senders
	// Process is the process that forwards in user space; else 0.
	Process int
	// Gateway receives packets from the client at Front; Server has the receiver.
	Gateway, Server *topo.Host
	Front           string
	Lab             *stateless.Lab // receives with stateless.Timed
}

// processes is a system that is a process.
type processes interface{ pid() int }

func (s *sluice) pid() int  { return s.gate.PID() }
func (x *program) pid() int { return x.process.PID() }

// Each visits each system of a Config with each of its senders and numbers of Services. use may use
// the visit until it returns. keep is the number of packets whose time stamps the receiver keeps.
// Each returns at the first error.
func Each(ctx context.Context, c Config, keep int, use func(context.Context, *Visit) error) (err error) {
	if err := c.check(); err != nil {
		return err
	}
	if _, err := launch.Sweep(); err != nil {
		return err
	}
	older, err := c.findBefore(ctx)
	if err != nil {
		return err
	}
	s := newStage(&c)
	s.before, s.keep = older, keep
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.open(ctx); err != nil {
		return err
	}
	for _, n := range c.Services {
		for _, from := range c.Rows {
			if err := s.prepare(ctx, n, from); err != nil {
				return err
			}
			for _, k := range c.kinds(from) {
				if err := s.with(ctx, k, func(ctx context.Context, x *subject) error {
					return s.visit(ctx, x, use)
				}); err != nil {
					return err
				}
			}
		}
	}
	return s.closeKept()
}

func (s *stage) visit(ctx context.Context, x *subject, use func(context.Context, *Visit) error) error {
	v := &Visit{System: x.kind.name, Senders: s.Senders, Gateway: x.place.gateway, Server: x.place.server,
		Front: frontDev}
	if p, ok := x.system.(processes); ok {
		v.Process = p.pid()
	}
	return s.generating(ctx, x, new(figures), stateless.Timed, func(lab *stateless.Lab) error {
		v.Lab = lab
		return use(ctx, v)
	})
}

package compare

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"sluice.dev/sluice/bench/paired"
)

// subject is a system in its place, ready to be measured.
type subject struct {
	kind   kind
	place  *place
	system system
}

// stage makes subjects. It makes kube-proxy subjects once and keeps them, because kube-proxy needs
// a minute for thousands of Services. While they are not measured their process is stopped
// (SIGSTOP) and they receive no packets, so they cost nothing. All other subjects are made for one
// measurement and removed after it.
type stage struct {
	*Config
	Senders                             // of this run
	services  int                       // of this run
	temporary string                    // directory
	asavie    string                    // path of the program
	files     map[int]map[string][]byte // manifests by number of Services
	control   *control                  // nil if no kube-proxy is measured
	kept      map[string]*subject       // by kind.base
	broken    map[string]error          // by kind.base: why a system cannot be measured
	before    paired.Binary             // if Config.Before names an older build
	keep      int                       // number of packets per trial whose time stamps the receiver keeps
	undoFirst func() error              // if Config.First is set; else nil
}

func newStage(c *Config) *stage {
	return &stage{Config: c, files: map[int]map[string][]byte{}, kept: map[string]*subject{},
		broken: map[string]error{}}
}

// newSystem returns an unstarted system of a kind.
func (s *stage) newSystem(k *kind) (system, error) {
	switch k.base() {
	case ours:
		return s.newSluice(sluice{path: s.Sluice}, s.services)
	case "sluice-one":
		return s.newSluice(sluice{path: s.Sluice}, 1)
	case placed:
		return s.newSluice(sluice{path: s.Sluice, cpus: s.fewCPUs()}, s.services)
	case shared:
		return s.newSluice(sluice{path: s.Sluice, options: "waiting: shared"}, s.services)
	case withOptions:
		return s.newSluice(sluice{path: s.Sluice, options: s.Options}, s.services)
	case paired.Before:
		return s.newSluice(sluice{path: s.before.Path, revision: s.before.Revision}, s.services)
	case "xdp-nat":
		return &xdpNAT{services: natServices(s.services, s.protocol()), flows: s.Flows, sources: s.sources}, nil
	case "l2fwd":
		args := []string{"l2fwd", "--i-own-this-network", "--waiting", string(s.waiting(s.Senders))}
		return &program{path: s.Bench, args: args, queues: s.Queues, cpus: s.fewCPUs()}, nil
	case "asavie":
		return &program{path: s.asavie, queues: s.Queues, cpus: s.workerCPUs()}, nil
	case "asavie-drained":
		return &program{path: s.asavie, args: []string{"--drain"}, queues: s.Queues, cpus: s.workerCPUs()}, nil
	case "kernel":
		return kernel{}, nil
	case "nftables", withOffloads:
		n := nftables{protocol: s.protocol()}
		if s.many() {
			n.from = s.sources(nil)
		}
		return n, nil
	case "kube-proxy-nftables":
		return &kubeProxy{mode: "nftables", control: s.control}, nil
	case "kube-proxy-iptables":
		return &kubeProxy{mode: "iptables", control: s.control}, nil
	}
	return nil, fmt.Errorf("system %s has no implementation", k.name)
}

// newSluice adds the manifests to a daemon's configuration.
func (s *stage) newSluice(x sluice, services int) (system, error) {
	if s.files[services] == nil {
		files, err := manifests(services, s.protocol())
		if err != nil {
			return nil, err
		}
		s.files[services] = files
	}
	x.files, x.room, x.ours = s.files[services], s.room(), s.First
	return &x, nil
}

// with builds or reuses a subject, runs use while the system forwards, and stops the system.
func (s *stage) with(ctx context.Context, k kind, use func(context.Context, *subject) error) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s: %w", k.name, err)
		}
	}()
	if err := s.broken[k.base()]; err != nil {
		return err
	}
	sub := s.kept[k.base()]
	if sub == nil {
		if sub, err = s.build(ctx, k); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, sub.close()) }()
	}
	here := &subject{kind: k, place: sub.place, system: sub.system}
	if p, ok := here.system.(*kubeProxy); ok {
		if err := p.freeze(false); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, p.freeze(true)) }()
	}
	if mask, _ := s.mask(k.rps); mask != 0 {
		for _, dev := range s.receiving() {
			if err := steerPackets(here.place.gateway, dev, s.Queues, mask); err != nil {
				return err
			}
			defer func() { err = errors.Join(err, steerPackets(here.place.gateway, dev, s.Queues, 0)) }()
		}
	}
	if err := use(ctx, here); err != nil {
		return explained(err, here.system)
	}
	return nil
}

// receiving returns the gateway's interfaces on which packets arrive.
func (s *stage) receiving() []string {
	if s.BothWays || s.Bulk {
		return []string{frontDev, backDev}
	}
	return []string{frontDev}
}

// build makes a place and starts a system in it.
func (s *stage) build(ctx context.Context, k kind) (*subject, error) {
	x, err := s.newSystem(&k)
	if err != nil {
		return nil, err
	}
	p, err := newPlace(s.Queues, k.base() == withOffloads)
	if err != nil {
		return nil, err
	}
	sub := &subject{kind: k, place: p, system: x}
	if err := x.start(ctx, p); err != nil {
		return nil, errors.Join(explained(err, x), sub.close())
	}
	return sub, nil
}

func (s *subject) close() error { return errors.Join(s.system.stop(), s.place.close()) }

// explained adds the last lines of a system's log to an error.
func explained(err error, x system) error {
	const last, longest = 3, 160
	lines := strings.Split(strings.TrimSpace(x.diagnosis()), "\n")
	if lines[0] == "" {
		return err
	}
	lines = lines[max(0, len(lines)-last):]
	for i, l := range lines {
		lines[i] = l[:min(len(l), longest)]
	}
	return fmt.Errorf("%w\n\tits log ends:\n\t%s", err, strings.Join(lines, "\n\t"))
}

// closeKept takes down the kept subjects.
func (s *stage) closeKept() error {
	var errs []error
	for name, sub := range s.kept {
		errs = append(errs, sub.close())
		delete(s.kept, name)
	}
	return errors.Join(errs...)
}

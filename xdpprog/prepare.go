package xdpprog

import (
	"errors"

	"github.com/cilium/ebpf"
)

// prepared is an instance of a program that is being loaded or has been loaded. The verifier takes
// most of the time of a start, and packets that find no socket are dropped meanwhile, so the
// programs of all interfaces are loaded concurrently.
type prepared struct {
	program string
	done    chan struct{} // closed once the following are valid
	c       *ebpf.Collection
	err     error
}

// prepare loads an instance of the steering program, so that an error of the kernel is found now
// and not at Attach. Meanwhile it starts to load the other programs that Config expects.
func (s *Steering) prepare() error {
	first := &prepared{program: steerProgSteer, done: make(chan struct{})}
	s.prepared = append(s.prepared, first)
	var others []string
	for i := 1; i < s.config.Interfaces; i++ {
		others = append(others, steerProgSteer)
	}
	if s.config.HostLink {
		others = append(others, steerProgHostLink, steerProgEgress)
	}
	for _, program := range others {
		p := &prepared{program: program, done: make(chan struct{})}
		s.prepared = append(s.prepared, p)
		spec := s.instanceSpec(program)
		go func() {
			defer close(p.done)
			p.c, p.err = s.load(program, spec)
		}()
	}
	defer close(first.done)
	first.c, first.err = s.load(first.program, s.instanceSpec(first.program))
	return first.err
}

// prepareAll is prepare, and returns the error of each program that the kernel rejects, once per
// program. It ignores the egress program: a start succeeds without it, and AttachEgress returns its
// error.
func (s *Steering) prepareAll() error {
	_ = s.prepare() // the first one's error is below
	var errs []error
	reported := map[string]bool{steerProgEgress: true}
	for _, p := range s.prepared {
		if <-p.done; p.err != nil && !reported[p.program] {
			reported[p.program] = true
			errs = append(errs, p.err)
		}
	}
	return errors.Join(errs...)
}

// prepareBeside is Prepare for a Steering that the caller closes.
func (s *Steering) prepareBeside() error {
	err := s.openMapsInUse()
	if errors.Is(err, ErrMisfit) {
		if refused := s.tryAlone(); refused != nil {
			return refused
		}
	}
	if err != nil {
		return err
	}
	return s.prepareAll()
}

// tryAlone loads the programs with new maps, as a start does that replaces the maps in use, and
// closes them all.
func (s *Steering) tryAlone() (err error) {
	alone := &Steering{config: s.config, spec: s.spec, maps: map[string]*ebpf.Map{}}
	alone.config.PinDir = ""
	defer func() { err = errors.Join(err, alone.Close(false)) }()
	if err := alone.openMaps(); err != nil {
		return err
	}
	return alone.prepareAll()
}

// instance returns a program with the shared maps and its own per-port maps: a prepared one, or a
// new one.
func (s *Steering) instance(program string) (*ebpf.Collection, error) {
	for i, p := range s.prepared {
		if p.program == program {
			s.prepared = append(s.prepared[:i:i], s.prepared[i+1:]...)
			<-p.done
			return p.c, p.err
		}
	}
	return s.load(program, s.instanceSpec(program))
}

// closePrepared closes the instances that were never used.
func (s *Steering) closePrepared() {
	for _, p := range s.prepared {
		if <-p.done; p.err == nil {
			p.c.Close()
		}
	}
	s.prepared = nil
}

package rollout

import (
	"math/rand/v2"
	"net/netip"
	"time"
)

// pod is one endpoint with its state.
type pod struct {
	addr  netip.Addr
	host  int // index of its host
	old   bool
	phase phase
	due   time.Duration // of the next phase, on the rollout's clock
	// left is the start of the write that marks the pod as terminating, died the time when its
	// address was removed; zero before.
	left, died time.Time
}

// phase is a phase in a pod's life.
type phase int

const (
	starting phase = iota
	ready
	terminating
	dead
)

// rollout behaves like a Deployment's controllers (k8s.io/kubernetes
// pkg/controller/deployment/rolling.go, reconcileNewReplicaSet and reconcileOldReplicaSets): at
// most maxSurge more pods than replicas, not counting terminating ones, and at least replicas minus
// maxUnavailable ready ones.
type rollout struct {
	replicas           int
	surge, unavailable int
	grace              time.Duration
	random             *rand.Rand
	next               func() *pod // makes a pod with an address of its own
	pods               []*pod      // old ones first
}

// newRollout begins with all replicas old and ready. 25 % are rounded up for maxSurge and down for
// maxUnavailable (ResolveFenceposts, pkg/controller/deployment/util).
func newRollout(c *Config, next func() *pod) *rollout {
	r := &rollout{
		replicas: c.Replicas, surge: (c.Replicas + 3) / 4, unavailable: c.Replicas / 4,
		grace: c.Grace, random: rand.New(rand.NewPCG(c.Seed, 1)), next: next,
	}
	for range c.Replicas {
		p := next()
		p.old, p.phase = true, ready
		r.pods = append(r.pods, p)
	}
	return r
}

// step holds the pods that are created, become ready, begin to terminate and end at one time. The
// caller applies the changes to the network, and writes the slice if anything changed.
type step struct {
	born, ready, ended, died []*pod
}

func (s *step) any() bool { return len(s.born)+len(s.ready)+len(s.ended)+len(s.died) > 0 }

// step advances to a time.
func (r *rollout) step(now time.Duration) (s step) {
	for _, p := range r.pods {
		switch {
		case p.phase == starting && p.due <= now:
			p.phase = ready
			s.ready = append(s.ready, p)
		case p.phase == terminating && p.due <= now:
			p.phase = dead
			s.died = append(s.died, p)
		}
	}
	old, fresh, unready := r.count()
	for range min(r.replicas-fresh, r.replicas+r.surge-old-fresh) {
		p := r.next()
		// Images are pulled and programs start at different speeds: half to one and a half times.
		p.due = now + startup/2 + time.Duration(r.random.Int64N(int64(startup)+1))
		r.pods = append(r.pods, p)
		s.born = append(s.born, p)
		fresh++
		unready++
	}
	down := min(old, old+fresh-(r.replicas-r.unavailable)-unready)
	for _, p := range r.pods {
		if down > 0 && p.old && p.phase == ready {
			p.phase, p.due = terminating, now+r.grace
			s.ended = append(s.ended, p)
			down--
		}
	}
	return s
}

// count counts old pods that are not terminating, new pods, and new pods that are not ready.
func (r *rollout) count() (old, fresh, unready int) {
	for _, p := range r.pods {
		switch {
		case p.old && p.phase == ready:
			old++
		case !p.old:
			fresh++
			if p.phase == starting {
				unready++
			}
		}
	}
	return old, fresh, unready
}

// done reports whether all pods are new and ready, and all old pods are dead.
func (r *rollout) done() bool {
	for _, p := range r.pods {
		if p.old && p.phase != dead || p.phase == starting {
			return false
		}
	}
	return len(r.pods) == 2*r.replicas
}

// Package assign gives Services of manifests their addresses, on a machine without an API server:
// pools are in the gateway's configuration, and the allocator is the controller's (allocate/pools).
//
//	Services of the directory ─▶ Decide ─▶ status.loadBalancer of each, as if it stood in its manifest
//	                             │    ▲
//	              addresses.json ▼    │ of stateDir: what each was given
//
// What must hold:
//   - Addresses that a manifest's status has are the Service's, whatever pools say, and nobody
//     else's.
//   - A Service keeps what it was given while its manifest is there, its pool has the address and
//     it asks for nothing else, also over restarts: the file has it. Another Service moves it only
//     by listing the address in its status.
//   - Without the file the result follows from pools and manifests alone: those that ask for an
//     address come first, then each by namespace and name. Two gateways that start with the same
//     manifests decide alike.
package assign

import (
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"sluice.dev/sluice/allocate/pools"
	"sluice.dev/sluice/internal/wake"
)

// Class is the loadBalancerClass of Services that are ours; those without a class are, too.
const Class = "sluice.dev/sluice"

// Config configures an Assigner.
type Config struct {
	Log *slog.Logger
	// StateDir has the file; empty: nothing is kept.
	StateDir string
}

// Assigner decides. It is safe for concurrent use.
type Assigner struct {
	Config
	changed wake.Flag

	mu    sync.Mutex // guards the others
	pools []*pools.Pool
	kept  map[string][]netip.Addr // what each was given
	owns  bool                    // the file is this process's to write
	said  string                  // what was logged of the file
}

// New returns an Assigner without pools. It reads the file for each decision, and writes none,
// before Own.
func New(c Config) *Assigner {
	return &Assigner{Config: c, changed: wake.NewFlag(), kept: map[string][]netip.Addr{}}
}

// Own makes the file this process's: no other one writes it.
func (a *Assigner) Own() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.owns {
		return
	}
	a.load()
	a.owns = true
	a.changed.Raise()
}

// SetPools replaces the pools.
func (a *Assigner) SetPools(list []*pools.Pool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.pools = list
	a.changed.Raise()
}

// Changed receives when decisions may be others than before.
func (a *Assigner) Changed() <-chan struct{} { return a.changed }

// Given is what was decided about a Service.
type Given struct {
	Addresses []netip.Addr // none: what its manifest has stays
	Problem   string       // why there are none, or not all; empty if nothing is wrong
}

// Decide returns what Services have, by key (pools.KeyOf). Those that are not in it are none of
// ours, or have what their manifest says.
func (a *Assigner) Decide(services []*corev1.Service) map[string]Given {
	a.mu.Lock()
	defer a.mu.Unlock()
	given := map[string]Given{}
	if len(a.pools) == 0 {
		return given // what was given is kept for pools that come back
	}
	if !a.owns {
		a.load()
	}
	var alloc pools.Allocator
	alloc.SetPools(a.pools)
	open := a.adopt(&alloc, services)
	kept := map[string][]netip.Addr{}
	for _, s := range open {
		key := pools.KeyOf(s)
		r := alloc.Converge(s, nil)
		given[key] = Given{r.Addresses, a.problem(key, r)}
		switch {
		case len(r.Addresses) > 0:
			kept[key] = r.Addresses
		case a.kept[key] != nil:
			kept[key] = a.kept[key] // for when it can have that again
		}
	}
	if !maps.EqualFunc(kept, a.kept, slices.Equal) {
		a.kept = kept
		a.save()
	}
	return given
}

// adopt claims what Services have, and returns those that are to be decided about, in that order.
func (a *Assigner) adopt(alloc *pools.Allocator, services []*corev1.Service) (open []*corev1.Service) {
	for _, s := range services {
		key := pools.KeyOf(s)
		switch has := pools.StatusOf(s); {
		case len(has) > 0: // of whatever type: they are served
			alloc.Adopt(s, nil) // so that others may share
			claimed, _ := alloc.Claimed(key)
			rest := slices.DeleteFunc(has, func(x netip.Addr) bool { return slices.Contains(claimed, x) })
			alloc.Occupy("listed: "+key, "Service "+key+", whose manifest has it in its status,", "", rest)
		case s.Spec.Type != corev1.ServiceTypeLoadBalancer:
		case s.Spec.LoadBalancerClass == nil || *s.Spec.LoadBalancerClass == Class:
			open = append(open, WithAddresses(s, a.kept[key]))
		}
	}
	slices.SortStableFunc(open, func(s, t *corev1.Service) int { return pools.CompareWishes(s, t) })
	for _, s := range open {
		alloc.Adopt(s, nil)
	}
	return open
}

// problem returns what is wrong with a decision as long as it stands. That it replaced an address
// is logged.
func (a *Assigner) problem(key string, r pools.Result) (text string) {
	if r.Refusal != nil {
		return r.Refusal.Error()
	}
	for _, n := range r.Notes {
		if n.Reason == pools.PoolEmpty {
			text = n.Error()
			continue
		}
		a.Log.Warn("a Service has another address than before", "service", key, "why", n.Message)
	}
	return text
}

// WithAddresses returns a copy of a Service whose status has these addresses.
func WithAddresses(s *corev1.Service, list []netip.Addr) *corev1.Service {
	s = s.DeepCopy()
	s.Status.LoadBalancer.Ingress = nil
	for _, a := range list {
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress,
			corev1.LoadBalancerIngress{IP: a.String()})
	}
	return s
}

func (a *Assigner) load() {
	if a.StateDir == "" {
		return
	}
	kept, err := Load(a.StateDir)
	if err != nil {
		a.say("addresses that Services were given are not known, and are chosen anew", err)
		return
	}
	a.kept = kept
}

func (a *Assigner) save() {
	if !a.owns {
		return
	}
	if err := Save(a.StateDir, a.kept); err != nil {
		a.say("addresses of Services are not kept for the next process", err)
	}
}

// say logs what is wrong with the file, once.
func (a *Assigner) say(what string, err error) {
	text := fmt.Sprint(what, err)
	if text != a.said {
		a.said = text
		a.Log.Warn(what, "file", filepath.Join(a.StateDir, File), "error", err)
	}
}

// Package assign gives Services in manifests addresses, on a machine without an API server. The
// pools are in the gateway's configuration; the allocator is the controller's (allocate/pools).
//
//	Services of the directory ─▶ Decide ─▶ status.loadBalancer of each, as if its manifest had it
//	                             │    ▲
//	              addresses.json ▼    │ in stateDir: the addresses given to each
//
// What must hold:
//   - Addresses that a manifest's status lists belong to its Service, regardless of pools, and are
//     given to no other one.
//   - A Service keeps its address, also over restarts (the file has it), while its manifest exists,
//     its pool has the address and the Service asks for no other. Another Service can take it only
//     by listing it in its status.
//   - Without the file the result depends only on pools and manifests: Services that ask for an
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

// Class is the loadBalancerClass to serve; Services without a class are served too.
const Class = "sluice.dev/sluice"

// Config configures an Assigner.
type Config struct {
	Log *slog.Logger
	// StateDir is the directory of the file; empty: nothing is saved.
	StateDir string
}

// Assigner decides which addresses Services have. It is safe for concurrent use.
type Assigner struct {
	Config
	changed wake.Flag

	mu     sync.Mutex // guards the fields below
	pools  []*pools.Pool
	kept   map[string][]netip.Addr // addresses given to each Service
	owns   bool                    // this process may write the file
	logged string                  // last logged problem of the file
}

// New returns an Assigner without pools. Before Own it reads the file for each decision and does
// not write it.
func New(c Config) *Assigner {
	return &Assigner{Config: c, changed: wake.NewFlag(), kept: map[string][]netip.Addr{}}
}

// Own makes this process the only writer of the file.
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

// Changed receives when Decide may return other results.
func (a *Assigner) Changed() <-chan struct{} { return a.changed }

// Given is the decision about a Service.
type Given struct {
	Addresses []netip.Addr // none: the status in the manifest stays
	Problem   string       // why it has none, or not all; empty if nothing is wrong
}

// Decide returns the decisions about Services by key (pools.KeyOf). It leaves out Services of other
// classes, and Services whose manifest lists addresses.
func (a *Assigner) Decide(services []*corev1.Service) map[string]Given {
	a.mu.Lock()
	defer a.mu.Unlock()
	given := map[string]Given{}
	if len(a.pools) == 0 {
		return given // keep the addresses for pools that come back
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
			kept[key] = a.kept[key] // until they are free again
		}
	}
	if !maps.EqualFunc(kept, a.kept, slices.Equal) {
		a.kept = kept
		a.save()
	}
	return given
}

// adopt claims the addresses that Services have, and returns the Services to decide about, in
// order.
func (a *Assigner) adopt(alloc *pools.Allocator, services []*corev1.Service) (open []*corev1.Service) {
	for _, s := range services {
		key := pools.KeyOf(s)
		switch has := pools.StatusOf(s); {
		case len(has) > 0: // of any type: the gateway serves them
			alloc.Adopt(s, nil) // so that others may share
			claimed, _ := alloc.Claimed(key)
			rest := slices.DeleteFunc(has, func(x netip.Addr) bool { return slices.Contains(claimed, x) })
			alloc.Reserve("listed: "+key, "Service "+key+", whose manifest has it in its status,", "", rest)
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

// problem returns why a Service lacks addresses. If a decision replaced an address, it logs that.
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
		a.warn("the saved addresses of Services cannot be read; addresses are chosen again", err)
		return
	}
	a.kept = kept
}

func (a *Assigner) save() {
	if !a.owns {
		return
	}
	if err := Save(a.StateDir, a.kept); err != nil {
		a.warn("addresses of Services cannot be saved for the next process", err)
	}
}

// warn logs a problem with the file, once.
func (a *Assigner) warn(what string, err error) {
	text := fmt.Sprint(what, err)
	if text != a.logged {
		a.logged = text
		a.Log.Warn(what, "file", filepath.Join(a.StateDir, File), "error", err)
	}
}

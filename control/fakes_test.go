package control_test

import (
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"sluice.dev/sluice/control"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
)

// kernel is a Steering that remembers.
type kernel struct {
	mu        sync.Mutex // guards set against flags
	frontends map[services.FrontendKey]bool
	ports     map[control.NodePort]bool
	addrs     map[header.Addr]services.AddrFlags
	keep      map[control.KeepSource]bool
	log       []string              // calls, in order
	refuse    atomic.Pointer[error] // what it answers instead of doing anything
}

func newKernel() *kernel {
	k := &kernel{}
	k.clear()
	return k
}

func (k *kernel) clear() {
	k.frontends, k.ports = map[services.FrontendKey]bool{}, map[control.NodePort]bool{}
	k.addrs, k.keep = map[header.Addr]services.AddrFlags{}, map[control.KeepSource]bool{}
}

func (k *kernel) Held() (s control.SteerSet) {
	s.Frontends = slices.Collect(maps.Keys(k.frontends))
	s.NodePorts = slices.Collect(maps.Keys(k.ports))
	s.KeepSources = slices.Collect(maps.Keys(k.keep))
	for a, flags := range k.addrs {
		s.Addrs = append(s.Addrs, control.OwnAddr{Addr: a, Flags: flags})
	}
	return s
}

func (k *kernel) Replace(s *control.SteerSet) error {
	k.log = append(k.log, "replace")
	if err := k.refuse.Load(); err != nil {
		return *err
	}
	k.clear()
	k.set(s, true)
	return nil
}

func (k *kernel) Open(s *control.SteerSet) error {
	k.log = append(k.log, "open")
	if err := k.refuse.Load(); err != nil {
		return *err
	}
	k.set(s, true)
	return nil
}

func (k *kernel) Close(s *control.SteerSet) error {
	k.log = append(k.log, "close")
	if err := k.refuse.Load(); err != nil {
		return *err
	}
	k.set(s, false)
	return nil
}

// flags are an address's, whatever the loop does meanwhile.
func (k *kernel) flags(a header.Addr) services.AddrFlags {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.addrs[a]
}

func (k *kernel) set(s *control.SteerSet, open bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, f := range s.Frontends {
		put(k.frontends, f, open)
	}
	for _, p := range s.NodePorts {
		put(k.ports, p, open)
	}
	for _, a := range s.Addrs {
		if open {
			k.addrs[a.Addr] |= a.Flags
		} else if k.addrs[a.Addr] &^= a.Flags; k.addrs[a.Addr] == 0 {
			delete(k.addrs, a.Addr)
		}
	}
	for _, s := range s.KeepSources {
		put(k.keep, s, open)
	}
}

func put[K comparable](m map[K]bool, k K, in bool) {
	if in {
		m[k] = true
	} else {
		delete(m, k)
	}
}

// must applies a difference and fails if it opens what is open or closes what is not.
func (k *kernel) must(t *testing.T, s *control.SteerSet, do func(*control.SteerSet) error) {
	t.Helper()
	before := k.len()
	if err := do(s); err != nil {
		t.Fatal(err)
	}
	asked := len(s.Frontends) + len(s.NodePorts) + len(s.KeepSources)
	for _, a := range s.Addrs {
		asked += bits.OnesCount8(uint8(a.Flags))
	}
	if d := k.len() - before; d != asked && -d != asked {
		t.Fatalf("something was opened or closed twice: %v", renderSteer(s))
	}
}

// len counts what is open, each flag of an address for itself.
func (k *kernel) len() int {
	n := len(k.frontends) + len(k.ports) + len(k.keep)
	for _, flags := range k.addrs {
		n += bits.OnesCount8(uint8(flags))
	}
	return n
}

// equal fails if not exactly s is open.
func (k *kernel) equal(t *testing.T, s *control.SteerSet) {
	t.Helper()
	want := newKernel()
	want.set(s, true)
	if !maps.Equal(k.frontends, want.frontends) || !maps.Equal(k.ports, want.ports) ||
		!maps.Equal(k.addrs, want.addrs) || !maps.Equal(k.keep, want.keep) {
		t.Fatalf("the kernel program has\n%v %v %v %v\nand should have\n%v %v %v %v",
			k.frontends, k.ports, k.addrs, k.keep, want.frontends, want.ports, want.addrs, want.keep)
	}
}

// owners is an Owners that fails the test if a number has two meanings at once.
type owners struct {
	t        *testing.T
	known    map[services.BackendRef]bool
	snaps    []*services.Snapshot // in use
	services map[services.ServiceID]bool
	oldest   uint64
	opened   int
}

func ownersOf(t *testing.T) *owners {
	return &owners{t: t, known: map[services.BackendRef]bool{}, services: map[services.ServiceID]bool{}}
}

// published notes a snapshot that is in use until oldest passes it.
func (o *owners) published(s *services.Snapshot) {
	o.snaps = append(slices.DeleteFunc(o.snaps, func(s *services.Snapshot) bool { return s.Generation < o.oldest }), s)
}

func (o *owners) Open(r services.BackendRef) {
	o.opened++
	if o.known[r] {
		o.t.Fatalf("ref %#x is given out twice", r)
	}
	for known := range o.inUse(r.Index()) {
		o.t.Fatalf("index %d is given out while a snapshot in use knows it as %v", r.Index(), known)
	}
	o.known[r] = true
}

// inUse finds who has an index in a snapshot that a worker may hold.
func (o *owners) inUse(index uint32) map[string]bool {
	found := map[string]bool{}
	for _, s := range o.snaps {
		if s.Generation < o.oldest {
			continue
		}
		for r := range o.known {
			if r.Index() == index && s.Backend(r) != nil {
				found[fmt.Sprintf("%v in generation %d", s.Backend(r), s.Generation)] = true
			}
		}
	}
	return found
}

func (o *owners) Close(r services.BackendRef, _ services.ServiceID) {
	if !o.known[r] {
		o.t.Fatalf("ref %#x is taken back twice", r)
	}
	delete(o.known, r)
}

func (o *owners) Forget(services.ServiceID) {}

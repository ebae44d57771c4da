package controltest

import (
	"maps"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"sluice.dev/sluice/control/steer"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
)

// Kernel is a Steering that records the open entries.
type Kernel struct {
	mu        sync.Mutex // guards set against flags
	Frontends map[services.FrontendKey]bool
	Ports     map[steer.NodePort]bool
	Addrs     map[header.Addr]services.AddrFlags
	keep      map[steer.KeepSource]bool
	Replies   *steer.PortSet
	Log       []string              // calls, in order
	Refuse    atomic.Pointer[error] // if set, every call returns this error and does nothing
}

// NewKernel returns one that sends nothing to user space.
func NewKernel() *Kernel {
	k := &Kernel{}
	k.Clear()
	return k
}

// Clear forgets all that is open.
func (k *Kernel) Clear() {
	k.Frontends, k.Ports = map[services.FrontendKey]bool{}, map[steer.NodePort]bool{}
	k.Addrs, k.keep = map[header.Addr]services.AddrFlags{}, map[steer.KeepSource]bool{}
	k.Replies = nil
}

// Held returns all that is open.
func (k *Kernel) Held() (s steer.Set) {
	s.Frontends = slices.Collect(maps.Keys(k.Frontends))
	s.NodePorts = slices.Collect(maps.Keys(k.Ports))
	s.KeepSources = slices.Collect(maps.Keys(k.keep))
	for a, flags := range k.Addrs {
		s.Addrs = append(s.Addrs, steer.OwnAddr{Addr: a, Flags: flags})
	}
	s.Replies = k.Replies
	return s
}

// Replace opens the entries of the set, and closes all others.
func (k *Kernel) Replace(s *steer.Set) error {
	k.Log = append(k.Log, "replace")
	if err := k.Refuse.Load(); err != nil {
		return *err
	}
	k.Clear()
	k.Set(s, true)
	return nil
}

// Open adds entries.
func (k *Kernel) Open(s *steer.Set) error {
	k.Log = append(k.Log, "open")
	if err := k.Refuse.Load(); err != nil {
		return *err
	}
	k.Set(s, true)
	return nil
}

// Close removes entries.
func (k *Kernel) Close(s *steer.Set) error {
	k.Log = append(k.Log, "close")
	if err := k.Refuse.Load(); err != nil {
		return *err
	}
	k.Set(s, false)
	return nil
}

// Flags returns the flags of an address. It may be called while the loop runs.
func (k *Kernel) Flags(a header.Addr) services.AddrFlags {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.Addrs[a]
}

// Set opens or closes the entries of a set, without an entry in Log.
func (k *Kernel) Set(s *steer.Set, open bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, f := range s.Frontends {
		put(k.Frontends, f, open)
	}
	for _, p := range s.NodePorts {
		put(k.Ports, p, open)
	}
	for _, a := range s.Addrs {
		if open {
			k.Addrs[a.Addr] |= a.Flags
		} else if k.Addrs[a.Addr] &^= a.Flags; k.Addrs[a.Addr] == 0 {
			delete(k.Addrs, a.Addr)
		}
	}
	for _, s := range s.KeepSources {
		put(k.keep, s, open)
	}
	if open {
		k.Replies = k.Replies.With(s.Replies)
	} else {
		k.Replies = k.Replies.Without(s.Replies)
	}
}

func put[K comparable](m map[K]bool, k K, in bool) {
	if in {
		m[k] = true
	} else {
		delete(m, k)
	}
}

// Must applies a difference and fails if it opens an open entry or closes one that is not open.
func (k *Kernel) Must(t *testing.T, s *steer.Set, do func(*steer.Set) error) {
	t.Helper()
	before := k.len()
	if err := do(s); err != nil {
		t.Fatal(err)
	}
	asked := len(s.Frontends) + len(s.NodePorts) + len(s.KeepSources) + s.Replies.Len()
	for _, a := range s.Addrs {
		asked += bits.OnesCount8(uint8(a.Flags))
	}
	if d := k.len() - before; d != asked && -d != asked {
		t.Fatalf("something was opened or closed twice: %+v", *s)
	}
}

// len counts the open entries, each flag of an address separately.
func (k *Kernel) len() int {
	n := len(k.Frontends) + len(k.Ports) + len(k.keep) + k.Replies.Len()
	for _, flags := range k.Addrs {
		n += bits.OnesCount8(uint8(flags))
	}
	return n
}

// Equal fails if not exactly s is open.
func (k *Kernel) Equal(t *testing.T, s *steer.Set) {
	t.Helper()
	want := NewKernel()
	want.Set(s, true)
	if !maps.Equal(k.Frontends, want.Frontends) || !maps.Equal(k.Ports, want.Ports) ||
		!maps.Equal(k.Addrs, want.Addrs) || !maps.Equal(k.keep, want.keep) ||
		!slices.Equal(k.Replies.List(), want.Replies.List()) {
		t.Fatalf("the kernel program has\n%v %v %v %v %v\nand should have\n%v %v %v %v %v",
			k.Frontends, k.Ports, k.Addrs, k.keep, k.Replies.List(),
			want.Frontends, want.Ports, want.Addrs, want.keep, want.Replies.List())
	}
}

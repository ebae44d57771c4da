package services

import "sluice.dev/sluice/nat/header"

// Builder makes the next Snapshot from the last one. It must not be used after
// Build. Only the control loop has one.
type Builder struct {
	edit edit
	s    Snapshot
}

// NewBuilder starts from prev, or from an empty snapshot if prev is nil. It copies nothing of
// prev's tables. A later change of a table copies its root (8 bytes for every 128 backends,
// services, frontends or addresses) and the page or bucket that changes.
func NewBuilder(prev *Snapshot) *Builder {
	b := &Builder{}
	if prev != nil {
		b.s = *prev
	}
	b.edit = edit(b.s.Generation + 1)
	return b
}

// Settings gives access to the plain fields of the snapshot under construction
// (SelectKey, UnservedPort and those that begin with SNAT). Slices must be replaced, not written.
func (b *Builder) Settings() *Snapshot { return &b.s }

// SetFrontend adds or replaces a frontend.
func (b *Builder) SetFrontend(f *Frontend) {
	if b.s.frontends.set(b.edit, f.Key, f) {
		b.countPort(f.Key, 1)
	}
}

// DeleteFrontend removes a frontend.
func (b *Builder) DeleteFrontend(k FrontendKey) {
	if b.s.frontends.delete(b.edit, k) {
		b.countPort(k, -1)
	}
}

// countPort adds delta to the uses of a frontend's port.
func (b *Builder) countPort(k FrontendKey, delta int32) {
	if k.Addr != AnyIPv4 && k.Addr != AnyIPv6 {
		*b.s.portUses.own(b.edit, uint32(k.Port)) += delta
	}
}

// SetAddr sets the ways in which an address is ours; zero flags remove it.
func (b *Builder) SetAddr(a header.Addr, flags AddrFlags) {
	if flags == 0 {
		b.s.addrs.delete(b.edit, a)
		return
	}
	b.s.addrs.set(b.edit, a, flags)
}

// SetBackend adds or replaces the backend with its Ref.
func (b *Builder) SetBackend(be Backend) {
	old := b.s.backends.own(b.edit, be.Ref.Index())
	// If the caller replaces a backend by another without deleting the first, it has not waited for
	// the flows of the first.
	b.setServing(be.Ref, be.Flags&BackendServing != 0 && (old.Ref == be.Ref || old.Ref == 0))
	*old = be
}

// setServing writes a page only if the bit changes; a change of readiness alone does not change it.
// Index 0 has no bit: ref 0, which is no backend, has that index.
func (b *Builder) setServing(r BackendRef, serves bool) {
	if r.Index() != 0 && b.s.Serves(r) != serves {
		*b.s.serving.own(b.edit, r.Index()/64) ^= 1 << (r.Index() % 64)
	}
}

// DeleteBackend removes the backend with this ref, unless the index has a new owner.
func (b *Builder) DeleteBackend(r BackendRef) {
	if be := b.s.backends.at(r.Index()); be != nil && be.Ref == r {
		*b.s.backends.own(b.edit, r.Index()) = Backend{}
		b.setServing(r, false)
	}
}

// SetService adds or replaces a service port.
func (b *Builder) SetService(s *Service) { *b.s.services.own(b.edit, uint32(s.ID)) = s }

// DeleteService removes a service port.
func (b *Builder) DeleteService(id ServiceID) { *b.s.services.own(b.edit, uint32(id)) = nil }

// Build finishes the snapshot with the generation after its predecessor's.
func (b *Builder) Build() *Snapshot {
	b.s.Generation = uint64(b.edit)
	s := b.s
	return &s
}

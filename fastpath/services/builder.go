package services

import "sluice.dev/sluice/nat/header"

// Builder makes the next Snapshot from the last one. It must not be used after
// Build. Only the control loop has one.
type Builder struct {
	edit edit
	s    Snapshot
}

// NewBuilder starts from prev, or from nothing if prev is nil. It copies the
// roots of prev's tables (8 bytes per 128 backends or services, per 4 to 8 frontends or
// addresses), no entry of them.
func NewBuilder(prev *Snapshot) *Builder {
	b := &Builder{}
	if prev == nil {
		return b
	}
	b.s = *prev
	b.s.frontends = prev.frontends.fork()
	b.s.addrs = prev.addrs.fork()
	b.s.backends = prev.backends.fork()
	b.s.services = prev.services.fork()
	return b
}

// Settings gives access to the plain fields of the snapshot under construction
// (SelectKey, UnservedPort, SNAT4, SNAT6, SNATPorts). Slices must be replaced, not written.
func (b *Builder) Settings() *Snapshot { return &b.s }

// SetFrontend adds or replaces a frontend.
func (b *Builder) SetFrontend(f *Frontend) { b.s.frontends.set(&b.edit, f.Key, f) }

// DeleteFrontend removes a frontend.
func (b *Builder) DeleteFrontend(k FrontendKey) { b.s.frontends.delete(&b.edit, k) }

// SetAddr says in which way an address is ours; zero flags remove it.
func (b *Builder) SetAddr(a header.Addr, flags AddrFlags) {
	if flags == 0 {
		b.s.addrs.delete(&b.edit, a)
		return
	}
	b.s.addrs.set(&b.edit, a, flags)
}

// SetBackend adds or replaces the backend with its Ref.
func (b *Builder) SetBackend(be Backend) { b.s.backends.set(&b.edit, be.Ref.Index(), be) }

// DeleteBackend removes the backend with this ref, unless the index has a new owner.
func (b *Builder) DeleteBackend(r BackendRef) {
	if be := b.s.backends.at(r.Index()); be != nil && be.Ref == r {
		b.s.backends.set(&b.edit, r.Index(), Backend{})
	}
}

// SetService adds or replaces a service port.
func (b *Builder) SetService(s *Service) { b.s.services.set(&b.edit, uint32(s.ID), s) }

// DeleteService removes a service port.
func (b *Builder) DeleteService(id ServiceID) { b.s.services.set(&b.edit, uint32(id), nil) }

// Build finishes the snapshot with the generation after its predecessor's.
func (b *Builder) Build() *Snapshot {
	b.s.Generation++
	s := b.s
	return &s
}

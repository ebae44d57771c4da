package services

import (
	"slices"

	"sluice.dev/sluice/nat/header"
)

// Builder makes the next Snapshot from the previous one. It must not be used after Build. Only the
// control loop has one.
type Builder struct {
	edit  edit
	s     Snapshot
	moved bool // see Snapshot.Moves
}

// NewBuilder starts from prev, or from an empty snapshot if prev is nil. It copies no table of
// prev. A later change of a table copies its root (8 bytes for every 128 backends, services,
// frontends or addresses) and the changed page or bucket.
func NewBuilder(prev *Snapshot) *Builder {
	b := &Builder{}
	if prev != nil {
		b.s = *prev
	}
	b.edit = edit(b.s.Generation + 1)
	return b
}

// Settings returns the snapshot under construction, for changes of its exported fields (SelectKey,
// UnservedPort, SNAT4, ...). Slices must be replaced, not written.
func (b *Builder) Settings() *Snapshot { return &b.s }

// SetFrontend adds or replaces a frontend.
func (b *Builder) SetFrontend(f *Frontend) {
	b.noteOwner(f)
	if b.s.frontends.set(b.edit, f.Key, f) {
		b.countPort(f.Key, 1)
	}
}

// DeleteFrontend removes a frontend.
func (b *Builder) DeleteFrontend(k FrontendKey) {
	if f, ok := b.s.frontends.get(k); ok && k.Proto == header.ProtoUDP {
		b.s.released.add(b.edit, k, ownerOf(f.Service))
		b.moved = b.moved || b.atNode(k.Addr) // a node port may get the packets now
	}
	if b.s.frontends.delete(b.edit, k) {
		b.countPort(k, -1)
	}
}

// noteOwner sets moved if flows through a UDP frontend may belong to another owner than f's: to the
// frontend's previous service port, even if the frontend did not exist in between, to a node port,
// or to the same service port with or without the PROXY protocol.
func (b *Builder) noteOwner(f *Frontend) {
	if f.Key.Proto != header.ProtoUDP {
		return
	}
	if before, ok := b.s.frontends.get(f.Key); ok {
		b.moved = b.moved || ownerOf(before.Service) != ownerOf(f.Service)
		return
	}
	if b.atNode(f.Key.Addr) {
		b.s.released.forget()
	}
	b.moved = b.s.released.take(b.edit, f.Key, ownerOf(f.Service)) || b.moved
}

func (b *Builder) atNode(a header.Addr) bool { return b.s.Owned(a)&AddrNode != 0 }

// countPort adds delta to the uses of a frontend's port.
func (b *Builder) countPort(k FrontendKey, delta int32) {
	if k.Addr != AnyIPv4 && k.Addr != AnyIPv6 {
		*b.s.portUses.own(b.edit, uint32(k.Port)) += delta
	}
}

// SetAddr sets the roles of an address; zero flags remove it.
func (b *Builder) SetAddr(a header.Addr, flags AddrFlags) {
	if b.s.Owned(a)&AddrNode != flags&AddrNode {
		b.moved = true // a node port gains or loses the address
		if b.s.frontends.n > 0 || b.s.released.owners.n > 0 {
			b.s.released.forget()
		}
	}
	if flags == 0 {
		b.s.addrs.delete(b.edit, a)
		return
	}
	b.s.addrs.set(b.edit, a, flags)
}

// SetBackend adds or replaces the backend with its Ref.
func (b *Builder) SetBackend(be Backend) {
	old := b.s.backends.own(b.edit, be.Ref.Index())
	// If the caller replaces a backend by another one without deleting it first, flows of the first
	// may still exist: the index must not serve for them.
	b.setServing(be.Ref, be.Flags&BackendServing != 0 && (old.Ref == be.Ref || old.Ref == 0))
	*old = be
}

// setServing writes a page only if the bit changes; a change of readiness alone does not change it.
// Index 0 has no bit, because ref 0, which is no backend, has that index.
func (b *Builder) setServing(r BackendRef, serves bool) {
	if r.Index() != 0 && b.s.Serves(r) != serves {
		*b.s.serving.own(b.edit, r.Index()/64) ^= 1 << (r.Index() % 64)
	}
}

// DeleteBackend removes the backend with this ref, unless the index has another backend by now.
func (b *Builder) DeleteBackend(r BackendRef) {
	if be := b.s.backends.at(r.Index()); be != nil && be.Ref == r {
		*b.s.backends.own(b.edit, r.Index()) = Backend{}
		b.setServing(r, false)
	}
}

// SetService adds or replaces a service port. If it is Direct, the builder must have its backends.
func (b *Builder) SetService(s *Service) {
	if s.Direct {
		if refs := b.s.orderByFold(s.Backends); !slices.Equal(refs, s.byFold) { // readers may have s already
			s.byFold = refs
		}
	}
	*b.s.services.own(b.edit, uint32(s.ID)) = s
}

// DeleteService removes a service port.
func (b *Builder) DeleteService(id ServiceID) { *b.s.services.own(b.edit, uint32(id)) = nil }

// Build returns the snapshot, whose generation is its predecessor's plus 1.
func (b *Builder) Build() *Snapshot {
	b.s.Generation = uint64(b.edit)
	if b.moved {
		b.s.Moves++
	}
	s := b.s
	return &s
}

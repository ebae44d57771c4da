package services

import "sluice.dev/sluice/nat/header"

// released are the UDP frontends that no service port has any more, with their last owner. Flows of
// that owner go on (cmd/sluice/internal/flows, Reader.InUse), until another service port gets the
// frontend.
type released struct {
	owners index[FrontendKey, ServiceID]
	// forgotten: any frontend may have had another owner before. There were more than maxReleased,
	// or the packets of a destination may have been those of a node port and of a frontend with an
	// address in turn: a frontend is at an address of the node, or the node's addresses changed.
	forgotten bool
}

// maxReleased bounds the memory: each entry takes some 60 bytes.
const maxReleased = 1 << 16

func (r *released) forget() { *r = released{forgotten: true} }

// add notes the last owner of a frontend.
func (r *released) add(e edit, k FrontendKey, owner ServiceID) {
	if r.owners.n >= maxReleased {
		r.forget()
	}
	if !r.forgotten {
		r.owners.set(e, k, owner)
	}
}

// take removes a frontend, which has the given owner from now on. It reports whether flows may be
// those of another owner.
func (r *released) take(e edit, k FrontendKey, owner ServiceID) bool {
	last, ok := r.owners.get(k)
	r.owners.delete(e, k)
	return r.forgotten || ok && last != owner
}

// Follow makes a snapshot that no other goroutine has seen, and that has no frontends yet, the
// successor of prev: it has prev's generation, and its frontends may have had other owners in prev.
func (s *Snapshot) Follow(prev *Snapshot) {
	s.Generation, s.Moves, s.released = prev.Generation, prev.Moves+1, prev.released
	prev.Frontends(func(f *Frontend) bool {
		if f.Key.Proto == header.ProtoUDP {
			s.released.add(edit(prev.Generation+1), f.Key, f.Service.ID)
		}
		return true
	})
}

package services

import "sluice.dev/sluice/nat/header"

// released has the UDP frontends that no service port has any more, with the last service port that
// had them. Flows of that service port continue (cmd/sluice/internal/flows, Reader.InUse) until
// another one gets the frontend.
type released struct {
	owners index[FrontendKey, ServiceID]
	// forgotten: owners is incomplete, and any frontend may have had another owner. Either there
	// were more than maxReleased, or a frontend is at an address of the node, or the node's
	// addresses changed: then a node port and a frontend with an address may have had the same
	// packets in turn.
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

package services

import "sluice.dev/sluice/nat/header"

// released has the UDP frontends that no service port has any more, and their last service port.
// Flows of that service port continue (gateway/flows, Reader.InUse) until another
// service port gets the frontend.
type released struct {
	owners index[FrontendKey, datagramOwner]
	// forgotten: owners is incomplete, so any frontend may have had another owner. Either there
	// were more than maxReleased frontends, or a frontend is at an address of the node, or the
	// node's addresses changed: a node port and a frontend with an address may then have received
	// the same flow's packets at different times.
	forgotten bool
}

// datagramOwner is what decides whether flows of a UDP frontend may stay: its service port, and
// whether that has a PROXY header in front of each datagram.
type datagramOwner struct {
	id      ServiceID
	proxied bool
}

func ownerOf(s *Service) datagramOwner { return datagramOwner{s.ID, s.ProxyProtocol} }

// maxReleased bounds the memory: each entry takes about 60 bytes.
const maxReleased = 1 << 16

func (r *released) forget() { *r = released{forgotten: true} }

// add records the last owner of a frontend.
func (r *released) add(e edit, k FrontendKey, owner datagramOwner) {
	if r.owners.n >= maxReleased {
		r.forget()
	}
	if !r.forgotten {
		r.owners.set(e, k, owner)
	}
}

// take removes a frontend that now gets owner. It reports whether its flows may belong to another
// owner.
func (r *released) take(e edit, k FrontendKey, owner datagramOwner) bool {
	last, ok := r.owners.get(k)
	r.owners.delete(e, k)
	return r.forgotten || ok && last != owner
}

// Follow makes s the successor of prev: s gets prev's generation, and records the owners that
// frontends had in prev. s must have no frontends, and no other goroutine may have seen it.
func (s *Snapshot) Follow(prev *Snapshot) {
	s.Generation, s.Moves, s.released = prev.Generation, prev.Moves+1, prev.released
	prev.Frontends(func(f *Frontend) bool {
		if f.Key.Proto == header.ProtoUDP {
			s.released.add(edit(prev.Generation+1), f.Key, ownerOf(f.Service))
		}
		return true
	})
}

package compiler

import (
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
)

// scratch is memory that builds reuse.
type scratch struct {
	members []member
	refs    []services.BackendRef
	names   []string
	addrs   []header.Addr
	hints   []hintBits
	in      []services.BackendRef // by index; all zero between uses
}

// chosen returns a list by backend index, to note refs in. The caller sets it to zero again.
func (s *scratch) chosen() []services.BackendRef {
	if s.in == nil {
		s.in = make([]services.BackendRef, services.MaxBackends)
	}
	return s.in
}

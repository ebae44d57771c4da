package xdpprog

import (
	"errors"

	"sluice.dev/sluice/nat/header"
)

// Reconcile makes the kernel steer by exactly want, and says how many rules it
// had to change. It starts from what the maps hold, whoever wrote it: a predecessor,
// or somebody's hand. New rules come first and unwanted ones go last, so that a
// rule in both is in force throughout. After an error some rules are not as
// wanted; Reconcile again.
func (s *Steering) Reconcile(want Rules) (changed int, err error) {
	if err := s.rules.read(s.maps); err != nil {
		return 0, err
	}
	var errs []error
	do := func(err error) {
		changed++
		errs = append(errs, err)
	}
	s.reconcileKeys(steerMapFrontends, want.Frontends, do)
	s.reconcileKeys(steerMapKeepSources, want.Sources, do)
	if err := s.reconcileNodePorts(want.NodePorts, do); err != nil {
		errs = append(errs, err)
	}
	s.reconcileAddrs(want.Addrs, do)
	// A predecessor that died between two writes left an address unlike its entries.
	for a, st := range s.rules.addrs {
		if st.flags() != st.kernel {
			do(s.syncAddr(a))
		}
	}
	return changed, errors.Join(errs...)
}

func (s *Steering) reconcileKeys(table string, want []FrontendKey, do func(error)) {
	wanted := make(map[FrontendKey]struct{}, len(want))
	for _, k := range want {
		wanted[k] = struct{}{}
		if !has(s.rules.set(table), k) {
			do(s.open(table, k))
		}
	}
	for k := range s.rules.set(table) {
		if !has(wanted, k) {
			do(s.close(table, k))
		}
	}
}

// reconcileNodePorts writes whole words: a word changes in one piece.
func (s *Steering) reconcileNodePorts(want []NodePort, do func(error)) error {
	var wanted [nodePortWords]uint64
	var errs []error
	for _, n := range want {
		word, mask, err := n.bit()
		if err != nil {
			errs = append(errs, err)
			continue
		}
		wanted[word] |= mask
	}
	for word, v := range wanted {
		if v != s.rules.ports[word] {
			do(s.putNodePorts(uint32(word), v))
		}
	}
	return errors.Join(errs...)
}

func (s *Steering) reconcileAddrs(want map[header.Addr]AddrFlags, do func(error)) {
	for a, flags := range want {
		if s.rules.addrs[a].own != flags&addrOurs {
			do(s.setAddr(a, flags))
		}
	}
	for a, st := range s.rules.addrs {
		if _, ok := want[a]; !ok && st.own != 0 {
			do(s.setAddr(a, 0))
		}
	}
}

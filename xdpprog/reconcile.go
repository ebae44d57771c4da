package xdpprog

import (
	"errors"

	"golang.org/x/sys/unix"
)

// Reconcile makes the kernel steer by exactly the rules want, and returns how many rules it had to
// change. It starts from the contents of the maps, whether a predecessor or an operator wrote them.
// It adds new rules first and removes unwanted ones last, so that a rule in both sets stays active
// throughout. If new rules found no room, it tries them again after the removal. After an error
// some rules are not as wanted; call Reconcile again.
func (s *Steering) Reconcile(want Rules) (changed int, err error) {
	if err := s.rules.read(s.maps); err != nil {
		return 0, err
	}
	var errs []error
	do := func(err error) {
		changed++
		errs = append(errs, err)
	}
	// Open these ports first: once an address becomes the node's, only they steer its replies.
	if err := s.reconcilePorts(steerMapReplies, want.Replies, false, do); err != nil {
		errs = append(errs, err)
	}
	s.openAll(want, do)
	crowded := errors.Is(errors.Join(errs...), unix.E2BIG)
	if crowded {
		errs = nil
	}
	s.closeOthers(want, do)
	for table, ports := range map[string][]NodePort{steerMapNodeports: want.NodePorts, steerMapReplies: want.Replies} {
		if err := s.reconcilePorts(table, ports, true, do); err != nil {
			errs = append(errs, err)
		}
	}
	if crowded {
		s.openAll(want, do)
	}
	// A predecessor that died between two writes may have left an address that does not match its
	// entries.
	for a, st := range s.rules.addrs {
		if st.flags() != st.kernel {
			do(s.syncAddr(a))
		}
	}
	for k, value := range s.rules.frontends {
		if value != s.rules.value(steerMapFrontends, k) {
			do(s.syncFrontend(k))
		}
	}
	s.reconcileShortcuts()
	return changed, errors.Join(errs...)
}

// keyList has the wanted keys of one table.
type keyList struct {
	table string
	keys  []FrontendKey
}

func (r *Rules) lists() [2]keyList {
	return [2]keyList{{steerMapFrontends, r.Frontends}, {steerMapKeepSources, r.Sources}}
}

// openAll opens the wanted rules that are missing.
func (s *Steering) openAll(want Rules, do func(error)) {
	for _, l := range want.lists() {
		for _, k := range l.keys {
			if !has(s.rules.set(l.table), k) {
				do(s.open(l.table, k))
			}
		}
	}
	for a, flags := range want.Addrs {
		if own := s.rules.addrs[a].own; own|flags&addrRoles != own {
			do(s.setAddr(a, own|flags))
		}
	}
}

// closeOthers closes the rules that are not wanted.
func (s *Steering) closeOthers(want Rules, do func(error)) {
	for _, l := range want.lists() {
		wanted := make(map[FrontendKey]struct{}, len(l.keys))
		for _, k := range l.keys {
			wanted[k] = struct{}{}
		}
		for k := range s.rules.set(l.table) {
			if !has(wanted, k) {
				do(s.close(l.table, k))
			}
		}
	}
	for a, st := range s.rules.addrs {
		if rest := st.own & want.Addrs[a]; rest != st.own {
			do(s.setAddr(a, rest))
		}
	}
}

// reconcilePorts opens the ports of a table that are wanted and, if closes is true, closes the
// others. It writes whole words, because a word changes atomically.
func (s *Steering) reconcilePorts(table string, want []NodePort, closes bool, do func(error)) error {
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
		before := s.rules.portsOf(table)[word]
		if !closes {
			v |= before
		}
		if v != before {
			do(s.putPorts(table, uint32(word), v))
		}
	}
	return errors.Join(errs...)
}

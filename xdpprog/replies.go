package xdpprog

import (
	"fmt"
	"math/bits"

	"github.com/cilium/ebpf"

	"sluice.dev/sluice/nat/header"
)

// Live flows may have source ports outside of the range of Settings: ports that were chosen when
// the range was different, or when the node did not have the source address. The map replies has a
// bit for each such port. Reconcile, OpenReply and CloseReply set and clear the bits:
//
//	start   MoveReplies   all ports that may be in use get their bit, then the new range is set
//	        Reconcile     bits that no flow needs are cleared
//	later   CloseReply    when the last flow of a port has ended
//
// A bit applies to all addresses with AddrSNAT. A packet to such a port that belongs to no flow
// goes back to the kernel, like such a packet to the range.

// OpenReply steers replies to a port outside of the range.
func (s *Steering) OpenReply(n NodePort) error { return s.setPort(steerMapReplies, n, true) }

// CloseReply undoes OpenReply.
func (s *Steering) CloseReply(n NodePort) error { return s.setPort(steerMapReplies, n, false) }

// MoveReplies changes the range of ports whose packets are replies. Ports that are only in the
// current range stay steered, each by its bit. If the current range is not known, because the maps
// are new, all ports from 1024 on get a bit. Ports of both ranges are steered throughout.
// MoveReplies writes only the maps, and may be called before Own, once the other process no longer
// uses the maps.
func (s *Steering) MoveReplies(first, count uint16) error {
	raw, err := s.readSettings()
	if err != nil || raw.SnatFirst == first && raw.SnatCount == count {
		return err
	}
	before := raw
	if before.SnatCount == 0 {
		before.SnatFirst, before.SnatCount = ownSNATFirst, 1<<16-ownSNATFirst
	}
	var kept [nodePortWords]uint64
	err = each(s.maps[steerMapReplies], func(word uint32, v uint64) { kept[word] = v })
	if err != nil {
		return err
	}
	for i := range before.SnatCount {
		port := before.SnatFirst + i
		if port-first < count {
			continue
		}
		for table := range uint16(2 * len(nodePortProtos)) {
			kept[uint32(table)*1024+uint32(port)/64] |= 1 << (port % 64)
		}
	}
	if err := s.putReplies(&kept); err != nil {
		return err
	}
	// In two steps, because the kernel does not write the settings atomically.
	raw.KeptReplies = flag(s.rules.replyCount > 0)
	if err := s.putSettings(&raw); err != nil {
		return err
	}
	raw.SnatFirst, raw.SnatCount = first, count
	return s.putSettings(&raw)
}

// OpenAddrBeforeOwn steers replies to an address; flags are all flags that the address will have.
// Like MoveReplies it may be called before Own, which reads the entry. If the address has flags
// already, it adds only AddrSNAT: Reconcile makes such an address the node's, after it has opened
// the ports of its flows.
func (s *Steering) OpenAddrBeforeOwn(a header.Addr, flags AddrFlags) error {
	has, err := s.flagsOf(a)
	if has != 0 {
		flags &= AddrSNAT
	}
	if err != nil || has|flags&addrRoles == has {
		return err
	}
	if err := s.maps[steerMapAddrs].Put(words(a), uint32(has|flags&addrRoles)); err != nil {
		return fmt.Errorf("own address %v: %w", a, err)
	}
	return nil
}

// Sources returns the addresses with AddrSNAT that the node does not have.
func (s *Steering) Sources() (list []header.Addr) {
	for a, st := range s.rules.addrs {
		if st.own.ownSNAT() {
			list = append(list, a)
		}
	}
	return list
}

// putReplies writes the whole map of replies.
func (s *Steering) putReplies(words *[nodePortWords]uint64) error {
	keys := make([]uint32, nodePortWords)
	s.rules.replyCount = 0
	for i, v := range words {
		keys[i] = uint32(i)
		s.rules.replyCount += bits.OnesCount64(v)
	}
	if _, err := s.maps[steerMapReplies].BatchUpdate(keys, words[:], &ebpf.BatchOptions{}); err != nil {
		return fmt.Errorf("write BPF ports of replies: %w", err)
	}
	s.rules.replies = *words
	return nil
}

// syncKeptReplies sets the setting that makes the program look up the ports of replies.
func (s *Steering) syncKeptReplies() error {
	raw, err := s.readSettings()
	if kept := flag(s.rules.replyCount > 0); err == nil && raw.KeptReplies != kept {
		raw.KeptReplies = kept
		err = s.putSettings(&raw)
	}
	return err
}

package xdpprog

import (
	"fmt"
	"math/bits"

	"github.com/cilium/ebpf"

	"sluice.dev/sluice/nat/header"
)

// Live flows may have source ports outside of the range of Settings: ports that were chosen when
// the range was another one, or when the node did not have the source address. The kernel program
// has a bit for each such port (map replies). Reconcile, OpenReply and CloseReply set and clear the
// bits:
//
//	start   MoveReplies   all ports that may be in use get their bit, then the new range holds
//	        Reconcile     bits that no flow needs are cleared
//	later   CloseReply    when the last flow of a port has ended
//
// The bit is for all addresses with AddrSNAT. A packet to such a port that belongs to no flow goes
// back to the kernel, as one to the range does.

// OpenReply steers replies to a port outside of the range.
func (s *Steering) OpenReply(n NodePort) error { return s.setPort(steerMapReplies, n, true) }

// CloseReply ends that.
func (s *Steering) CloseReply(n NodePort) error { return s.setPort(steerMapReplies, n, false) }

// MoveReplies makes a range the one that replies come to. Ports that only the range in force has
// stay steered, each by its bit. If that range is not known, as the maps are new, all ports from
// 1024 on get a bit. At no moment is a port of either range not steered. MoveReplies writes the
// maps alone and may precede Own, once the other process does not use them any more.
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
	// In two steps, as the kernel does not write the settings in one piece.
	raw.KeptReplies = flag(s.rules.replyCount > 0)
	if err := s.putSettings(&raw); err != nil {
		return err
	}
	raw.SnatFirst, raw.SnatCount = first, count
	return s.putSettings(&raw)
}

// OpenAddrBeforeOwn makes replies to an address ours; flags are all that it is to have. It may
// precede Own, as MoveReplies may, and Own reads what it has written. An address that is ours
// already becomes the node's by Reconcile alone, which opens the ports of its flows first.
func (s *Steering) OpenAddrBeforeOwn(a header.Addr, flags AddrFlags) error {
	has, err := s.flagsOf(a)
	if has != 0 {
		flags &= AddrSNAT
	}
	if err != nil || has|flags&addrOurs == has {
		return err
	}
	if err := s.maps[steerMapAddrs].Put(words(a), uint32(has|flags&addrOurs)); err != nil {
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

// syncKeptReplies tells the program whether it has to look at the ports of replies.
func (s *Steering) syncKeptReplies() error {
	raw, err := s.readSettings()
	if kept := flag(s.rules.replyCount > 0); err == nil && raw.KeptReplies != kept {
		raw.KeptReplies = kept
		err = s.putSettings(&raw)
	}
	return err
}

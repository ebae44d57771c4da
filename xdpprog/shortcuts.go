package xdpprog

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"

	"sluice.dev/sluice/nat/header"
)

// The kernel program's shortcuts (maps.h) are an IPv4 part of what the other maps say: never more. So a word is
// written after the entry it stands for and removed before it; and one that finds its bucket full is left out, which
// costs a search. There is room for 131,072, eight to a bucket.

const (
	shortcutBits    = 14 // SHORTCUT_BITS
	shortcutBuckets = 1 << shortcutBits
)

// shortcutKind is enum shortcut_kind.
type shortcutKind uint8

const (
	shortFrontend shortcutKind = 1 + iota
	shortSNAT
	shortNode
)

// shortcutWord is what short_cut of steer.bpf.c looks for. ok is false for IPv6, which has none.
func shortcutWord(kind shortcutKind, a header.Addr, port uint16, proto uint8) (word uint64, ok bool) {
	if !a.Is4() {
		return 0, false
	}
	return uint64(words(a)[3]) | uint64(bits.ReverseBytes16(port))<<32 | uint64(proto)<<48 | uint64(kind)<<56, true
}

// shortcutBucket is where the word is, if anywhere.
func shortcutBucket(word uint64) uint32 {
	return uint32(word * 0x9e3779b97f4a7c15 >> (64 - shortcutBits))
}

// frontendShortcut is the word of a frontend, as a list of at most one.
func frontendShortcut(k FrontendKey) (list []uint64) {
	if word, ok := shortcutWord(shortFrontend, k.Addr, k.Port, k.Proto); ok {
		list = append(list, word)
	}
	return list
}

// addrShortcuts are the words of an address for each of some flags.
func addrShortcuts(a header.Addr, flags AddrFlags) (list []uint64) {
	for _, f := range []struct {
		flag AddrFlags
		kind shortcutKind
	}{{AddrSNAT, shortSNAT}, {AddrNode, shortNode}} {
		if word, ok := shortcutWord(f.kind, a, 0, 0); ok && flags&f.flag != 0 {
			list = append(list, word)
		}
	}
	return list
}

// shorten adds words that are true by now, where there is room.
func (s *Steering) shorten(words ...uint64) error {
	for _, word := range words {
		at := shortcutBucket(word)
		b := s.rules.shortcuts[at]
		if slices.Contains(b.Word[:], word) {
			continue
		}
		free := slices.Index(b.Word[:], 0)
		if free < 0 {
			continue
		}
		b.Word[free] = word
		if err := s.putShortcut(at, b); err != nil {
			return err
		}
	}
	return nil
}

// lengthen removes words that will not be true much longer.
func (s *Steering) lengthen(words ...uint64) error {
	for _, word := range words {
		at := shortcutBucket(word)
		b := s.rules.shortcuts[at]
		i := slices.Index(b.Word[:], word)
		if i < 0 {
			continue
		}
		b.Word[i] = 0
		if err := s.putShortcut(at, b); err != nil {
			return err
		}
	}
	return nil
}

// putShortcut writes a whole bucket: the kernel copies it by words (bpf_long_memcpy in include/linux/bpf.h).
func (s *Steering) putShortcut(at uint32, b steerShortcut) error {
	if err := s.maps[steerMapShortcuts].Put(at, b); err != nil {
		return fmt.Errorf("write BPF shortcut %d: %w", at, err)
	}
	s.rules.shortcuts[at] = b
	return nil
}

// reconcileShortcuts removes words that stand for nothing, and adds those that are missing.
func (s *Steering) reconcileShortcuts() error {
	wanted := map[uint64]struct{}{}
	want := func(words []uint64) {
		for _, w := range words {
			wanted[w] = struct{}{}
		}
	}
	for k := range s.rules.frontends {
		want(frontendShortcut(k))
	}
	for a, st := range s.rules.addrs {
		want(addrShortcuts(a, st.kernel))
	}
	var errs []error
	for at := range s.rules.shortcuts {
		for _, word := range s.rules.shortcuts[at].Word {
			if _, ok := wanted[word]; !ok && word != 0 {
				errs = append(errs, s.lengthen(word))
			}
		}
	}
	for word := range wanted {
		errs = append(errs, s.shorten(word))
	}
	return errors.Join(errs...)
}

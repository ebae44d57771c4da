package xdpprog

import (
	"encoding/binary"
	"fmt"
	"math/bits"

	"github.com/cilium/ebpf"

	"sluice.dev/sluice/nat/header"
)

// The kernel program's shortcuts (maps.h) are an IPv4 part of what the other maps hold: never more.
// So a word is written after the entry it stands for and removed before it; and one that finds its
// bucket full is left out, which costs a search. There is room for 131,072, eight to a bucket; of
// words at random the 25,000th or so is the first to find none.

const (
	shortcutBits    = 14 // SHORTCUT_BITS
	shortcutBuckets = 1 << shortcutBits
	shortcutWords   = len(steerShortcut{}.Word)
)

// shortcuts is the kernel's array, mapped: a word is read and written in one piece.
type shortcuts struct{ memory *ebpf.Memory }

func mapShortcuts(m *ebpf.Map) (s shortcuts, err error) {
	if s.memory, err = m.Memory(); err == nil && s.memory.ReadOnly() {
		err = ebpf.ErrReadOnly
	}
	if err != nil {
		return s, fmt.Errorf("map BPF map %q into memory: %w", steerMapShortcuts, err)
	}
	return s, nil
}

func (s shortcuts) get(i int) uint64 {
	var b [8]byte
	_, _ = s.memory.ReadAt(b[:], int64(8*i)) // fails outside of the map
	return binary.NativeEndian.Uint64(b[:])
}

func (s shortcuts) put(i int, word uint64) {
	var b [8]byte
	binary.NativeEndian.PutUint64(b[:], word)
	_, _ = s.memory.WriteAt(b[:], int64(8*i)) // as above
}

// find returns where a word is, a word of 0 a free place of another's bucket, or -1.
func (s shortcuts) find(word, of uint64) int {
	first := shortcutBucket(of) * shortcutWords
	for i := first; i < first+shortcutWords; i++ {
		if s.get(i) == word {
			return i
		}
	}
	return -1
}

// add writes words that are true by now, where there is room.
func (s shortcuts) add(words ...uint64) {
	for _, word := range words {
		if s.find(word, word) >= 0 {
			continue
		}
		if free := s.find(0, word); free >= 0 {
			s.put(free, word)
		}
	}
}

// remove takes out words that will not be true much longer.
func (s shortcuts) remove(words ...uint64) {
	for _, word := range words {
		if i := s.find(word, word); i >= 0 {
			s.put(i, 0)
		}
	}
}

// keep removes all words but these, and adds those of them that are missing.
func (s shortcuts) keep(wanted map[uint64]struct{}) {
	for i := range shortcutBuckets * shortcutWords {
		if word := s.get(i); word != 0 && !has(wanted, word) {
			s.put(i, 0)
		}
	}
	for word := range wanted {
		s.add(word)
	}
}

// shortcutKind is enum shortcut_kind.
type shortcutKind uint8

const (
	shortFrontend shortcutKind = 1 + iota
	shortSNAT
	shortNode
	shortOwnSNAT
)

// shortcutWord is what short_cut of steer.bpf.c compares with. ok is false for IPv6, which has
// none.
func shortcutWord(kind shortcutKind, a header.Addr, port uint16, proto uint8) (word uint64, ok bool) {
	if !a.Is4() {
		return 0, false
	}
	return uint64(words(a)[3]) | uint64(bits.ReverseBytes16(port))<<32 | uint64(proto)<<48 | uint64(kind)<<56, true
}

// shortcutBucket is where the word is, if anywhere.
func shortcutBucket(word uint64) int {
	return int(word * 0x9e3779b97f4a7c15 >> (64 - shortcutBits))
}

// frontendShortcut is the word that a frontend has, as a list of at most one: none at an address of
// the node, as only the map says of it that the node's sockets come first.
func (r *mirror) frontendShortcut(k FrontendKey) []uint64 {
	if r.value(steerMapFrontends, k) == atNode {
		return nil
	}
	return wordOf(k)
}

// wordOf is the word of a frontend, as a list of at most one.
func wordOf(k FrontendKey) (list []uint64) {
	if word, ok := shortcutWord(shortFrontend, k.Addr, k.Port, k.Proto); ok {
		list = append(list, word)
	}
	return list
}

// addrShortcuts are the words of an address for each of some flags.
func addrShortcuts(a header.Addr, flags AddrFlags) (list []uint64) {
	for _, f := range []struct {
		is   bool
		kind shortcutKind
	}{{flags&AddrSNAT != 0, shortSNAT}, {flags&AddrNode != 0, shortNode}, {flags.ownSNAT(), shortOwnSNAT}} {
		if word, ok := shortcutWord(f.kind, a, 0, 0); ok && f.is {
			list = append(list, word)
		}
	}
	return list
}

// reconcileShortcuts sets the shortcuts to what the mirror has of the other maps.
func (s *Steering) reconcileShortcuts() {
	wanted := map[uint64]struct{}{}
	want := func(words []uint64) {
		for _, w := range words {
			wanted[w] = struct{}{}
		}
	}
	for k := range s.rules.frontends {
		want(s.rules.frontendShortcut(k))
	}
	for a, st := range s.rules.addrs {
		want(addrShortcuts(a, st.kernel))
	}
	s.shortcuts.keep(wanted)
}

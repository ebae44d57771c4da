package xdpprog

import (
	"encoding/binary"
	"fmt"
	"math/bits"

	"github.com/cilium/ebpf"

	"sluice.dev/sluice/nat/header"
)

// The kernel program's shortcuts (maps.h) repeat a part of the IPv4 entries of the other maps, and
// have no others. So a word is written after its entry and removed before it. A word whose bucket
// is full is left out, which costs a search in the other map. There is room for 131,072 words,
// eight in a bucket; with random words about the 25,000th is the first to find its bucket full.

const (
	shortcutBits    = 14 // SHORTCUT_BITS
	shortcutBuckets = 1 << shortcutBits
	shortcutWords   = len(steerShortcut{}.Word)
)

// shortcuts is the kernel's array, mapped into memory: a word is read and written atomically.
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
	_, _ = s.memory.ReadAt(b[:], int64(8*i)) // fails only outside of the map
	return binary.NativeEndian.Uint64(b[:])
}

func (s shortcuts) put(i int, word uint64) {
	var b [8]byte
	binary.NativeEndian.PutUint64(b[:], word)
	_, _ = s.memory.WriteAt(b[:], int64(8*i)) // as above
}

// find returns the index of a word in the bucket of word of, or -1. The word 0 finds a free place.
func (s shortcuts) find(word, of uint64) int {
	first := shortcutBucket(of) * shortcutWords
	for i := first; i < first+shortcutWords; i++ {
		if s.get(i) == word {
			return i
		}
	}
	return -1
}

// add writes words whose entries exist already, if there is room.
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

// remove removes words whose entries are about to be removed.
func (s shortcuts) remove(words ...uint64) {
	for _, word := range words {
		if i := s.find(word, word); i >= 0 {
			s.put(i, 0)
		}
	}
}

// keep removes all words except the wanted ones, and adds missing ones.
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

// shortcutWord returns the word with which short_cut of steer.bpf.c compares. ok is false for IPv6,
// which has no shortcuts.
func shortcutWord(kind shortcutKind, a header.Addr, port uint16, proto uint8) (word uint64, ok bool) {
	if !a.Is4() {
		return 0, false
	}
	return uint64(words(a)[3]) | uint64(bits.ReverseBytes16(port))<<32 | uint64(proto)<<48 | uint64(kind)<<56, true
}

// shortcutBucket returns the number of the word's bucket.
func shortcutBucket(word uint64) int {
	return int(word * 0x9e3779b97f4a7c15 >> (64 - shortcutBits))
}

// frontendShortcut returns the word of a frontend, as a list of at most one. There is none for a
// frontend at an address of the node, because only the map shows that the node's sockets have
// priority.
func (r *mirror) frontendShortcut(k FrontendKey) []uint64 {
	if r.value(steerMapFrontends, k) == atNode {
		return nil
	}
	return wordOf(k)
}

// wordOf returns the word of a frontend, as a list of at most one.
func wordOf(k FrontendKey) (list []uint64) {
	if word, ok := shortcutWord(shortFrontend, k.Addr, k.Port, k.Proto); ok {
		list = append(list, word)
	}
	return list
}

// addrShortcuts returns the words of an address with the given flags.
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

// reconcileShortcuts sets the shortcuts according to the mirror of the other maps.
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

package xdpprog

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/gaissmai/bart"

	"sluice.dev/sluice/nat/header"
)

// MaxDenied is the number of prefixes for which the kernel program has room (maps.h).
const MaxDenied = 1 << 16

// Denial is a prefix of clients whose packets program steer drops. Replies to source ports, packets
// of backends that receive their clients' addresses, and packets that the program leaves to the
// kernel are not a client's.
type Denial struct {
	Prefix netip.Prefix
	// UntilNanos is the time of CLOCK_BOOTTIME from which the entry has no effect; 0: no such time.
	UntilNanos uint64
}

// SetDenied replaces the list of denied prefixes, without a moment in which an entry of both lists
// is missing. A prefix in a wider one is denied for at least as long as that one. An entry that
// stays keeps its count of packets.
func (s *Steering) SetDenied(list []Denial) error {
	if len(list) > MaxDenied {
		return fmt.Errorf("%d prefixes are denied, and the BPF map has room for %d", len(list), MaxDenied)
	}
	want, hints := denials(list)
	have := map[steerPrefix]steerDenial{}
	m := s.maps[steerMapDenied]
	if err := each(m, func(p steerPrefix, d steerDenial) { have[p] = d }); err != nil {
		return err
	}
	for p := range have {
		if _, ok := want[p]; ok {
			continue
		}
		if err := m.Delete(p); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("deny %v no more: %w", prefixOf(p), err)
		}
	}
	for p, until := range want {
		before, ok := have[p]
		if ok && before.UntilNs == until {
			continue
		}
		if err := m.Put(p, steerDenial{UntilNs: until, Packets: before.Packets}); err != nil {
			return full(m, fmt.Errorf("deny %v: %w", prefixOf(p), err))
		}
	}
	keys := make([]uint32, len(hints))
	for i := range keys {
		keys[i] = uint32(i)
	}
	if _, err := s.maps[steerMapDenyHints].BatchUpdate(keys, hints[:], &ebpf.BatchOptions{}); err != nil {
		return fmt.Errorf("write BPF hints of denied addresses: %w", err)
	}
	s.denies = len(want) > 0
	return s.syncDenies()
}

// syncDenies sets the setting that makes the program look for denied clients.
func (s *Steering) syncDenies() error {
	raw, err := s.readSettings()
	if deny := uint32(flag(s.denies)); err == nil && raw.Deny != deny {
		raw.Deny = deny
		err = s.putSettings(&raw)
	}
	return err
}

// Denied returns the number of dropped packets of each entry. It may be called from any goroutine.
func (s *Steering) Denied() (map[netip.Prefix]uint64, error) {
	packets := map[netip.Prefix]uint64{}
	err := each(s.maps[steerMapDenied], func(p steerPrefix, d steerDenial) { packets[prefixOf(p)] = d.Packets })
	return packets, err
}

const (
	denyWords  = 1024       // of the hints, for one family
	mappedBits = 96         // in front of an IPv4 address
	longest    = ^uint64(0) // later than any time of an entry
	sliceHash  = 0x9e3779b1 // as in is_denied
	sliceBits  = 16         // of a slice
	hashedBits = 32         // of an IPv6 address
	allSlices  = math.MaxUint64
)

// denials returns the contents of the maps: when each prefix ends, and the hints.
func denials(list []Denial) (until map[steerPrefix]uint64, hints [2 * denyWords]uint64) {
	list = slices.SortedFunc(slices.Values(list), func(a, b Denial) int {
		return cmp.Compare(a.Prefix.Bits(), b.Prefix.Bits())
	})
	until = make(map[steerPrefix]uint64, len(list))
	var ends bart.Table[uint64] // of each prefix, and of the wider ones
	for _, d := range list {
		end := d.UntilNanos
		if end == 0 {
			end = longest
		}
		if wider, ok := ends.LookupPrefix(d.Prefix); ok {
			end = max(end, wider)
		}
		ends.Insert(d.Prefix, end)
		if end == longest {
			end = 0
		}
		until[prefixKey(d.Prefix)] = end
		hint(&hints, d.Prefix)
	}
	return until, hints
}

// hint sets the hints of a prefix (maps.h).
func hint(hints *[2 * denyWords]uint64, p netip.Prefix) {
	a := header.AddrFrom(p.Addr())
	if p.Addr().Is4() {
		first := uint32(binary.BigEndian.Uint16(a[12:]))
		for i := range uint32(1) << max(0, sliceBits-p.Bits()) {
			hints[(first+i)/64] |= 1 << ((first + i) % 64)
		}
		return
	}
	if p.Bits() < hashedBits {
		for i := range denyWords {
			hints[denyWords+i] = allSlices
		}
		return
	}
	slice := binary.BigEndian.Uint32(a[:]) * sliceHash >> sliceBits
	hints[denyWords+slice/64] |= 1 << (slice % 64)
}

func prefixKey(p netip.Prefix) steerPrefix {
	bits := p.Bits()
	if p.Addr().Is4() {
		bits += mappedBits
	}
	return steerPrefix{Bits: uint32(bits), Addr: words(header.AddrFrom(p.Addr()))}
}

func prefixOf(k steerPrefix) netip.Prefix {
	mapped, bits := addrOf(k.Addr), int(k.Bits)
	a := mapped.Netip()
	if a.Is4() {
		bits -= mappedBits
	}
	return netip.PrefixFrom(a, bits)
}

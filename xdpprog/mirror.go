package xdpprog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"slices"

	"github.com/cilium/ebpf"

	"sluice.dev/sluice/nat/header"
)

// mirror is a copy of the maps' contents. It is needed because rules are changed by difference, and
// because a node port is one bit of a word that also holds others. The control loop is the only
// writer of map and mirror.
type mirror struct {
	frontends, sources map[FrontendKey]uint8 // values as in the kernel's map
	addrs              map[header.Addr]addrState
	ports, replies     [nodePortWords]uint64
	replyCount         int // ports in replies
}

// portsOf returns the mirror of a table of ports.
func (r *mirror) portsOf(table string) *[nodePortWords]uint64 {
	if table == steerMapReplies {
		return &r.replies
	}
	return &r.ports
}

// addrState has the reasons why an address is in the kernel's table.
type addrState struct {
	own                AddrFlags // by OpenAddr and CloseAddr
	frontends, sources uint32    // entries with this address
	kernel             AddrFlags // the value in the map
}

func (a addrState) flags() AddrFlags {
	f := a.own
	if a.frontends > 0 {
		f |= addrHasFrontend
	}
	if a.sources > 0 {
		f |= addrHasKeep
	}
	return f
}

const nodePortWords = 6 * (1 << 16) / 64

func (r *mirror) set(table string) map[FrontendKey]uint8 {
	if table == steerMapFrontends {
		return r.frontends
	}
	return r.sources
}

func (r *mirror) use(table string, a header.Addr, by int32) {
	st := r.addrs[a]
	if table == steerMapFrontends {
		st.frontends += uint32(by)
	} else {
		st.sources += uint32(by)
	}
	r.addrs[a] = st
}

// value returns the value that a key's entry in a table must have.
func (r *mirror) value(table string, k FrontendKey) uint8 {
	if table == steerMapFrontends && r.addrs[k.Addr].own&addrOfNode != 0 {
		return atNode
	}
	return plainEntry
}

func has[K comparable, V any](set map[K]V, k K) bool {
	_, ok := set[k]
	return ok
}

// read sets the mirror to the contents of the maps.
func (r *mirror) read(maps map[string]*ebpf.Map) error {
	*r = mirror{
		frontends: map[FrontendKey]uint8{}, sources: map[FrontendKey]uint8{},
		addrs: map[header.Addr]addrState{},
	}
	err := each(maps[steerMapAddrs], func(a [4]uint32, flags uint32) {
		r.addrs[addrOf(a)] = addrState{own: AddrFlags(flags) & addrRoles, kernel: AddrFlags(flags)}
	})
	for _, table := range []string{steerMapFrontends, steerMapKeepSources} {
		err = errors.Join(err, each(maps[table], func(e steerEndpoint, value uint8) {
			r.set(table)[keyOf(e)] = value
			r.use(table, addrOf(e.Addr), 1)
		}))
	}
	return errors.Join(err,
		each(maps[steerMapNodeports], func(word uint32, v uint64) { r.ports[word] = v }),
		each(maps[steerMapReplies], func(word uint32, v uint64) {
			r.replies[word] = v
			r.replyCount += bits.OnesCount64(v)
		}))
}

// rules returns the rules of the mirror, in no particular order.
func (r *mirror) rules() Rules {
	held := Rules{
		Frontends: slices.Collect(maps.Keys(r.frontends)), Sources: slices.Collect(maps.Keys(r.sources)),
		Addrs: make(map[header.Addr]AddrFlags, len(r.addrs)),
	}
	for a, st := range r.addrs {
		if st.own != 0 {
			held.Addrs[a] = st.own
		}
	}
	held.NodePorts, held.Replies = portList(&r.ports), portList(&r.replies)
	return held
}

// portList lists the ports of a table.
func portList(words *[nodePortWords]uint64) (list []NodePort) {
	for word, v := range words {
		for ; v != 0; v &= v - 1 {
			list = append(list, nodePortAt(uint32(word), bits.TrailingZeros64(v)))
		}
	}
	return list
}

// each reads a whole map, some thousand entries per system call.
func each[K, V any](m *ebpf.Map, f func(K, V)) error {
	keys, values := make([]K, readBatch), make([]V, readBatch)
	var at ebpf.MapBatchCursor
	for {
		n, err := m.BatchLookup(&at, keys, values, nil)
		for i := range n {
			f(keys[i], values[i])
		}
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read %v: %w", m, explain(err))
		}
	}
}

// readBatch must exceed the number of entries in one hash bucket (ENOSPC otherwise).
const readBatch = 4096

func (k FrontendKey) endpoint() steerEndpoint {
	return steerEndpoint{Addr: words(k.Addr), Port: bits.ReverseBytes16(k.Port), Proto: k.Proto}
}

func keyOf(e steerEndpoint) FrontendKey {
	return FrontendKey{Addr: addrOf(e.Addr), Port: bits.ReverseBytes16(e.Port), Proto: e.Proto}
}

// words and addrOf convert between an address and the same bytes in memory as the
// kernel's four words.
func words(a header.Addr) (w [4]uint32) {
	for i := range w {
		w[i] = binary.NativeEndian.Uint32(a[4*i:])
	}
	return w
}

func addrOf(w [4]uint32) (a header.Addr) {
	for i, v := range w {
		binary.NativeEndian.PutUint32(a[4*i:], v)
	}
	return a
}

package xdpprog

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
)

// MaxMACs bounds Destinations.MACs.
const MaxMACs = len(steerMacSets{}.Set[0].Word)

// Destinations are what says of a frame that it is for this node: those of one interface and of the
// devices that share its traffic.
type Destinations struct {
	// MACs are unicast addresses; the first one is compared first. Empty: they are not known, and
	// frames for any address and of any VLAN are taken.
	MACs []MAC
	// VLANs are those that frames may be in. Frames without a tag, and with tags that have a
	// priority alone, are in none.
	VLANs []VLAN
}

// MAC is an Ethernet address.
type MAC [6]byte

// VLAN is one or two tags, the outer one first; the second is zero where there is one.
type VLAN [2]Tag

// Tag is the VLAN of one tag.
type Tag struct {
	ID   uint16 // 1 to 4094
	QinQ bool   // 802.1ad, not 802.1Q
}

// key is vlans of struct tuple (frame.h).
func (v VLAN) key() (k uint32) {
	for _, t := range v {
		if t == (Tag{}) {
			break
		}
		k = k<<16 | uint32(t.ID)
		if t.QinQ {
			k |= 1 << 12
		}
	}
	return k
}

// word is the address as struct mac_set (maps.h) has it.
func (m MAC) word() uint64 {
	var b [8]byte
	copy(b[2:], m[:])
	return binary.LittleEndian.Uint64(b[:])
}

// ErrManyMACs is returned by Port.SetDestinations for more than MaxMACs.
var ErrManyMACs = fmt.Errorf("more than %d MAC addresses", MaxMACs)

// SetDestinations replaces what the interface takes packets for, of those that a rule matches; all
// others pass to the kernel. Before the first call it is every frame. Each frame is judged by the
// old addresses or by the new ones; VLANs come before the addresses change, and go after. After an
// error the addresses are as before.
func (p *Port) SetDestinations(d Destinations) error {
	if err := p.setDestinations(d); err != nil {
		return fmt.Errorf("MAC addresses and VLANs of %s: %w", p.name, err)
	}
	return nil
}

func (p *Port) setDestinations(d Destinations) error {
	if len(d.MACs) > MaxMACs {
		return ErrManyMACs
	}
	wanted := make(map[uint32]bool, len(d.VLANs))
	for _, v := range d.VLANs {
		wanted[v.key()] = true
		if err := p.vlans.Put(v.key(), uint8(1)); err != nil {
			return full(p.vlans, err)
		}
	}
	if err := p.setMACs(d.MACs); err != nil {
		return err
	}
	var key uint32
	var one uint8
	var gone []uint32
	all := p.vlans.Iterate()
	for all.Next(&key, &one) {
		if !wanted[key] {
			gone = append(gone, key)
		}
	}
	errs := []error{all.Err()}
	for _, k := range gone {
		if err := p.vlans.Delete(k); !errors.Is(err, ebpf.ErrKeyNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// setMACs writes the set that is not in use, and then has it used.
func (p *Port) setMACs(macs []MAC) error {
	m, err := p.macs.Memory()
	if err != nil {
		return err
	}
	words := func(at int, list ...uint64) error {
		b := make([]byte, 0, 8*len(list))
		for _, w := range list {
			b = binary.NativeEndian.AppendUint64(b, w)
		}
		_, err := m.WriteAt(b, int64(8*at))
		return err
	}
	var active [8]byte
	if _, err := m.ReadAt(active[:], 0); err != nil {
		return err
	}
	next := (binary.NativeEndian.Uint64(active[:]) + 1) & 1
	set := []uint64{uint64(len(macs))}
	for _, mac := range macs {
		set = append(set, mac.word())
	}
	return errors.Join(words(1+int(next)*(1+MaxMACs), set...), words(0, next))
}

package xdpprog

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
)

// MaxMACs bounds Destinations.MACs.
const MaxMACs = len(steerMacSets{}.Set[0].Word)

// Destinations has the MAC addresses and VLANs of frames for this node: those of one interface and
// of the devices that share its traffic.
type Destinations struct {
	// MACs are unicast addresses; the first one is compared first. If it is empty, the addresses
	// are not known, and frames for any address and in any VLAN are accepted.
	MACs []MAC
	// VLANs are the VLANs that frames may be in. Frames without a tag, or with only priority tags,
	// are in no VLAN and are accepted.
	VLANs []VLAN
}

// MAC is an Ethernet address.
type MAC [6]byte

// VLAN is one or two tags, the outer one first; if there is only one, the second is zero.
type VLAN [2]Tag

// Tag is the VLAN of one tag.
type Tag struct {
	ID   uint16 // 1 to 4094
	QinQ bool   // 802.1ad, not 802.1Q
}

// key returns the VLAN in the form of vlans in struct tuple (frame.h).
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

// word returns the address in the form of struct mac_set (maps.h).
func (m MAC) word() uint64 {
	var b [8]byte
	copy(b[2:], m[:])
	return binary.LittleEndian.Uint64(b[:])
}

// ErrManyMACs is returned by Port.SetDestinations for more than MaxMACs.
var ErrManyMACs = fmt.Errorf("more than %d MAC addresses", MaxMACs)

// SetDestinations replaces the destinations of frames for this node. Of the frames that a rule
// matches, the program takes only these; all others pass to the kernel. Before the first call it
// takes every frame. Each frame is compared with either the old or the new addresses; new VLANs are
// added before the addresses change, and old ones removed afterwards. After an error the addresses
// are unchanged.
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

// setMACs writes the inactive set, and then makes it the active one.
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

package xdpprog

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/nat/header"
)

// FrontendKey is an address, port and protocol: the key of a frontend or of a kept source. Port is
// in host byte order.
type FrontendKey struct {
	Addr  header.Addr
	Port  uint16
	Proto uint8
}

// AddrFlags are the roles of an address for the gateway.
type AddrFlags uint8

const (
	// AddrVIP: echo requests are steered and, with Settings.Unserved, all other packets, unless the
	// node has the address.
	AddrVIP = AddrFlags(steerAddrFlagsVIP)
	// AddrNode: accepts node ports.
	AddrNode = AddrFlags(steerAddrFlagsNODE)
	// AddrSNAT: the address receives replies, at ports in the SNAT port range, or, if it is neither
	// AddrNode nor AddrLocal, at all ports from 1024 on. All packets to an address of the second
	// kind are steered, unless it is also an AddrVIP and Settings.Unserved is not set.
	AddrSNAT = AddrFlags(steerAddrFlagsSNAT)
	// AddrLocal: an address of this node. The flag alone steers nothing. It leaves unserved ports
	// of an address that is also a VIP to the kernel, and also fragments while there is no socket.
	AddrLocal = AddrFlags(steerAddrFlagsLOCAL)

	// These flags show the kernel program whether the larger tables may have an entry with the
	// address. This package maintains them.
	addrHasFrontend = AddrFlags(steerAddrFlagsHAS_FRONTEND)
	addrHasKeep     = AddrFlags(steerAddrFlagsHAS_KEEP)
	addrRoles       = AddrVIP | AddrNode | AddrSNAT | AddrLocal
	addrOfNode      = AddrNode | AddrLocal
)

// The values of entries (maps.h, enum frontend_value). A frontend at an address of the node gets
// only packets that do not belong to a TCP or UDP socket of the node.
const (
	plainEntry uint8 = 1 + iota // PLAIN_FRONTEND
	atNode                      // AT_NODE
)

// ownSNATFirst is the first port of replies to an SNAT address that the node does not have.
const ownSNATFirst = 1024

// ownSNAT reports whether an address only receives replies.
func (f AddrFlags) ownSNAT() bool { return f&(AddrSNAT|AddrNode|AddrLocal) == AddrSNAT }

// routed reports whether an address is the gateway's and not the node's.
func (f AddrFlags) routed() bool { return f&(AddrVIP|AddrSNAT) != 0 && f&addrOfNode == 0 }

// withheld reports whether packets to the address that no other rule steers are steered. unserved
// is Settings.Unserved.
func (f AddrFlags) withheld(unserved bool) bool { return f.routed() && (unserved || f&AddrVIP == 0) }

// NodePort is a port that is open on every address with AddrNode, for one family.
type NodePort struct {
	V6    bool
	Proto uint8 // TCP, UDP or SCTP
	Port  uint16
}

// ErrProto is returned for a node port of a protocol without node ports.
var ErrProto = errors.New("node ports are for TCP, UDP and SCTP")

// Rules are all rules of a Steering.
type Rules struct {
	Frontends []FrontendKey
	NodePorts []NodePort
	Addrs     map[header.Addr]AddrFlags
	Sources   []FrontendKey
	// Replies are the ports outside of the range of Settings at which addresses with AddrSNAT
	// receive replies.
	Replies []NodePort
}

// nodePortProtos is the order of protocols in the bitmap.
var nodePortProtos = [...]uint8{header.ProtoTCP, header.ProtoUDP, header.ProtoSCTP}

// bit returns the place of a node port in the bitmap of maps.h.
func (n NodePort) bit() (word uint32, mask uint64, err error) {
	table := slices.Index(nodePortProtos[:], n.Proto)
	if table < 0 {
		return 0, 0, fmt.Errorf("protocol %d: %w", n.Proto, ErrProto)
	}
	if n.V6 {
		table += len(nodePortProtos)
	}
	return uint32(table)*1024 + uint32(n.Port)/64, 1 << (n.Port % 64), nil
}

// nodePortAt is the inverse of bit.
func nodePortAt(word uint32, bit int) NodePort {
	table := int(word / 1024)
	return NodePort{
		V6: table >= len(nodePortProtos), Proto: nodePortProtos[table%len(nodePortProtos)],
		Port: uint16(word%1024*64) + uint16(bit),
	}
}

// Rules returns the rules in the kernel: those that Load found, with all changes since.
func (s *Steering) Rules() Rules { return s.rules.rules() }

// OpenFrontend steers packets to k.
func (s *Steering) OpenFrontend(k FrontendKey) error { return s.open(steerMapFrontends, k) }

// CloseFrontend undoes OpenFrontend.
func (s *Steering) CloseFrontend(k FrontendKey) error { return s.close(steerMapFrontends, k) }

// KeepSource steers packets from k: the replies of a backend that receives the client's own
// address.
func (s *Steering) KeepSource(k FrontendKey) error { return s.open(steerMapKeepSources, k) }

// DropSource undoes KeepSource.
func (s *Steering) DropSource(k FrontendKey) error { return s.close(steerMapKeepSources, k) }

// OpenNodePort steers packets to a port of any address with AddrNode, in one family.
func (s *Steering) OpenNodePort(v6 bool, proto uint8, port uint16) error {
	return s.setPort(steerMapNodeports, NodePort{v6, proto, port}, true)
}

// CloseNodePort undoes OpenNodePort.
func (s *Steering) CloseNodePort(v6 bool, proto uint8, port uint16) error {
	return s.setPort(steerMapNodeports, NodePort{v6, proto, port}, false)
}

// OpenAddr adds flags to an address.
func (s *Steering) OpenAddr(a header.Addr, flags AddrFlags) error {
	return s.setAddr(a, s.rules.addrs[a].own|flags)
}

// CloseAddr removes flags from an address.
func (s *Steering) CloseAddr(a header.Addr, flags AddrFlags) error {
	return s.setAddr(a, s.rules.addrs[a].own&^flags)
}

// setAddr sets the flags of an address. After an error the address is unchanged.
func (s *Steering) setAddr(a header.Addr, flags AddrFlags) error {
	before := s.rules.addrs[a]
	st := before
	st.own = flags & addrRoles
	s.rules.addrs[a] = st
	err := s.syncAddr(a)
	if err != nil {
		if s.rules.addrs[a] = before; before == (addrState{}) {
			delete(s.rules.addrs, a)
		}
	}
	return err
}

func (s *Steering) open(table string, k FrontendKey) error {
	if set, value := s.rules.set(table), s.rules.value(table, k); !has(set, k) {
		if err := s.maps[table].Put(k.endpoint(), value); err != nil {
			return full(s.maps[table], fmt.Errorf("steer %v: %w", k, err))
		}
		set[k] = value
		s.rules.use(table, k.Addr, 1)
	}
	err := s.syncAddr(k.Addr)
	if err == nil && table == steerMapFrontends {
		s.shortcuts.add(s.rules.frontendShortcut(k)...)
	}
	if errors.Is(err, unix.E2BIG) { // the entry is never found without its address
		err = errors.Join(err, s.close(table, k))
	}
	return err
}

// syncFrontends sets the values of an address's frontends, and their shortcuts, after the address
// became or ceased to be one of the node.
func (s *Steering) syncFrontends(a header.Addr) error {
	for k, value := range s.rules.frontends {
		if k.Addr == a && value != s.rules.value(steerMapFrontends, k) {
			if err := s.syncFrontend(k); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *Steering) syncFrontend(k FrontendKey) error {
	s.shortcuts.remove(wordOf(k)...)
	value := s.rules.value(steerMapFrontends, k)
	if err := s.maps[steerMapFrontends].Put(k.endpoint(), value); err != nil {
		return fmt.Errorf("steer %v: %w", k, err)
	}
	s.rules.frontends[k] = value
	s.shortcuts.add(s.rules.frontendShortcut(k)...)
	return nil
}

func (s *Steering) close(table string, k FrontendKey) error {
	if set := s.rules.set(table); has(set, k) {
		if table == steerMapFrontends {
			s.shortcuts.remove(wordOf(k)...)
		}
		if err := s.maps[table].Delete(k.endpoint()); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("stop steering %v: %w", k, err)
		}
		delete(set, k)
		s.rules.use(table, k.Addr, -1)
	}
	return s.syncAddr(k.Addr)
}

// syncAddr sets the kernel's entry of an address according to the mirror.
func (s *Steering) syncAddr(a header.Addr) error {
	st := s.rules.addrs[a]
	want := st.flags()
	if (want^st.kernel)&addrOfNode != 0 && st.frontends > 0 {
		if err := s.syncFrontends(a); err != nil {
			return err
		}
	}
	if want != st.kernel {
		m := s.maps[steerMapAddrs]
		stays := addrShortcuts(a, want)
		for _, word := range addrShortcuts(a, st.kernel) {
			if !slices.Contains(stays, word) {
				s.shortcuts.remove(word)
			}
		}
		if want == 0 {
			if err := m.Delete(words(a)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
				return fmt.Errorf("disown address %v: %w", a, err)
			}
		} else if err := m.Put(words(a), uint32(want)); err != nil {
			return full(m, fmt.Errorf("own address %v: %w", a, err))
		}
		s.shortcuts.add(stays...)
		st.kernel = want
		s.rules.addrs[a] = st
	}
	if want == 0 {
		delete(s.rules.addrs, a)
	}
	return nil
}

// setPort opens or closes one port of a table of ports.
func (s *Steering) setPort(table string, n NodePort, open bool) error {
	word, mask, err := n.bit()
	if err != nil {
		return err
	}
	v := s.rules.portsOf(table)[word] &^ mask
	if open {
		v |= mask
	}
	if v == s.rules.portsOf(table)[word] {
		return nil
	}
	return s.putPorts(table, word, v)
}

// putPorts writes one word of a table of ports.
func (s *Steering) putPorts(table string, word uint32, v uint64) error {
	if err := s.maps[table].Put(word, v); err != nil {
		return fmt.Errorf("%s from %d: %w", table, word%1024*64, err)
	}
	ports := s.rules.portsOf(table)
	if table == steerMapReplies {
		s.rules.replyCount += bits.OnesCount64(v) - bits.OnesCount64(ports[word])
	}
	ports[word] = v
	if table == steerMapReplies {
		return s.syncKeptReplies()
	}
	return nil
}

// full returns the error of an update; if the map has no room, the error names the size as the
// cause.
func full(m *ebpf.Map, err error) error {
	if errors.Is(err, unix.E2BIG) {
		return fmt.Errorf("the BPF map is full at %d entries; load with a larger size: %w", m.MaxEntries(), err)
	}
	return err
}

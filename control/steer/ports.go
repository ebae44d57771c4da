package steer

import (
	"math/bits"

	"sluice.dev/sluice/nat/header"
)

// portTables is the number of port tables: for TCP, UDP and SCTP in two families.
const portTables = 6

// PortSet is a set of ports of TCP, UDP and SCTP in both families. A nil PortSet is empty.
type PortSet [portTables * 1024]uint64

// place returns the word and the bit of a port in a PortSet; ok is false for another protocol.
func (n NodePort) place() (word int, bit uint64, ok bool) {
	table := 0
	switch n.Proto {
	case header.ProtoTCP:
	case header.ProtoUDP:
		table = 1
	case header.ProtoSCTP:
		table = 2
	default:
		return 0, 0, false
	}
	if n.V6 {
		table += portTables / 2
	}
	return table*1024 + int(n.Port)/64, 1 << (n.Port % 64), true
}

// AllPorts returns a set of all ports.
func AllPorts() *PortSet {
	p := new(PortSet)
	for i := range p {
		p[i] = ^uint64(0)
	}
	return p
}

// Ports returns the set of the ports in list; nil if there are none.
func Ports(list []NodePort) *PortSet {
	p := new(PortSet)
	for _, n := range list {
		p.Add(n)
	}
	return p.orNil()
}

// Add adds a port. It ignores protocols other than TCP, UDP and SCTP.
func (p *PortSet) Add(n NodePort) {
	if word, bit, ok := n.place(); ok {
		p[word] |= bit
	}
}

// Has reports whether a port is in the set.
func (p *PortSet) Has(n NodePort) bool {
	word, bit, ok := n.place()
	return ok && p != nil && p[word]&bit != 0
}

// Len returns the number of ports.
func (p *PortSet) Len() (n int) {
	if p == nil {
		return 0
	}
	for _, w := range p {
		n += bits.OnesCount64(w)
	}
	return n
}

// List returns the ports in a fixed order.
func (p *PortSet) List() (list []NodePort) {
	if p == nil {
		return nil
	}
	protos := [...]uint8{header.ProtoTCP, header.ProtoUDP, header.ProtoSCTP}
	for word, w := range p {
		for ; w != 0; w &= w - 1 {
			table := word / 1024
			list = append(list, NodePort{V6: table >= len(protos), Proto: protos[table%len(protos)],
				Port: uint16(word%1024*64 + bits.TrailingZeros64(w))})
		}
	}
	return list
}

// Without returns the ports of p that are not in o; nil if there are none.
func (p *PortSet) Without(o *PortSet) *PortSet {
	if p == nil || o == nil {
		return p
	}
	rest := *p
	for i := range rest {
		rest[i] &^= o[i]
	}
	return rest.orNil()
}

// In returns the ports that are in both sets; nil if there are none.
func (p *PortSet) In(o *PortSet) *PortSet {
	if p == nil || o == nil {
		return nil
	}
	both := *p
	for i := range both {
		both[i] &= o[i]
	}
	return both.orNil()
}

// With returns the ports of both sets.
func (p *PortSet) With(o *PortSet) *PortSet {
	if p == nil || o == nil {
		if p == nil {
			return o
		}
		return p
	}
	sum := *p
	for i := range sum {
		sum[i] |= o[i]
	}
	return &sum
}

// orNil returns nil for a set without ports.
func (p *PortSet) orNil() *PortSet {
	if *p == (PortSet{}) {
		return nil
	}
	return p
}

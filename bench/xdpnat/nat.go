package xdpnat

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"

	"github.com/cilium/ebpf/link"

	"sluice.dev/sluice/control/maglev"
)

// Config is the configuration of the translation and of the next hops.
type Config struct {
	Front, Back Port // towards clients, towards endpoints
	Services    []Service
	// SNAT are the source addresses of packets to endpoints, 16 at most.
	SNAT                []netip.Addr
	FirstPort, LastPort uint16 // of SNAT; 1024 to 65535 if both are 0
	// Flows is the maximum number of concurrent flows.
	Flows int
}

// Port is an interface with its single neighbour.
type Port struct {
	Interface string
	NextHop   net.HardwareAddr
}

// Service is a frontend and its backends.
type Service struct {
	Frontend netip.AddrPort
	Protocol uint8 // 6 or 17
	Backends []netip.AddrPort
}

// Counters are the program's counters.
type Counters struct {
	Made   uint64 // flows; an evicted flow is counted again when it is made again
	NoPort uint64 // packets dropped because no SNAT port was found free
	Failed uint64 // packets dropped because no entry could be made
}

// NAT is the program on its interfaces.
type NAT struct {
	objects natObjects
	links   []link.Link
}

// seed is arbitrary: another seed gives other tables.
var seed = [2]uint64{0x736c75696365, 0x786470}

// Attach loads the program and attaches it to both interfaces of the calling thread's network
// namespace, in driver mode. The peers of veth pairs need a program, too, or GRO: packets
// redirected to a veth whose peer has no NAPI are lost.
func Attach(c Config) (n *NAT, err error) {
	n = new(NAT)
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("XDP NAT: %w", err), n.Close())
			n = nil
		}
	}()
	if err := c.check(); err != nil {
		return n, err
	}
	front, err := net.InterfaceByName(c.Front.Interface)
	if err != nil {
		return n, fmt.Errorf("interface %s: %w", c.Front.Interface, err)
	}
	back, err := net.InterfaceByName(c.Back.Interface)
	if err != nil {
		return n, fmt.Errorf("interface %s: %w", c.Back.Interface, err)
	}
	if err := n.load(&c, hopOf(front, c.Front.NextHop), hopOf(back, c.Back.NextHop)); err != nil {
		return n, err
	}
	for at, dev := range []*net.Interface{front, back} {
		if err := n.objects.Ports.Put(uint32(at), uint32(dev.Index)); err != nil {
			return n, fmt.Errorf("interface %s: redirect to it: %w", dev.Name, err)
		}
	}
	for _, dev := range []*net.Interface{front, back} {
		l, err := link.AttachXDP(link.XDPOptions{Program: n.objects.Nat, Interface: dev.Index,
			Flags: link.XDPDriverMode})
		if err != nil {
			return n, fmt.Errorf("interface %s: attach the program: %w", dev.Name, err)
		}
		n.links = append(n.links, l)
	}
	return n, nil
}

const maxSNAT = 16 // as in nat.bpf.c

func (c *Config) check() error {
	if c.FirstPort == 0 && c.LastPort == 0 {
		c.FirstPort, c.LastPort = 1024, 65535
	}
	if c.FirstPort == 0 || c.LastPort < c.FirstPort {
		return fmt.Errorf("SNAT ports %d to %d: want an ascending range above 0", c.FirstPort, c.LastPort)
	}
	if len(c.SNAT) < 1 || len(c.SNAT) > maxSNAT {
		return fmt.Errorf("%d SNAT addresses: want 1 to %d", len(c.SNAT), maxSNAT)
	}
	if c.Flows < 1 {
		return fmt.Errorf("%d flows: want at least 1", c.Flows)
	}
	if len(c.Services) == 0 {
		return errors.New("no service: name one")
	}
	for _, a := range c.SNAT {
		if !a.Is4() {
			return fmt.Errorf("SNAT address %s: want one of IPv4", a)
		}
	}
	for _, s := range c.Services {
		if !s.Frontend.Addr().Is4() || len(s.Backends) == 0 {
			return fmt.Errorf("service %s with %d backends: want an IPv4 address and at least one backend", s.Frontend,
				len(s.Backends))
		}
		for _, b := range s.Backends {
			if !b.Addr().Is4() {
				return fmt.Errorf("service %s: backend %s: want an IPv4 address", s.Frontend, b)
			}
		}
	}
	return nil
}

// load loads the program for a configuration and fills its maps.
func (n *NAT) load(c *Config, hops ...natHop) error {
	spec, err := loadNat()
	if err != nil {
		return err
	}
	snat := make([]uint32, maxSNAT)
	for i, a := range c.SNAT {
		snat[i] = wire(a)
	}
	for name, value := range map[string]any{
		natVarHops: hops, natVarSnatAddrs: snat, natVarSnatCount: uint32(len(c.SNAT)),
		natVarFirstPort: uint32(c.FirstPort), natVarPortCount: uint32(c.LastPort-c.FirstPort) + 1,
	} {
		if err := spec.Variables[name].Set(value); err != nil {
			return fmt.Errorf("variable %s of the program: %w", name, err)
		}
	}
	slots, backends := 0, 0
	for _, s := range c.Services {
		slots += maglev.Size(len(s.Backends))
		backends += len(s.Backends)
	}
	spec.Maps[natMapFlows].MaxEntries = entries(c.Flows)
	spec.Maps[natMapServices].MaxEntries = uint32(len(c.Services))
	spec.Maps[natMapMaglev].MaxEntries = uint32(slots)
	spec.Maps[natMapBackends].MaxEntries = uint32(backends)
	if err := spec.LoadAndAssign(&n.objects, nil); err != nil {
		return fmt.Errorf("load the program (CAP_BPF and CAP_NET_ADMIN are needed): %w", err)
	}
	return n.fill(c.Services)
}

// entries returns the size of a map that never evicts one of this number of flows: the map evicts
// as soon as its free list has less than a batch, and each CPU may hold a batch of its own.
func entries(flows int) uint32 {
	const batch = 128 // LOCAL_FREE_TARGET in kernel/bpf/bpf_lru_list.c
	return uint32(2*flows + 2*batch*runtime.NumCPU())
}

// fill writes services, their Maglev tables and backends.
func (n *NAT) fill(services []Service) error {
	var slots, chosen, places []uint32
	var backends []natBackend
	for _, s := range services {
		names := make([]string, len(s.Backends))
		for i, b := range s.Backends {
			names[i] = b.String()
		}
		table := maglev.Table(names, nil, seed, maglev.Size(len(names)))
		key := natFrontend{Addr: wire(s.Frontend.Addr()), Port: wirePort(s.Frontend.Port()), Proto: uint16(s.Protocol)}
		value := natService{First: uint32(len(slots)), Slots: uint32(len(table))}
		if err := n.objects.Services.Put(key, value); err != nil {
			return fmt.Errorf("service %s: %w", s.Frontend, err)
		}
		for _, position := range table {
			slots = append(slots, uint32(len(slots)))
			chosen = append(chosen, uint32(len(backends))+uint32(position))
		}
		for _, b := range s.Backends {
			places = append(places, uint32(len(places)))
			backends = append(backends, natBackend{Addr: wire(b.Addr()), Port: wirePort(b.Port())})
		}
	}
	if _, err := n.objects.Maglev.BatchUpdate(slots, chosen, nil); err != nil {
		return fmt.Errorf("tables of Maglev hashing: %w", err)
	}
	if _, err := n.objects.Backends.BatchUpdate(places, backends, nil); err != nil {
		return fmt.Errorf("backends: %w", err)
	}
	return nil
}

// Counters reads the program's counters since Attach.
func (n *NAT) Counters() (sum Counters, err error) {
	var each []natCounts
	if err := n.objects.Totals.Lookup(uint32(0), &each); err != nil {
		return sum, fmt.Errorf("XDP NAT: counters: %w", err)
	}
	for _, c := range each {
		sum.Made += c.Made
		sum.NoPort += c.NoPort
		sum.Failed += c.Failed
	}
	return sum, nil
}

// Close detaches the program from both interfaces.
func (n *NAT) Close() error {
	var errs []error
	for _, l := range n.links {
		errs = append(errs, l.Close())
	}
	n.links = nil
	return errors.Join(append(errs, n.objects.Close())...)
}

// hopOf is the beginning of frames that leave by an interface.
func hopOf(from *net.Interface, to net.HardwareAddr) (h natHop) {
	b := append(append([]byte(nil), to...), from.HardwareAddr...)
	for i := range h.Addresses {
		h.Addresses[i] = binary.NativeEndian.Uint32(b[4*i:])
	}
	return h
}

// wire is an address in the program's representation, as in a packet.
func wire(a netip.Addr) uint32 {
	b := a.As4()
	return binary.NativeEndian.Uint32(b[:])
}

func wirePort(p uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, p))
}

package xdpprog

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"

	"sluice.dev/sluice/nat/header"
)

// Match is the rule by which program steer redirects a packet to user space.
type Match uint8

const (
	MatchNone     Match = iota // no rule: the packet passes to the kernel
	MatchFrontend              // its destination is a frontend
	MatchNodePort              // its destination is a node port on an address that accepts them
	MatchReply                 // its destination is a source port of the gateway, as for replies
	MatchUnserved              // its destination is only an address of the gateway (AddrFlags.withheld)
	MatchSource                // its source is a backend that receives its clients' addresses
)

// String returns the rule as part of a sentence: the packet is steered by ...
func (m Match) String() string {
	return [...]string{
		"no rule", "its frontend", "its node port", "the range of ports that replies come to", "its destination",
		"the backend it comes from",
	}[m]
}

// Client reports whether the program takes the packet for a client's, which can be denied.
func (m Match) Client() bool { return m == MatchFrontend || m == MatchNodePort || m == MatchUnserved }

// facts has the results of all lookups for one packet's source and destination.
type facts struct {
	src, dst                    AddrFlags // as in the kernel's map
	frontend, nodePort, replied bool      // of the destination
	ownReplied                  bool      // of the destination, if its address is the gateway's and not the node's
	source                      bool
	unserved                    bool // Settings.Unserved
}

// match does the same as to_us and kept of steer.bpf.c for an unfragmented TCP, UDP or SCTP packet,
// and must stay their twin: a test compares them. They may differ only while a frontend is being
// opened, before its address's entry has the flag.
func (f *facts) match() Match {
	switch {
	case f.dst&addrHasFrontend != 0 && f.frontend:
		return MatchFrontend
	case f.dst&AddrNode != 0 && f.nodePort:
		return MatchNodePort
	case f.dst&AddrSNAT != 0 && (f.replied || f.ownReplied && f.dst.ownSNAT()):
		return MatchReply
	case f.dst.withheld(f.unserved):
		return MatchUnserved
	case f.src&addrHasKeep != 0 && f.src&(AddrNode|AddrSNAT) == 0 && f.dst&(AddrNode|AddrLocal) == 0 && f.source:
		return MatchSource
	}
	return MatchNone
}

// Steers returns the rule by which the kernel program would steer an unfragmented TCP, UDP or SCTP
// packet, according to the current contents of the kernel's maps. It may be called from any
// goroutine.
func (s *Steering) Steers(t *header.Tuple) (Match, error) {
	settings, err := s.readSettings()
	if err != nil {
		return 0, err
	}
	word, mask, err := NodePort{t.V6, t.Proto, t.DstPort}.bit()
	if err != nil {
		return 0, err
	}
	var ports, replies uint64
	if err := s.maps[steerMapNodeports].Lookup(word, &ports); err != nil {
		return 0, fmt.Errorf("read BPF node ports: %w", err)
	}
	if err := s.maps[steerMapReplies].Lookup(word, &replies); err != nil {
		return 0, fmt.Errorf("read BPF ports of replies: %w", err)
	}
	f := facts{
		nodePort: ports&mask != 0,
		replied: t.DstPort-settings.SnatFirst < settings.SnatCount ||
			settings.KeptReplies != 0 && replies&mask != 0,
		ownReplied: t.DstPort >= ownSNATFirst,
		unserved:   settings.Unserved != 0,
	}
	src, dst := FrontendKey{t.Src, t.SrcPort, t.Proto}, FrontendKey{t.Dst, t.DstPort, t.Proto}
	var errs [4]error
	f.src, errs[0] = s.flagsOf(t.Src)
	f.dst, errs[1] = s.flagsOf(t.Dst)
	f.frontend, errs[2] = s.holds(steerMapFrontends, dst)
	f.source, errs[3] = s.holds(steerMapKeepSources, src)
	return f.match(), errors.Join(errs[:]...)
}

func (s *Steering) flagsOf(a header.Addr) (AddrFlags, error) {
	var flags uint32
	err := s.maps[steerMapAddrs].Lookup(words(a), &flags)
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return 0, fmt.Errorf("read BPF address %v: %w", a, err)
	}
	return AddrFlags(flags), nil
}

func (s *Steering) holds(table string, k FrontendKey) (bool, error) {
	var one uint8
	err := s.maps[table].Lookup(k.endpoint(), &one)
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return false, fmt.Errorf("read BPF map %q: %w", table, err)
	}
	return err == nil, nil
}

// Steers is Steering.Steers for rules that are not in a kernel.
func (r *Rules) Steers(t *header.Tuple, v Settings) Match {
	f := facts{
		src: r.Addrs[t.Src], dst: r.Addrs[t.Dst],
		replied: t.DstPort-v.SNATFirst < v.SNATCount, ownReplied: t.DstPort >= ownSNATFirst, unserved: v.Unserved,
	}
	for _, k := range r.Frontends {
		if k.Addr == t.Dst {
			f.dst |= addrHasFrontend
			f.frontend = f.frontend || k == FrontendKey{t.Dst, t.DstPort, t.Proto}
		}
	}
	for _, k := range r.Sources {
		if k.Addr == t.Src {
			f.src |= addrHasKeep
			f.source = f.source || k == FrontendKey{t.Src, t.SrcPort, t.Proto}
		}
	}
	port := NodePort{t.V6, t.Proto, t.DstPort}
	f.nodePort = slices.Contains(r.NodePorts, port)
	f.replied = f.replied || slices.Contains(r.Replies, port)
	return f.match()
}

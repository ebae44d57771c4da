package services

import (
	"net/netip"
	"testing"

	"sluice.dev/sluice/nat/header"
)

// TestDecide: one row for each rule, and rows for the rules' precedence.
func TestDecide(t *testing.T) {
	const port, nodePort = 80, 30080
	vip, other, bare, node := addr(1), addr(2), addr(3), addr(4)
	pod, outside, friend := addr(0x10000), addr(0x20000), addr(0x30000)
	some := &EndpointSet{Backends: []BackendRef{7}}
	none, elsewhere := &EndpointSet{}, &EndpointSet{Empty: EmptyDrop}
	ranges := NewPrefixes([]netip.Prefix{netip.PrefixFrom(friend.Netip(), 32)})
	key := func(a header.Addr, port uint16) FrontendKey { return FrontendKey{a, port, header.ProtoTCP} }

	b := NewBuilder(nil)
	b.Settings().Pods = NewPrefixes([]netip.Prefix{netip.PrefixFrom(pod.Netip(), 24)})
	b.SetAddr(vip, AddrVIP)
	b.SetAddr(node, AddrNode|AddrLocal)
	limited := &Frontend{Key: key(vip, port), Outside: Rule{Set: some}, Pod: Rule{Set: some, KeepClient: true},
		Allowed: ranges}
	dead := &Frontend{Key: key(other, port), Outside: Rule{Set: none}, Pod: Rule{Set: none}, Allowed: ranges}
	split := &Frontend{Key: key(bare, port), Outside: Rule{Set: elsewhere}, Pod: Rule{Set: some}}
	onNode := &Frontend{Key: key(node, nodePort), Kind: ExternalIP, Outside: Rule{Set: some}, Pod: Rule{Set: some}}
	anyNode := &Frontend{Key: key(AnyIPv4, nodePort), Kind: NodePort, Outside: Rule{Set: none}, Pod: Rule{Set: none}}
	for _, f := range []*Frontend{limited, dead, split, onNode, anyNode,
		{Key: key(AnyIPv4, nodePort+1), Kind: NodePort, Outside: Rule{Set: none}, Pod: Rule{Set: none}}} {
		b.SetFrontend(f)
	}
	s := b.Build()
	for _, tt := range []struct {
		name     string
		src, dst header.Addr
		port     uint16
		outcome  Outcome
		frontend *Frontend
		rule     *Rule
	}{
		{"in the ranges", friend, vip, port, Admit, limited, &limited.Outside},
		{"not in the ranges", outside, vip, port, Denied, limited, nil},
		{"ranges apply to pods as well", pod, vip, port, Denied, limited, nil},
		{"ranges are checked before endpoints", outside, other, port, Denied, dead, nil},
		{"in the ranges, but no endpoints", friend, other, port, Reject, dead, &dead.Outside},
		{"policy Local and none here", outside, bare, port, Silence, split, &split.Outside},
		{"policy Local does not apply to a pod", pod, bare, port, Admit, split, &split.Pod},
		{"explicit before node port", outside, node, nodePort, Admit, onNode, &onNode.Outside},
		{"another port of a VIP", friend, vip, port + 1, Unserved, nil, nil},
		{"no frontend at all", outside, addr(99), port, Unserved, nil, nil},
	} {
		got := s.Decide(&header.Tuple{Src: tt.src, Dst: tt.dst, SrcPort: 1, DstPort: tt.port, Proto: header.ProtoTCP})
		if got.Outcome != tt.outcome || got.Frontend != tt.frontend || got.Rule != tt.rule ||
			got.Pod != (tt.rule != nil && tt.src == pod) {
			t.Errorf("%s: %v %+v, want %v", tt.name, got.Outcome, got, tt.outcome)
		}
	}
}

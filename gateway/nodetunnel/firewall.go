package nodetunnel

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"go4.org/netipx"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/nat/vxlan"
)

// tableName is the name of the nftables table of family inet. nft lists the table as:
//
//	set gateways4 { type ipv4_addr; flags interval; auto-merge; elements = { 10.0.1.2 } }
//	set gateways6 { type ipv6_addr; flags interval; auto-merge }
//	chain prerouting {
//		type filter hook prerouting priority raw; policy accept;
//		meta l4proto udp ct state established
//		udp dport 4789 @th,96,24 20942 ip saddr != @gateways4 counter drop
//		udp dport 4789 @th,96,24 20942 ip6 saddr != @gateways6 counter drop
//	}
//	chain forward {
//		type filter hook forward priority filter; policy accept;
//		iifname "sluice-dsr" ct state invalid,untracked counter drop
//		iifname "sluice-dsr" ct status ! dnat counter drop
//		iifname "sluice-dsr6" ct state invalid,untracked counter drop
//		iifname "sluice-dsr6" ct status ! dnat counter drop
//	}
//
// The rules compare the VNI (bits 96 to 119 after the start of the UDP header), because another
// overlay may use the port. The first fragment of a packet may end before the VNI. So the first
// rule, which has no verdict, has a ct expression: with one in the ruleset the kernel reassembles
// packets before these rules (net/netfilter/nft_ct.c, nf_ct_netns_get; NF_IP_PRI_CONNTRACK_DEFRAG
// is before raw). kube-proxy's rules have the same effect, but may be missing.
//
// The rules in chain forward drop packets that kube-proxy has not translated: the node would
// forward such a packet to the VIP, back to the gateways, until its TTL ends. kube-proxy may have
// no rule for it (yet, or any more). Or conntrack does not track it, or finds it invalid, such as
// an ICMP error about a connection that the node does not know, which anyone can forge: then it has
// no ct status. A connection whose packets were dropped is not in conntrack's table, so kube-proxy
// translates the next packet as soon as it has a rule. In mode ipvs, kube-proxy translates packets
// for local delivery, so they are not forwarded.
const tableName = "sluice_node"

// outer describes a family of outer headers: where rules find the source address.
type outer struct {
	set     string
	keyType nftables.SetDatatype
	nfproto byte
	source  expr.Payload
}

var outers = [...]outer{
	{"gateways4", nftables.TypeIPAddr, unix.NFPROTO_IPV4,
		expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 12, Len: 4}},
	{"gateways6", nftables.TypeIP6Addr, unix.NFPROTO_IPV6,
		expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 8, Len: 16}},
}

// protecting serializes protect: the library numbers sets by a global variable without a lock.
var protecting sync.Mutex

// protect replaces the table in one transaction.
func (c *Config) protect() error {
	protecting.Lock()
	defer protecting.Unlock()
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	gateways, err := setOf(c.Gateways)
	if err != nil {
		return err
	}
	elements := elements(gateways)
	table := &nftables.Table{Name: tableName, Family: nftables.TableFamilyINet}
	conn.AddTable(table) // so that deleting it is no error
	conn.DelTable(table)
	conn.AddTable(table)
	for i, o := range outers {
		set := &nftables.Set{Table: table, Name: o.set, KeyType: o.keyType, Interval: true, AutoMerge: true}
		if err := conn.AddSet(set, elements[i]); err != nil {
			return fmt.Errorf("nftables set %s: %w", o.set, err)
		}
	}
	for _, ch := range chainsOf(c.Tunnel) {
		made := conn.AddChain(&nftables.Chain{Table: table, Name: ch.name, Type: nftables.ChainTypeFilter,
			Hooknum: ch.hook, Priority: ch.priority})
		for _, r := range ch.rules {
			conn.AddRule(&nftables.Rule{Table: table, Chain: made, Exprs: r})
		}
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("nftables table inet %s: %w", tableName, err)
	}
	return nil
}

// chain is a chain of the table.
type chain struct {
	name     string
	hook     *nftables.ChainHook
	priority *nftables.ChainPriority
	rules    [][]expr.Any
}

// Indexes of chains in the result of chainsOf, and of counting rules in their chains.
const (
	prerouting = iota
	forward
)

// chainsOf returns the chains for a tunnel.
func chainsOf(t vxlan.Tunnel) []chain {
	list := []chain{
		prerouting: {name: "prerouting", hook: nftables.ChainHookPrerouting, priority: nftables.ChainPriorityRaw,
			rules: [][]expr.Any{reassemble()}},
		forward: {name: "forward", hook: nftables.ChainHookForward, priority: nftables.ChainPriorityFilter},
	}
	for _, o := range outers {
		list[prerouting].rules = append(list[prerouting].rules, o.drop(t))
	}
	for _, d := range devices {
		list[forward].rules = append(list[forward].rules, d.drop(untrackable()), d.drop(untranslated()))
	}
	return list
}

// setOf returns the addresses of prefixes.
func setOf(list []netip.Prefix) (*netipx.IPSet, error) {
	var b netipx.IPSetBuilder
	for _, p := range list {
		b.AddPrefix(p.Masked())
	}
	set, err := b.IPSet()
	if err != nil {
		return nil, fmt.Errorf("addresses of gateways: %w", err)
	}
	return set, nil
}

// elements returns the elements of the two sets: the first address of each range, and the address
// after its last one.
func elements(gateways *netipx.IPSet) (sets [len(outers)][]nftables.SetElement) {
	for _, r := range gateways.Ranges() {
		set := &sets[0]
		if r.From().Is6() {
			set = &sets[1]
		}
		*set = append(*set, nftables.SetElement{Key: r.From().AsSlice()})
		if end := r.To().Next(); end.IsValid() { // not after the family's last address
			*set = append(*set, nftables.SetElement{Key: end.AsSlice(), IntervalEnd: true})
		}
	}
	return sets
}

// addElements adds the ranges of the elements of a set.
func addElements(to *netipx.IPSetBuilder, list []nftables.SetElement) {
	slices.SortFunc(list, func(a, b nftables.SetElement) int { return bytes.Compare(a.Key, b.Key) })
	var first netip.Addr // of an open range
	for _, e := range list {
		at, _ := netip.AddrFromSlice(e.Key)
		if first.IsValid() && at != first {
			to.AddRange(netipx.IPRangeFrom(first, at.Prev()))
			first = netip.Addr{}
		}
		if !e.IntervalEnd {
			first = at
		}
	}
	if first.IsValid() {
		to.AddRange(netipx.IPRangeFrom(first, netipx.PrefixLastIP(netip.PrefixFrom(first, 0))))
	}
}

func equal(data ...byte) *expr.Cmp { return &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: data} }

// state matches packets whose conntrack state has one of some bits.
func state(bits uint32) []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Xor: make([]byte, 4),
			Mask: binaryutil.NativeEndian.PutUint32(bits)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
	}
}

func reassemble() []expr.Any {
	return append([]expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, equal(unix.IPPROTO_UDP)},
		state(expr.CtStateBitESTABLISHED)...)
}

// untrackable matches packets without a connection: conntrack finds them invalid, or another rule
// has exempted them (notrack).
func untrackable() []expr.Any { return state(expr.CtStateBitINVALID | expr.CtStateBitUNTRACKED) }

// untranslated matches packets of connections whose destination conntrack does not translate.
func untranslated() []expr.Any {
	const dnat = 1 << 5 // IPS_DST_NAT, include/uapi/linux/netfilter/nf_conntrack_common.h
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATUS, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Xor: make([]byte, 4),
			Mask: binaryutil.NativeEndian.PutUint32(dnat)},
		equal(0, 0, 0, 0),
	}
}

// drop returns a rule that drops matching packets of the device, which would leave the node
// untranslated.
func (d *device) drop(which []expr.Any) []expr.Any {
	var name [unix.IFNAMSIZ]byte
	copy(name[:], d.name)
	rule := append([]expr.Any{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1}, equal(name[:]...)}, which...)
	return append(rule, &expr.Counter{}, &expr.Verdict{Kind: expr.VerdictDrop})
}

// drop returns the rule that drops tunnel packets with outer headers of this family that no gateway
// has sent.
func (o *outer) drop(t vxlan.Tunnel) []expr.Any {
	var vni [4]byte
	binary.BigEndian.PutUint32(vni[:], t.VNI)
	source := o.source
	transport := expr.PayloadBaseTransportHeader
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, equal(unix.IPPROTO_UDP),
		&expr.Payload{DestRegister: 1, Base: transport, Offset: 2, Len: 2}, equal(byte(t.Port>>8), byte(t.Port)),
		&expr.Payload{DestRegister: 1, Base: transport, Offset: 12, Len: 3}, equal(vni[1:]...),
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1}, equal(o.nfproto),
		&source, &expr.Lookup{SourceRegister: 1, SetName: o.set, Invert: true},
		&expr.Counter{}, &expr.Verdict{Kind: expr.VerdictDrop},
	}
}

// firewallState is the state of the table in the kernel.
type firewallState struct {
	there    bool
	ours     bool // it has the chains for the tunnel
	gateways *netipx.IPSet
	dropped  uint64 // packets that no gateway has sent
	returned uint64 // packets of connections that kube-proxy did not translate
}

func readFirewall(t vxlan.Tunnel) (s firewallState, err error) {
	conn, err := nftables.New()
	if err != nil {
		return s, fmt.Errorf("nftables: %w", err)
	}
	table, err := conn.ListTableOfFamily(tableName, nftables.TableFamilyINet)
	switch {
	case errors.Is(err, unix.ENOENT) || err == nil && table == nil:
		return s, nil
	case err != nil:
		return s, fmt.Errorf("nftables table inet %s: %w", tableName, err)
	}
	s.there, s.ours = true, table.Flags == 0 // a flag makes it dormant
	chains, err := conn.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return s, fmt.Errorf("chains of nftables table inet %s: %w", tableName, err)
	}
	for i, want := range chainsOf(t) {
		rules, err := conn.GetRules(table, &nftables.Chain{Table: table, Name: want.name})
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return s, fmt.Errorf("rules of nftables table inet %s: %w", tableName, err)
		}
		same := slices.ContainsFunc(chains, want.same) && len(rules) == len(want.rules)
		for n := 0; same && n < len(rules); n++ {
			same = slices.Equal(contents(rules[n].Exprs), contents(want.rules[n]))
		}
		s.ours = s.ours && same
		switch {
		case i == prerouting:
			s.dropped = counted(rules)
		case same:
			for d := range devices { // the second rule of each; invalid packets are nothing unusual
				s.returned += counted(rules[2*d+1 : 2*d+2])
			}
		}
	}
	var gateways netipx.IPSetBuilder
	for _, o := range outers {
		set, err := conn.GetSetByName(table, o.set)
		if err != nil {
			s.ours = false
			continue
		}
		list, err := conn.GetSetElements(set)
		if err != nil {
			return s, fmt.Errorf("nftables set %s: %w", o.set, err)
		}
		addElements(&gateways, list)
	}
	if s.gateways, err = gateways.IPSet(); err != nil {
		return s, fmt.Errorf("nftables sets of table inet %s: %w", tableName, err)
	}
	return s, nil
}

// same reports whether a chain of the kernel has the name and hook of this one, and a policy that
// drops nothing.
func (c *chain) same(k *nftables.Chain) bool {
	return k.Table.Name == tableName && k.Name == c.name && k.Type == nftables.ChainTypeFilter &&
		k.Hooknum != nil && *k.Hooknum == *c.hook && k.Priority != nil && *k.Priority == *c.priority &&
		k.Policy != nil && *k.Policy == nftables.ChainPolicyAccept
}

// counted sums the packets of rules.
func counted(rules []*nftables.Rule) (packets uint64) {
	for _, r := range rules {
		for _, e := range r.Exprs {
			if n, ok := e.(*expr.Counter); ok {
				packets += n.Packets
			}
		}
	}
	return packets
}

// contents describes the expressions of a rule, without counters and numbers of registers and sets,
// so that rules can be compared.
func contents(exprs []expr.Any) (list []string) {
	for _, e := range exprs {
		text := fmt.Sprintf("%T", e)
		switch e := e.(type) {
		case *expr.Cmp:
			text += fmt.Sprint(e.Op, e.Data)
		case *expr.Meta:
			text += fmt.Sprint(e.Key)
		case *expr.Ct:
			text += fmt.Sprint(e.Key)
		case *expr.Payload:
			text += fmt.Sprint(e.Base, e.Offset, e.Len)
		case *expr.Bitwise:
			text += fmt.Sprint(e.Mask, e.Xor)
		case *expr.Lookup:
			text += fmt.Sprint(e.SetName, e.Invert)
		case *expr.Verdict:
			text += fmt.Sprint(e.Kind)
		}
		list = append(list, text)
	}
	return list
}

// unprotect deletes the table, and reports whether there was one.
func unprotect() (was bool, err error) {
	conn, err := nftables.New()
	if err != nil {
		return false, fmt.Errorf("nftables: %w", err)
	}
	conn.DelTable(&nftables.Table{Name: tableName, Family: nftables.TableFamilyINet})
	switch err := conn.Flush(); {
	case errors.Is(err, unix.ENOENT):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("deleting nftables table inet %s: %w", tableName, err)
	}
	return true, nil
}

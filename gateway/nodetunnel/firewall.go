package nodetunnel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"go4.org/netipx"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/nat/vxlan"
)

// tableName is the nftables table of family inet. As nft lists it:
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
// The node would forward a packet that kube-proxy has not translated to the VIP: back to the
// gateways, until its TTL ends. kube-proxy may have no rule for it (yet, or any more). Or conntrack
// does not track it, or finds it invalid, such as an ICMP error about a connection that the node
// does not know, which anyone can forge: then it has no ct status. A connection whose packets were
// dropped is not in conntrack's table, so kube-proxy translates the next one as soon as it has a
// rule. In mode ipvs it translates on the way to the node itself, so its packets are not forwarded.
const tableName = "sluice_node"

// outer is a family of outer headers, as rules read its source.
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

// protect replaces the table in one transaction.
func (c *Config) protect() error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	elements, err := elements(c.Gateways)
	if err != nil {
		return err
	}
	table := &nftables.Table{Name: tableName, Family: nftables.TableFamilyINet}
	conn.AddTable(table) // so that deleting it is no error
	conn.DelTable(table)
	conn.AddTable(table)
	chain := conn.AddChain(&nftables.Chain{Table: table, Name: "prerouting", Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRaw})
	conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: reassemble()})
	for i, o := range outers {
		set := &nftables.Set{Table: table, Name: o.set, KeyType: o.keyType, Interval: true, AutoMerge: true}
		if err := conn.AddSet(set, elements[i]); err != nil {
			return fmt.Errorf("nftables set %s: %w", o.set, err)
		}
		conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: o.drop(c.Tunnel, set)})
	}
	forward := conn.AddChain(&nftables.Chain{Table: table, Name: "forward", Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter})
	for _, d := range devices {
		conn.AddRule(&nftables.Rule{Table: table, Chain: forward, Exprs: d.drop(untrackable())})
		conn.AddRule(&nftables.Rule{Table: table, Chain: forward, Exprs: d.drop(untranslated())})
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("nftables table inet %s: %w", tableName, err)
	}
	return nil
}

// elements returns the elements of the two sets: the first address of each range, and the one after
// its last.
func elements(list []netip.Prefix) (sets [len(outers)][]nftables.SetElement, err error) {
	var b netipx.IPSetBuilder
	for _, p := range list {
		b.AddPrefix(p.Masked())
	}
	merged, err := b.IPSet()
	if err != nil {
		return sets, fmt.Errorf("addresses of gateways: %w", err)
	}
	for _, r := range merged.Ranges() {
		set := &sets[0]
		if r.From().Is6() {
			set = &sets[1]
		}
		*set = append(*set, nftables.SetElement{Key: r.From().AsSlice()})
		if end := r.To().Next(); end.IsValid() { // not after the family's last address
			*set = append(*set, nftables.SetElement{Key: end.AsSlice(), IntervalEnd: true})
		}
	}
	return sets, nil
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
// says notrack.
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

// drop is a rule for packets of the device that would leave the node untranslated.
func (d *device) drop(which []expr.Any) []expr.Any {
	var name [unix.IFNAMSIZ]byte
	copy(name[:], d.name)
	rule := append([]expr.Any{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1}, equal(name[:]...)}, which...)
	return append(rule, &expr.Counter{}, &expr.Verdict{Kind: expr.VerdictDrop})
}

// drop is the rule for one family of outer headers.
func (o *outer) drop(t vxlan.Tunnel, gateways *nftables.Set) []expr.Any {
	var vni [4]byte
	binary.BigEndian.PutUint32(vni[:], t.VNI)
	source := o.source
	transport := expr.PayloadBaseTransportHeader
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, equal(unix.IPPROTO_UDP),
		&expr.Payload{DestRegister: 1, Base: transport, Offset: 2, Len: 2}, equal(byte(t.Port>>8), byte(t.Port)),
		&expr.Payload{DestRegister: 1, Base: transport, Offset: 12, Len: 3}, equal(vni[1:]...),
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1}, equal(o.nfproto),
		&source, &expr.Lookup{SourceRegister: 1, SetName: gateways.Name, SetID: gateways.ID, Invert: true},
		&expr.Counter{}, &expr.Verdict{Kind: expr.VerdictDrop},
	}
}

// firewallState is the table, as the kernel has it.
type firewallState struct {
	there    bool
	ours     bool   // it has the rules for the tunnel
	gateways int    // elements of the sets
	dropped  uint64 // packets from others than gateways
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
	s.there = true
	rules, err := conn.GetRules(table, &nftables.Chain{Table: table, Name: "prerouting"})
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return s, fmt.Errorf("rules of nftables table inet %s: %w", tableName, err)
	}
	forward, err := conn.GetRules(table, &nftables.Chain{Table: table, Name: "forward"})
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return s, fmt.Errorf("rules of nftables table inet %s: %w", tableName, err)
	}
	s.ours = len(rules) == 1+len(outers) && len(forward) == 2*len(devices)
	for i, o := range outers {
		want := o.drop(t, &nftables.Set{Name: o.set})
		if s.ours && !slices.EqualFunc(compared(rules[1+i].Exprs), compared(want), slices.Equal[[]byte]) {
			s.ours = false
		}
		set, err := conn.GetSetByName(table, o.set)
		if err != nil {
			s.ours = false
			continue
		}
		list, err := conn.GetSetElements(set)
		if err != nil {
			return s, fmt.Errorf("nftables set %s: %w", o.set, err)
		}
		for _, e := range list {
			if !e.IntervalEnd {
				s.gateways++
			}
		}
	}
	s.dropped = counted(rules)
	if s.ours {
		for i := range devices { // the second rule of each; invalid packets are nothing unusual
			s.returned += counted(forward[2*i+1 : 2*i+2])
		}
	}
	return s, nil
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

// compared returns the values that a rule compares with.
func compared(exprs []expr.Any) (list [][]byte) {
	for _, e := range exprs {
		if c, ok := e.(*expr.Cmp); ok {
			list = append(list, c.Data)
		}
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

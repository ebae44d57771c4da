//go:build root

package xdpprog

import (
	"errors"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/nat/header"
)

// TestRulesInPlace: every rule is opened and closed while the program runs.
func TestRulesInPlace(t *testing.T) {
	b := newRig(t, Settings{SNATFirst: snatFirst, SNATCount: snatCount, HostLinkIndex: hostLinkIx}, Rules{})
	b.beat(time.Second)
	must(t, b.OpenAddr(addr(node6), AddrSNAT|AddrLocal)) // a neighbour in the table
	frontend := pkt{src: client4, dst: vip4, proto: tcp, dport: 80}
	nodePort := pkt{src: client6, dst: node6, proto: sctp, dport: 30000}
	nodePort4 := pkt{src: client4, dst: node4, proto: sctp, dport: 30000}
	reply6 := pkt{src: plain6, dst: node6, proto: tcp, dport: snatFirst}
	reply := pkt{src: plain4, dst: snat4, proto: tcp, dport: snatFirst}
	other := pkt{src: plain4, dst: snat4, proto: tcp, dport: snatFirst - 1}
	kept := pkt{src: kept4, dst: client4, proto: tcp, sport: 8080}
	fragments := pkt{src: client4, dst: vip4, proto: tcp, fragOffset: 8}
	echo := pkt{src: client4, dst: vip4, proto: icmp4, icmpType: 8}
	for _, step := range []struct {
		name  string
		do    func() error
		p     pkt
		after int
	}{
		{"frontend opened", func() error { return b.OpenFrontend(key(vip4, tcp, 80)) }, frontend, steers},
		{"opened again", func() error { return b.OpenFrontend(key(vip4, tcp, 80)) }, frontend, steers},
		{"its address takes fragments", func() error { return nil }, fragments, steers},
		{"but no echo requests yet", func() error { return nil }, echo, kernel},
		{"address is a VIP", func() error { return b.OpenAddr(addr(vip4), AddrVIP) }, echo, steers},
		{"second port", func() error { return b.OpenFrontend(key(vip4, tcp, 81)) }, frontend, steers},
		{"second port closed", func() error { return b.CloseFrontend(key(vip4, tcp, 81)) }, frontend, steers},
		{"address no VIP any more, frontend stays", func() error { return b.CloseAddr(addr(vip4), AddrVIP) }, frontend,
			steers},
		{"frontend closed", func() error { return b.CloseFrontend(key(vip4, tcp, 80)) }, frontend, kernel},
		{"closed again", func() error { return b.CloseFrontend(key(vip4, tcp, 80)) }, fragments, kernel},

		{"node port opened, no address", func() error { return b.OpenNodePort(true, sctp, 30000) }, nodePort, kernel},
		{"node address", func() error { return b.OpenAddr(addr(node6), AddrNode) }, nodePort, steers},
		{"it was an SNAT address and is none any more", func() error { return b.CloseAddr(addr(node6), AddrSNAT) },
			nodePort, steers},
		{"it is one again", func() error { return b.OpenAddr(addr(node6), AddrSNAT) }, nodePort, steers},
		{"it takes no node ports", func() error { return b.CloseAddr(addr(node6), AddrNode) }, nodePort, kernel},
		{"it is still an SNAT address", func() error { return nil }, reply6, steers},
		{"it takes node ports again", func() error { return b.OpenAddr(addr(node6), AddrNode) }, nodePort, steers},
		{"neighbour port closed", func() error { return b.CloseNodePort(true, sctp, 30001) }, nodePort, steers},
		{"other family closed", func() error { return b.CloseNodePort(false, sctp, 30000) }, nodePort, steers},
		{"node port closed", func() error { return b.CloseNodePort(true, sctp, 30000) }, nodePort, kernel},

		{"IPv4 node address", func() error { return b.OpenAddr(addr(node4), AddrNode) }, nodePort4, kernel},
		{"its node port opened", func() error { return b.OpenNodePort(false, sctp, 30000) }, nodePort4, steers},
		{"IPv4 takes no node ports", func() error { return b.CloseAddr(addr(node4), AddrNode) }, nodePort4, kernel},
		{"IPv4 takes node ports again", func() error { return b.OpenAddr(addr(node4), AddrNode) }, nodePort4, steers},
		{"its node port closed", func() error { return b.CloseNodePort(false, sctp, 30000) }, nodePort4, kernel},

		{"SNAT address of the node", func() error { return b.OpenAddr(addr(snat4), AddrSNAT|AddrLocal) }, reply,
			steers},
		{"port outside of the range", func() error { return nil }, other, kernel},
		{"the node no longer has the address", func() error { return b.CloseAddr(addr(snat4), AddrLocal) }, other,
			steers},
		{"it has the address again", func() error { return b.OpenAddr(addr(snat4), AddrLocal) }, other, kernel},
		{"range moved", func() error { return b.SetSettings(Settings{SNATFirst: snatFirst + 1, SNATCount: 9}) }, reply,
			kernel},
		{"range moved back", func() error {
			return b.SetSettings(Settings{SNATFirst: snatFirst, SNATCount: 1, HostLinkIndex: hostLinkIx})
		}, reply, steers},
		{"SNAT address removed", func() error { return b.CloseAddr(addr(snat4), AddrSNAT) }, reply, kernel},

		{"source kept", func() error { return b.KeepSource(key(kept4, tcp, 8080)) }, kept, both},
		{"source dropped", func() error { return b.DropSource(key(kept4, tcp, 8080)) }, kept, kernel},
	} {
		if err := step.do(); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if got := b.verdict(t, step.p.frame()); got != step.after {
			t.Errorf("%s: verdict %d, want %d", step.name, got, step.after)
		}
	}
	if err := b.OpenNodePort(false, icmp4, 1); !errors.Is(err, ErrProto) {
		t.Errorf("node port of ICMP: %v", err)
	}
}

// TestTableFull: the error names the remedy, existing rules stay, and closing a rule makes room.
func TestTableFull(t *testing.T) {
	b := newRig(t, Settings{}, Rules{})
	b.beat(time.Second)
	for port := range uint16(64) {
		must(t, b.OpenFrontend(key(vip4, tcp, 1000+port)))
	}
	err := b.OpenFrontend(key(vip4, tcp, 80))
	if !errors.Is(err, unix.E2BIG) || !strings.Contains(err.Error(), "full at 64 entries") {
		t.Errorf("one too many: %v", err)
	}
	must(t, b.CloseFrontend(key(vip4, tcp, 1000)))
	must(t, b.OpenFrontend(key(vip4, tcp, 80)))
	if got := b.verdict(t, (&pkt{src: client4, dst: vip4, proto: tcp, dport: 80}).frame()); got != steers {
		t.Errorf("verdict %d, want steered", got)
	}
	for i := range byte(63) {
		must(t, b.OpenAddr(header.AddrFrom4([4]byte{10, 1, 1, i}), AddrNode))
	}
	// There is room for the source, but not for its address: after there is room, a second call
	// succeeds.
	if err := b.KeepSource(key(kept4, tcp, 8080)); !errors.Is(err, unix.E2BIG) {
		t.Errorf("no room for the address: %v", err)
	}
	must(t, b.CloseAddr(header.AddrFrom4([4]byte{10, 1, 1, 1}), AddrNode))
	must(t, b.KeepSource(key(kept4, tcp, 8080)))
	if got := b.verdict(t, (&pkt{src: kept4, dst: client4, proto: tcp, sport: 8080}).frame()); got != steers {
		t.Errorf("verdict %d, want steered", got)
	}
}

// TestReconcileInFullMaps: removing a predecessor's unwanted rules makes room for wanted ones, and
// a rule without room does not prevent other changes.
func TestReconcileInFullMaps(t *testing.T) {
	b := newRig(t, Settings{}, Rules{})
	rules := func(net byte, n int) Rules {
		r := Rules{Addrs: map[header.Addr]AddrFlags{}}
		for i := range n {
			a := header.AddrFrom4([4]byte{10, net, 0, byte(i)})
			r.Addrs[a] = AddrVIP
			r.Frontends = append(r.Frontends, FrontendKey{a, 80, tcp})
			r.Sources = append(r.Sources, FrontendKey{a, 8080, tcp})
		}
		return r
	}
	for net := range byte(2) {
		if _, err := b.Reconcile(rules(net, 64)); err != nil {
			t.Fatal(err)
		}
		sameRules(t, b.Rules(), rules(net, 64))
	}
	_, err := b.Reconcile(rules(3, 70))
	held := b.Rules()
	if !errors.Is(err, unix.E2BIG) || len(held.Addrs) != 64 || len(held.Frontends) != 64 || len(held.Sources) != 64 {
		t.Errorf("%d addresses, %d frontends, %d sources, %v; want 64 of each and an error", len(held.Addrs),
			len(held.Frontends), len(held.Sources), err)
	}
	for _, k := range held.Frontends {
		if held.Addrs[k.Addr] != AddrVIP {
			t.Errorf("%v is open, its address is not", k)
		}
	}
}

// TestReconcile: for any former and any wanted rules, the maps then hold the wanted rules, whether
// the former rules were in the mirror or only in the maps.
func TestReconcile(t *testing.T) {
	b := newRig(t, Settings{}, Rules{})
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for round := range 50 {
		want := randomRules(r)
		switch round % 5 {
		case 0: // an operator changes the maps
			must(t, b.maps[steerMapAddrs].Put(words(addr(plain4)), uint32(AddrVIP|addrHasKeep)))
			must(t, b.maps[steerMapAddrs].Put(words(addr(kept6)), uint32(addrHasKeep)))
			must(t, b.maps[steerMapFrontends].Put(key(plain6, udp, 4).endpoint(), uint8(1)))
		case 1: // changes one by one
			must(t, b.OpenFrontend(key(vip6, tcp, 7)))
			must(t, b.OpenAddr(addr(vip6), AddrNode))
		}
		if _, err := b.Reconcile(want); err != nil {
			t.Fatal(err)
		}
		if n, err := b.Reconcile(want); n != 0 || err != nil {
			t.Errorf("the second Reconcile changed %d rules, %v", n, err)
		}
		var kernel mirror
		must(t, kernel.read(b.maps))
		for _, k := range want.Frontends {
			if !has(kernel.frontends, k) || kernel.addrs[k.Addr].kernel&addrHasFrontend == 0 {
				t.Errorf("frontend %v is missing", k)
			}
		}
		for _, k := range want.Sources {
			if !has(kernel.sources, k) || kernel.addrs[k.Addr].kernel&addrHasKeep == 0 {
				t.Errorf("source %v is missing", k)
			}
		}
		for a, flags := range want.Addrs {
			if kernel.addrs[a].own != flags {
				t.Errorf("address %v has flags %d, want %d", a, kernel.addrs[a].own, flags)
			}
		}
		for a, st := range kernel.addrs {
			if st.kernel != st.flags() || st.kernel == 0 || st.own != want.Addrs[a] {
				t.Errorf("address %v: %+v, want own flags %d", a, st, want.Addrs[a])
			}
		}
		if len(kernel.frontends) != len(want.Frontends) || len(kernel.sources) != len(want.Sources) {
			t.Errorf("%d frontends and %d sources, want %d and %d", len(kernel.frontends), len(kernel.sources),
				len(want.Frontends), len(want.Sources))
		}
		var ports [nodePortWords]uint64
		for _, n := range want.NodePorts {
			word, mask, err := n.bit()
			must(t, err)
			ports[word] |= mask
		}
		if kernel.ports != ports {
			t.Error("node ports differ")
		}
		settings, err := b.readSettings()
		if must(t, err); settings.KeptReplies != flag(len(want.Replies) > 0) {
			t.Errorf("the program looks at ports of replies: %d, there are %d", settings.KeptReplies, len(want.Replies))
		}
		sameRules(t, b.Rules(), want)
		sameRules(t, kernel.rules(), want)
	}
}

// sameRules compares sets.
func sameRules(t *testing.T, got, want Rules) {
	t.Helper()
	if !maps.Equal(got.Addrs, want.Addrs) {
		t.Errorf("addresses %v, want %v", got.Addrs, want.Addrs)
	}
	sameSet(t, "frontends", got.Frontends, want.Frontends)
	sameSet(t, "sources", got.Sources, want.Sources)
	sameSet(t, "node ports", got.NodePorts, want.NodePorts)
	sameSet(t, "ports of replies", got.Replies, want.Replies)
}

func sameSet[T comparable](t *testing.T, what string, got, want []T) {
	t.Helper()
	set := map[T]bool{}
	for _, w := range want {
		set[w] = true
	}
	if len(got) != len(set) || slices.ContainsFunc(got, func(g T) bool { return !set[g] }) {
		t.Errorf("%s %v, want %v", what, got, want)
	}
}

// randomRules draws from few addresses and ports, so that rounds overlap.
func randomRules(r *rand.Rand) Rules {
	address := func() header.Addr {
		return header.AddrFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(r.IntN(8))}))
	}
	protos := []uint8{tcp, udp, sctp}
	keys := func() (ks []FrontendKey) {
		seen := map[FrontendKey]bool{}
		for range r.IntN(20) {
			k := FrontendKey{Addr: address(), Port: uint16(r.IntN(4)), Proto: protos[r.IntN(3)]}
			if !seen[k] {
				seen[k] = true
				ks = append(ks, k)
			}
		}
		return ks
	}
	want := Rules{Frontends: keys(), Sources: keys(), Addrs: map[header.Addr]AddrFlags{}}
	for range r.IntN(8) {
		want.Addrs[address()] = AddrFlags(1 + r.IntN(7))
	}
	for range r.IntN(8) {
		want.NodePorts = append(want.NodePorts, NodePort{r.IntN(2) == 0, protos[r.IntN(3)], uint16(r.IntN(4) * 21845)})
	}
	for range r.IntN(4) {
		want.Replies = append(want.Replies, NodePort{r.IntN(2) == 0, protos[r.IntN(3)], uint16(r.IntN(4) * 21845)})
	}
	return want
}

// BenchmarkReconcile measures a start with 10,000 services: 30,000 frontends, 20,000 kept sources.
func BenchmarkReconcile(b *testing.B) {
	if unix.Geteuid() != 0 {
		b.Fatal("needs root: BPF maps")
	}
	want := Rules{Addrs: map[header.Addr]AddrFlags{}}
	for i := range 10000 {
		vip := header.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i)})
		want.Addrs[vip] = AddrVIP
		for port := range uint16(3) {
			want.Frontends = append(want.Frontends, FrontendKey{Addr: vip, Port: port, Proto: tcp})
		}
		for port := range uint16(2) {
			want.Sources = append(want.Sources,
				FrontendKey{Addr: header.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), Port: port, Proto: tcp})
		}
	}
	s, err := Load(Config{})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close(true)
	for _, c := range []struct {
		name string
		want Rules
	}{{"all new", want}, {"nothing changed", want}, {"all removed", Rules{}}} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				if c.name == "all new" {
					_, err = s.Reconcile(Rules{})
				} else {
					_, err = s.Reconcile(want)
				}
				b.StartTimer()
				if err == nil {
					_, err = s.Reconcile(c.want)
				}
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

//go:build root

package xdpprog

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"sluice.dev/sluice/nat/header"
)

// heldShortcuts returns the words in the kernel's map.
func heldShortcuts(t *testing.T, s *Steering) (words []uint64) {
	t.Helper()
	must(t, each(s.maps[steerMapShortcuts], func(_ uint32, b steerShortcut) {
		for _, w := range b.Word {
			if w != 0 {
				words = append(words, w)
			}
		}
	}))
	slices.Sort(words)
	return words
}

// TestShortcutsReplaceMapLookups: for IPv4 the program needs no other map except the bitmap of node
// ports; for IPv6 it does.
func TestShortcutsReplaceMapLookups(t *testing.T) {
	b := newRig(t, Settings{SNATFirst: snatFirst, SNATCount: snatCount}, fixture())
	b.beat(time.Second)
	must(t, b.OpenFrontend(key(vip4, tcp, 0))) // the key that a fragment would have
	for k := range b.rules.frontends {         // without updating the mirror
		must(t, b.maps[steerMapFrontends].Delete(k.endpoint()))
	}
	for a := range b.rules.addrs {
		must(t, b.maps[steerMapAddrs].Delete(words(a)))
	}
	for _, c := range []struct {
		name string
		p    pkt
		want int
	}{
		{"frontend", pkt{src: client4, dst: vip4, proto: tcp, dport: 80}, steers},
		{"another protocol's", pkt{src: client4, dst: vip4, proto: udp, dport: 80}, kernel},
		{"another port's", pkt{src: client4, dst: vip4, proto: tcp, dport: 81}, kernel},
		{"another address's", pkt{src: client4, dst: bareVIP4, proto: tcp, dport: 80}, kernel},
		{"frontend v6", pkt{src: client6, dst: vip6, proto: tcp, dport: 80}, kernel},
		{"with the bytes of an IPv4 one", pkt{src: client6, dst: "2001:db8::192.0.2.10", proto: tcp, dport: 80},
			kernel},
		{"reply", pkt{src: plain4, dst: snat4, proto: udp, dport: snatFirst + 7}, steers},
		{"below the range", pkt{src: plain4, dst: snat4, proto: udp, dport: snatFirst - 1}, kernel},
		{"reply to another address", pkt{src: plain4, dst: node4, proto: udp, dport: snatFirst}, kernel},
		{"node port", pkt{src: client4, dst: node4, proto: tcp, dport: 30080}, steers},
		{"node port of a VIP", pkt{src: client4, dst: nodeVIP4, proto: tcp, dport: 30080}, steers},
		{"of a VIP that takes none", pkt{src: client4, dst: vip4, proto: tcp, dport: 30080}, kernel},
		{"echo request", pkt{src: client4, dst: vip4, proto: icmp4, icmpType: 8}, kernel},
		{"fragment", pkt{src: client4, dst: vip4, proto: tcp, dport: 80, fragOffset: 8}, kernel},
	} {
		if got := b.verdict(t, c.p.frame()); got != c.want {
			t.Errorf("%s: verdict %d, want %d", c.name, got, c.want)
		}
	}
}

// TestShortcutBucketFull: frontends for which a bucket has no room are found too, and each as long
// as it is open.
func TestShortcutBucketFull(t *testing.T) {
	var crowd []FrontendKey
	for n := 0; len(crowd) < 11; n++ {
		k := FrontendKey{Addr: header.AddrFrom4([4]byte{198, 18, byte(n >> 8), byte(n)}), Port: 80, Proto: tcp}
		if n >= 1<<16 {
			k.Addr, k.Port = header.AddrFrom4([4]byte{198, 19, byte(n >> 8), byte(n)}), 80+uint16(n>>16)
		}
		if shortcutBucket(wordOf(k)[0]) == 5 {
			crowd = append(crowd, k)
		}
	}
	b := newRig(t, Settings{}, Rules{Frontends: crowd})
	b.beat(time.Second)
	if n := len(heldShortcuts(t, b.Steering)); n != len(steerShortcut{}.Word) {
		t.Errorf("%d shortcuts, want a full bucket", n)
	}
	open := map[FrontendKey]bool{}
	check := func(what string) {
		t.Helper()
		for _, k := range crowd {
			want := kernel
			if open[k] {
				want = steers
			}
			p := pkt{src: client4, dst: k.Addr.String(), proto: tcp, dport: k.Port}
			if got := b.verdict(t, p.frame()); got != want {
				t.Errorf("%s: %v: verdict %d, want %d", what, k, got, want)
			}
		}
	}
	for _, k := range crowd {
		open[k] = true
	}
	check("all open")
	for _, i := range []int{0, 10, 3} { // the first shortcut is free afterwards, not the last one
		must(t, b.CloseFrontend(crowd[i]))
		open[crowd[i]] = false
		check("one closed")
	}
	must(t, b.OpenFrontend(crowd[3]))
	open[crowd[3]] = true
	check("one open again")
	steered := 0
	for _, k := range crowd {
		if open[k] {
			must(t, b.maps[steerMapFrontends].Delete(k.endpoint())) // without updating the mirror
		}
		p := pkt{src: client4, dst: k.Addr.String(), proto: tcp, dport: k.Port}
		steered += b.verdict(t, p.frame()) & steers
	}
	if steered != len(steerShortcut{}.Word)-1 {
		t.Errorf("%d are found by shortcuts, of which there are %d", steered, len(steerShortcut{}.Word)-1)
	}
	// It is in the place of one of the two; no other word moves.
	if n := len(heldShortcuts(t, b.Steering)); n != len(steerShortcut{}.Word)-1 {
		t.Errorf("%d shortcuts after 2 of %d were closed and one opened", n, len(steerShortcut{}.Word))
	}
}

// TestShortcutsAgreeWithMaps: after any changes the shortcuts agree with the IPv4 entries of the
// other maps.
func TestShortcutsAgreeWithMaps(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	b := newRig(t, Settings{}, Rules{})
	addrs := []header.Addr{addr(vip4), addr(vip6), addr(node4), addr(snat4), addr("0.0.0.0")}
	flags := []AddrFlags{AddrVIP, AddrNode, AddrSNAT, AddrLocal, AddrNode | AddrSNAT}
	for step := range 2000 {
		a := addrs[r.IntN(len(addrs))]
		k := FrontendKey{Addr: a, Port: uint16(r.IntN(3)), Proto: []uint8{tcp, udp, sctp}[r.IntN(3)]}
		f := flags[r.IntN(len(flags))]
		var err error
		switch r.IntN(7) {
		case 0, 1:
			err = b.OpenFrontend(k)
		case 2:
			err = b.CloseFrontend(k)
		case 3:
			err = b.OpenAddr(a, f)
		case 4:
			err = b.CloseAddr(a, f)
		case 5:
			err = b.KeepSource(k)
		case 6:
			err = b.DropSource(k)
		}
		must(t, err)
		if step%20 > 0 {
			continue
		}
		wanted := map[uint64]struct{}{}
		must(t, each(b.maps[steerMapFrontends], func(e steerEndpoint, value uint8) {
			flags, err := b.flagsOf(addrOf(e.Addr))
			must(t, err)
			if ofNode := flags&addrOfNode != 0; ofNode != (value == atNode) {
				t.Fatalf("step %d: %v has value %d, its address flags %#x", step, keyOf(e), value, flags)
			} else if ofNode {
				return
			}
			for _, w := range wordOf(keyOf(e)) {
				wanted[w] = struct{}{}
			}
		}))
		must(t, each(b.maps[steerMapAddrs], func(a [4]uint32, flags uint32) {
			for _, w := range addrShortcuts(addrOf(a), AddrFlags(flags)) {
				wanted[w] = struct{}{}
			}
		}))
		if got, want := heldShortcuts(t, b.Steering), slices.Sorted(maps.Keys(wanted)); !slices.Equal(got, want) {
			t.Fatalf("step %d: shortcuts %#x, want %#x", step, got, want)
		}
	}
}

// TestShortcutsOfAPredecessor: when the maps are taken over, shortcuts without an entry are removed
// before a program uses them, and missing ones are added.
func TestShortcutsOfAPredecessor(t *testing.T) {
	isolate(t)
	c := Config{PinDir: pinDir(t)}
	old := load(t, c)
	if _, err := old.Reconcile(fixture()); err != nil {
		t.Fatal(err)
	}
	want := heldShortcuts(t, old)
	if len(want) == 0 {
		t.Fatal("no shortcuts")
	}
	old.shortcuts.add(wordOf(key(bareVIP4, tcp, 80))...)
	old.shortcuts.remove(want[0])
	must(t, old.Close(false))

	s := load(t, c)
	defer s.Close(true)
	if got := heldShortcuts(t, s); !slices.Equal(got, want) {
		t.Errorf("taken over: %#x, want %#x", got, want)
	}
	s.shortcuts.add(wordOf(key(bareVIP4, tcp, 80))...)
	if n, err := s.Reconcile(fixture()); err != nil || n != 0 {
		t.Errorf("Reconcile with what the maps hold: %d changes, %v", n, err)
	}
	if got := heldShortcuts(t, s); !slices.Equal(got, want) {
		t.Errorf("reconciled: %#x, want %#x", got, want)
	}
}

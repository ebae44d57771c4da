package control_test

import (
	"slices"
	"testing"

	"sluice.dev/sluice/control"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
)

// TestSourcesByRoute: the settings for sources reach the workers by family, and
// every address that a route can choose is one that replies are taken from the
// kernel for.
func TestSourcesByRoute(t *testing.T) {
	first, second := header.AddrFrom4([4]byte{192, 0, 2, 20}), header.AddrFrom4([4]byte{192, 0, 2, 30})
	cfg := testConfig()
	compiler := control.NewCompiler(cfg)
	compiler.Compile(&control.Changes{})
	for _, by4 := range []bool{true, false} {
		for _, by6 := range []bool{true, false} {
			cfg.SNATByRoute4, cfg.SNATByRoute6 = by4, by6
			s, _, _ := compiler.Configure(cfg)
			if s.SNATByRoute4 != by4 || s.SNATByRoute6 != by6 {
				t.Errorf("got %v %v, want %v %v", s.SNATByRoute4, s.SNATByRoute6, by4, by6)
			}
		}
	}
	cfg.SNAT4 = []header.Addr{first, second}
	s, _, steer := compiler.Configure(cfg)
	if s.Owned(first)&s.Owned(second)&services.AddrSNAT == 0 {
		t.Errorf("flags %v and %v", s.Owned(first), s.Owned(second))
	}
	if a := steer.Open.Addrs; len(a) != 1 || a[0] != (control.OwnAddr{Addr: second, Flags: services.AddrSNAT}) {
		t.Errorf("the kernel program opens %v", a)
	}
}

// TestLostFlagsAreClosed: an address that stays ours in one way and not in another
// opens nothing and closes the other.
func TestLostFlagsAreClosed(t *testing.T) {
	const node, snat, local = services.AddrNode, services.AddrSNAT, services.AddrLocal
	first, second := header.AddrFrom4([4]byte{10, 0, 0, 1}), header.AddrFrom4([4]byte{10, 0, 0, 2})
	both := []header.Addr{first, second}
	cfg := control.CompilerConfig{NodeAddresses: both, LocalAddresses: both, SNAT4: both[:1]}
	for _, tc := range []struct {
		name          string
		change        func(*control.CompilerConfig)
		opens, closes []control.OwnAddr
	}{
		{"the source moves", func(c *control.CompilerConfig) { c.SNAT4 = both[1:] },
			[]control.OwnAddr{{Addr: second, Flags: snat}}, []control.OwnAddr{{Addr: first, Flags: snat}}},
		{"node ports are narrowed", func(c *control.CompilerConfig) { c.NodeAddresses = both[1:] },
			nil, []control.OwnAddr{{Addr: first, Flags: node}}},
		{"the address goes", func(c *control.CompilerConfig) {
			c.NodeAddresses, c.LocalAddresses, c.SNAT4 = both[1:], both[1:], nil
		}, nil, []control.OwnAddr{{Addr: first, Flags: node | snat | local}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			compiler, next := control.NewCompiler(cfg), cfg
			tc.change(&next)
			_, _, steer := compiler.Configure(next)
			if !slices.Equal(steer.Open.Addrs, tc.opens) || !slices.Equal(steer.Close.Addrs, tc.closes) {
				t.Errorf("opens %v, want %v; closes %v, want %v", steer.Open.Addrs, tc.opens, steer.Close.Addrs, tc.closes)
			}
		})
	}
}

// TestConfigureTheSame: a configuration that says what the last one said makes no new
// table. The node's addresses are told again and again, and each table costs a pass over all Services.
func TestConfigureTheSame(t *testing.T) {
	compiler := control.NewCompiler(testConfig())
	before, _, _ := compiler.Compile(&control.Changes{})
	s, _, steer := compiler.Configure(testConfig())
	if s != before || !steer.Empty() {
		t.Errorf("generation %d after %d, %v", s.Generation, before.Generation, steer)
	}
	cfg := testConfig()
	cfg.MasqueradeAll = !cfg.MasqueradeAll
	if s, _, _ := compiler.Configure(cfg); s == before {
		t.Error("a change made no new table")
	}
}

package control_test

import (
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

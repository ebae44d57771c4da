package compiler_test

import (
	"slices"
	"strings"
	"testing"

	"sluice.dev/sluice/control/compiler"
	"sluice.dev/sluice/control/controltest"
	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/control/steer"
	"sluice.dev/sluice/control/tracker"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
)

// TestSourcesByRoute: the settings for sources reach the workers by family, and
// every address that a route can choose is one that replies are taken from the
// kernel for.
func TestSourcesByRoute(t *testing.T) {
	first, second := header.AddrFrom4([4]byte{192, 0, 2, 20}), header.AddrFrom4([4]byte{192, 0, 2, 30})
	cfg := controltest.Config()
	compiler := compiler.New(cfg)
	compiler.Compile(&objects.Changes{})
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
	s, _, change := compiler.Configure(cfg)
	if s.Owned(first)&s.Owned(second)&services.AddrSNAT == 0 {
		t.Errorf("flags %v and %v", s.Owned(first), s.Owned(second))
	}
	if a := change.Open.Addrs; len(a) != 1 || a[0] != (steer.OwnAddr{Addr: second, Flags: services.AddrSNAT}) {
		t.Errorf("the kernel program opens %v", a)
	}
}

// TestGroupSources: the addresses of all gateways of the group are opened, and flows get this
// one's.
func TestGroupSources(t *testing.T) {
	cfg := controltest.Config()
	compiler := compiler.New(cfg)
	own, others := header.AddrFrom4([4]byte{198, 51, 100, 1}), header.AddrFrom4([4]byte{198, 51, 100, 2})
	cfg.Group4, cfg.GroupSources = own, []header.Addr{own, others}
	s, _, change := compiler.Configure(cfg)
	if s.Group4 != own || s.Group6 != (header.Addr{}) || !slices.Equal(s.GroupSources, cfg.GroupSources) {
		t.Errorf("the snapshot has %v, %v and %v", s.Group4, s.Group6, s.GroupSources)
	}
	want := []steer.OwnAddr{{Addr: own, Flags: services.AddrSNAT}, {Addr: others, Flags: services.AddrSNAT}}
	if !slices.Equal(change.Open.Addrs, want) || s.Owned(others) != services.AddrSNAT {
		t.Errorf("the kernel program opens %v, the snapshot has flags %v", change.Open.Addrs, s.Owned(others))
	}
	cfg.Group4, cfg.GroupSources = header.Addr{}, nil
	if _, _, change = compiler.Configure(cfg); !slices.Equal(change.Close.Addrs, want) {
		t.Errorf("without a group it closes %v", change.Close.Addrs)
	}
}

// TestRemovedAddressFlagsAreClosed: an address that stays ours in one way and not in another
// opens nothing and closes the other.
func TestRemovedAddressFlagsAreClosed(t *testing.T) {
	const node, snat, local = services.AddrNode, services.AddrSNAT, services.AddrLocal
	first, second := header.AddrFrom4([4]byte{10, 0, 0, 1}), header.AddrFrom4([4]byte{10, 0, 0, 2})
	both := []header.Addr{first, second}
	cfg := compiler.Config{NodeAddresses: both, LocalAddresses: both, SNAT4: both[:1]}
	for _, tc := range []struct {
		name          string
		change        func(*compiler.Config)
		opens, closes []steer.OwnAddr
	}{
		{"the source moves", func(c *compiler.Config) { c.SNAT4 = both[1:] },
			[]steer.OwnAddr{{Addr: second, Flags: snat}}, []steer.OwnAddr{{Addr: first, Flags: snat}}},
		{"node ports are narrowed", func(c *compiler.Config) { c.NodeAddresses = both[1:] },
			nil, []steer.OwnAddr{{Addr: first, Flags: node}}},
		{"the address goes", func(c *compiler.Config) {
			c.NodeAddresses, c.LocalAddresses, c.SNAT4 = both[1:], both[1:], nil
		}, nil, []steer.OwnAddr{{Addr: first, Flags: node | snat | local}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			compiler, next := compiler.New(cfg), cfg
			tc.change(&next)
			_, _, steer := compiler.Configure(next)
			if !slices.Equal(steer.Open.Addrs, tc.opens) || !slices.Equal(steer.Close.Addrs, tc.closes) {
				t.Errorf("opens %v, want %v; closes %v, want %v", steer.Open.Addrs, tc.opens, steer.Close.Addrs,
					tc.closes)
			}
		})
	}
}

// TestConfigureTheSame: a configuration equal to the last one makes no new table. The node's
// addresses are reported again and again, and each new table costs a pass over all Services.
func TestConfigureTheSame(t *testing.T) {
	compiler := compiler.New(controltest.Config())
	before, _, _ := compiler.Compile(&objects.Changes{})
	s, _, steer := compiler.Configure(controltest.Config())
	if s != before || !steer.Empty() {
		t.Errorf("generation %d after %d, %v", s.Generation, before.Generation, steer)
	}
	cfg := controltest.Config()
	cfg.MasqueradeAll = !cfg.MasqueradeAll
	if s, _, _ := compiler.Configure(cfg); s == before {
		t.Error("a change made no new table")
	}
}

func TestCompilerKeepsNoReferenceToObjects(t *testing.T) {
	tracker, compiler := tracker.New(), compiler.New(controltest.Config())
	s := controltest.Service(1)
	tracker.Upsert(objects.Source{Kind: "test"}, s)
	s.Spec.Ports[0].Port, s.Status.LoadBalancer.Ingress[0].IP = 9999, "203.0.113.99"
	snapshot, problems, _ := compiler.Compile(tracker.Changes())
	if got := render(snapshot, problems); strings.Contains(got, "99") || !strings.Contains(got, "203.0.1.1:80/TCP") {
		t.Errorf("the caller's object is used after Upsert:\n%s", got)
	}
}

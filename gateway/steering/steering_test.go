//go:build root

package steering

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/control/steer"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/xdpprog"
)

// TestFullTablesRefuse: if a set is larger than the kernel's tables, the entries without room are
// named, and all others are written.
func TestFullTablesRefuse(t *testing.T) {
	const room = 8
	s, err := xdpprog.Load(xdpprog.Config{MaxFrontends: room, MaxSources: room, MaxAddrs: room})
	if err != nil {
		t.Fatal(err)
	}
	k := &Program{s: s}
	defer k.Release(true)
	var set steer.Set
	for i := range byte(room + 2) {
		a := header.AddrFrom4([4]byte{192, 0, 2, i})
		set.Addrs = append(set.Addrs, steer.OwnAddr{Addr: a, Flags: services.AddrVIP})
		set.Frontends = append(set.Frontends, services.FrontendKey{Addr: a, Port: 80, Proto: header.ProtoTCP})
		set.KeepSources = append(set.KeepSources, steer.KeepSource{Addr: a, Port: 8080, Proto: header.ProtoTCP})
	}
	for name, do := range map[string]func(*steer.Set) error{"open": k.Open, "replace": k.Replace} {
		var refusal *steer.RefusedError
		if err := do(&set); !errors.As(err, &refusal) || !errors.Is(err, unix.E2BIG) {
			t.Fatalf("%s: %v", name, err)
		}
		if r := &refusal.Set; len(r.Addrs) != 2 || len(r.Frontends) != 2 || len(r.KeepSources) != 2 {
			t.Errorf("%s: %+v is refused, want two of each", name, *r)
		}
		held := k.Held()
		if rest := set.Without(&held); len(rest.Addrs) != 2 || len(rest.Frontends) != 2 || len(rest.KeepSources) != 2 {
			t.Errorf("%s: %+v is not held, want two of each", name, rest)
		}
		if err := k.Replace(&steer.Set{}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestSettingsAreDue: settings that could not be written are due until they are, so that a reload
// without a free descriptor is not in force in part for good.
func TestSettingsAreDue(t *testing.T) {
	s, err := xdpprog.Load(xdpprog.Config{MaxFrontends: 8, MaxSources: 8, MaxAddrs: 8})
	if err != nil {
		t.Fatal(err)
	}
	k := &Program{s: s}
	defer k.Release(true)
	c := &config.Configuration{}
	if err := k.SetSettings(c, nil); err != nil || k.SettingsDue() {
		t.Fatalf("settings: %v, due: %t", err, k.SettingsDue())
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	err = k.SetSettings(c, nil)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(err, unix.EMFILE) || !k.SettingsDue() {
		t.Fatalf("settings without a free descriptor: %v, due: %t", err, k.SettingsDue())
	}
	if err := k.SetSettings(c, nil); err != nil || k.SettingsDue() {
		t.Errorf("settings: %v, due: %t", err, k.SettingsDue())
	}
}

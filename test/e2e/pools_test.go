//go:build root

package e2e

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/allocate/assign"
	"sluice.dev/sluice/test/bed/topo"
)

const poolsOptions = "addressPools: [{name: public, addresses: [198.18.7.0/30, 'fd77::10-fd77::13']}]\n"

// TestAddressPools: on a machine without Kubernetes a Service whose manifest has no VIP gets one of
// each family, at which clients are served. It keeps it over a take-over, a crash, a hand-over and
// a clean stop, with a Service beside it that comes first by name, and while the file of pools is
// refused.
func TestAddressPools(t *testing.T) {
	t.Parallel()
	l := newLab(t, labConfig{Config: topo.Config{Backends: 2, Queues: 1}, small: true,
		options: handsOver + poolsOptions})
	l.damaged = true // the last segments of connections reach a kernel that has no VIP
	shop := l.web(l.Backends...)
	shop.Name, shop.VIPs, shop.ExternalIPs, shop.NodePort = "shop", nil, nil, 0
	l.apply(shop)
	l.applied()
	given := l.addressesOf("shop")
	if want := []string{"198.18.7.0", "fd77::10"}; !slices.Equal(given, want) {
		t.Fatalf("shop has %v, want %v", given, want)
	}
	serves := func(after string) {
		t.Helper()
		if now := l.addressesOf("shop"); !slices.Equal(now, given) {
			t.Fatalf("after %s shop has %v, had %v", after, now, given)
		}
		for _, vip := range given {
			r, err := l.Clients[0].HTTP(l.ctx, topo.HTTPLoad{Targets: []netip.AddrPort{at(vip, webPort)}, Requests: 50})
			if err != nil {
				t.Fatal(err)
			}
			if r.Failed() > 0 || r.Requests != 50 {
				t.Errorf("after %s, %s: errors %v", after, vip, r.Errors)
			}
		}
	}
	serves("its start")
	if out, err := l.gate.Command(l.ctx, "services"); err != nil || !strings.Contains(out, "198.18.7.0:80") {
		t.Errorf("sluice services: %v\n%s", err, out)
	}
	// By name it would have the first address.
	early := shop
	early.Name = "early"
	l.apply(early)
	l.applied()
	if got, want := l.addressesOf("early"), []string{"198.18.7.1", "fd77::11"}; !slices.Equal(got, want) {
		t.Errorf("early has %v, want %v", got, want)
	}
	// A process that took over writes what it gives.
	if err := l.gate.LaunchNext(); err != nil {
		t.Fatal(err)
	}
	if err := l.gate.TakenOver(l.ctx); err != nil {
		t.Fatalf("%v\n%s", err, l.gate.Log())
	}
	serves("a take-over")
	late := shop
	late.Name = "late"
	l.apply(late)
	l.applied()
	l.within("late is in the file", func() bool {
		kept, err := assign.Load(l.gate.StateDir())
		return err == nil && len(kept["default/late"]) == 2
	})
	if err := l.gate.Remove("late"); err != nil {
		t.Fatal(err)
	}
	for _, r := range []struct {
		name string
		end  func() error
	}{
		{"a crash", l.gate.Kill}, {"a hand-over", l.gate.Stop},
		{"a clean stop", func() error { l.handOverNoMore(); return l.gate.Stop() }},
	} {
		if err := r.end(); err != nil {
			t.Fatal(err)
		}
		if err := l.gate.Start(l.ctx); err != nil {
			t.Fatal(err)
		}
		serves(r.name)
	}
	good := l.gate.Configuration()
	l.refused(strings.Replace(good, "198.18.7.0/30", "198.18.7.0/33", 1),
		`addressPools[0].addresses[0]: "198.18.7.0/33" is no prefix such as 192.0.2.0/24`)
	serves("a bad pool")
	// Services that do not fit are named, with what to do about it.
	for _, name := range []string{"s3", "s4", "s5"} {
		more := shop
		more.Name = name
		l.apply(more)
	}
	st := l.statusNow()
	if !strings.Contains(st, "default/s5") || !strings.Contains(st, "no free IPv4 and IPv6 address in pool public") {
		t.Errorf("sluice status:\n%s", st)
	}
	for _, name := range []string{"shop", "early", "s3", "s4", "s5"} { // nothing is left to keep
		if err := l.gate.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
	l.applied()
	if kept, err := assign.Load(l.gate.StateDir()); err != nil || len(kept) > 0 {
		t.Errorf("without Services %v is kept, %v", kept, err)
	}
}

// addressesOf returns the VIPs of a Service, in order.
func (l *lab) addressesOf(name string) (list []string) {
	l.t.Helper()
	services, err := l.gate.Client.Services(l.ctx)
	if err != nil {
		l.t.Fatal(err)
	}
	for i := range services {
		for _, f := range services[i].Frontends {
			if services[i].Name == name && f.Kind == "LoadBalancer" {
				list = append(list, netip.MustParseAddrPort(f.Address).Addr().String())
			}
		}
	}
	slices.Sort(list)
	return list
}

// refused writes a configuration, and waits until it is refused with a text.
func (l *lab) refused(configuration, want string) {
	l.t.Helper()
	if err := l.gate.WriteConfiguration(configuration); err != nil {
		l.t.Fatal(err)
	}
	l.eventually(10*time.Second, "the configuration's error is "+want, func() bool {
		st, err := l.gate.Client.Status(l.ctx, false)
		return err == nil && strings.Contains(st.Config.Error, want)
	})
}

// statusNow returns what sluice status prints when all is applied.
func (l *lab) statusNow() string {
	l.t.Helper()
	l.applied()
	out, err := l.gate.Command(l.ctx, "status")
	if err != nil && out == "" {
		l.t.Fatal(err)
	}
	return out
}

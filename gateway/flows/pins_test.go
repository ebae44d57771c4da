package flows

import (
	"io"
	"log/slog"
	"net/netip"
	"testing"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/control/compiler"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/flowtable/affinity"
	"sluice.dev/sluice/internal/boottime"
	"sluice.dev/sluice/nat/header"
)

// TestForgetPins: which pins are left when backends are lost, when a service has no affinity any
// more, and when another process takes over and finds a table without some of them.
func TestForgetPins(t *testing.T) {
	const web, db = 11, 22
	of := func(s string) header.Addr { return header.AddrFrom(netip.MustParseAddr(s)) }
	pin := func(last string) affinity.Pin { return affinity.Pin{Addr: of("10.0.0." + last), Port: 8080} }
	lose := func(list ...compiler.LostPin) func(*Pins) {
		return func(p *Pins) {
			p.Lose(list)
			<-p.wake
			p.forget()
		}
	}
	for _, tt := range []struct {
		name string
		do   func(*Pins)
		left [4]bool // web to 1, web to 2, db to 1, db to 2
	}{
		{"nothing", func(*Pins) {}, [4]bool{true, true, true, true}},
		{"a backend", lose(compiler.LostPin{Service: web, Addr: of("10.0.0.2"), Port: 8080}),
			[4]bool{true, false, true, true}},
		{"another port of it", lose(compiler.LostPin{Service: web, Addr: of("10.0.0.2"), Port: 8081}),
			[4]bool{true, true, true, true}},
		{"a service's affinity", lose(compiler.LostPin{Service: db}), [4]bool{true, true, false, false}},
		{"between two processes", func(p *Pins) {
			table := pinTable(web, of("10.0.0.1"))
			if n := p.Prune(func() *services.Snapshot { return table }); n != 3 {
				t.Errorf("%d pins pruned, want 3", n)
			}
		}, [4]bool{true, false, false, false}},
		{"between two processes, while a worker has the next table", func(p *Pins) {
			tables := []*services.Snapshot{pinTable(web, of("10.0.0.1")), pinTable(web, of("10.0.0.1"), of("10.0.0.2"))}
			if n := p.Prune(func() *services.Snapshot {
				first := tables[0]
				tables[0] = tables[1]
				return first
			}); n != 2 {
				t.Errorf("%d pins pruned, want 2", n)
			}
		}, [4]bool{true, true, false, false}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := &config.Configuration{Tuning: config.Tuning{AffinityClients: 1000}}
			c.StateDir = t.TempDir()
			p, err := OpenPins(c, slog.New(slog.NewTextHandler(io.Discard, nil)))
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close(true)
			now := flowtable.Time(boottime.Nanos())
			client := func(i int) header.Addr { return header.AddrFrom4([4]byte{198, 51, 100, byte(i)}) }
			service := [4]uint64{web, web, db, db}
			for i, last := range []string{"1", "2", "1", "2"} {
				p.file.Table.Confirm(now, client(i), service[i], pin(last), 60)
			}
			tt.do(p)
			for i, want := range tt.left {
				if _, _, ok := p.file.Table.Get(now, client(i), service[i]); ok != want {
					t.Errorf("pin %d is there: %v", i, ok)
				}
			}
		})
	}
}

// pinTable has a service with affinity and backends, and the same backends under one without.
func pinTable(identity uint64, addrs ...header.Addr) *services.Snapshot {
	b := services.NewBuilder(nil)
	set := &services.EndpointSet{}
	for i, a := range addrs {
		be := services.Backend{Addr: a, Port: 8080, Ref: services.MakeBackendRef(uint32(1+i), 1)}
		b.SetBackend(be)
		set.Backends = append(set.Backends, be.Ref)
	}
	rule := services.Rule{Set: set}
	for i, s := range []*services.Service{{Identity: identity, AffinitySeconds: 60}, {Identity: 22}} {
		b.SetFrontend(&services.Frontend{
			Key:     services.FrontendKey{Addr: addrs[0], Port: uint16(i), Proto: header.ProtoTCP},
			Service: s, Outside: rule, Pod: rule,
		})
	}
	return b.Build()
}

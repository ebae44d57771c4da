package fastpath_test

import (
	"testing"

	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/nat/reason"
)

// TestSourceOfFlow: the source of a flow is the route's or from the pool, and always an AddrSNAT of
// the snapshot.
func TestSourceOfFlow(t *testing.T) {
	const (
		far4, far6   = "10.0.2.11", "2001:db8:2::11"
		farVIP4      = "203.0.113.40"
		farVIP6      = "2001:db8:f::40"
		near4, near6 = "10.0.1.2", "2001:db8:1::2" // sources of the routes
		own4, own6   = "10.0.2.2", "2001:db8:2::2"
		pool4, pool6 = "192.0.2.77", "2001:db8:77::77"
		all4, all6   = "192.0.2.88", "2001:db8:88::88"
	)
	byRoute := func(b *services.Builder) {
		s := b.Settings()
		s.SNATByRoute4, s.SNATByRoute6 = true, true
	}
	explicit := func(b *services.Builder) {
		s := b.Settings()
		s.SNAT4, s.SNAT6 = []header.Addr{addr(pool4)}, []header.Addr{addr(pool6)}
		b.SetAddr(addr(pool4), services.AddrSNAT)
		b.SetAddr(addr(pool6), services.AddrSNAT)
	}
	group := func(b *services.Builder) {
		b.Settings().Group4, b.Settings().Group6 = addr(all4), addr(all6)
		b.SetAddr(addr(all4), services.AddrSNAT)
		b.SetAddr(addr(all6), services.AddrSNAT)
	}
	owned := func(b *services.Builder) {
		b.SetAddr(addr(own4), services.AddrSNAT)
		b.SetAddr(addr(own6), services.AddrSNAT)
	}
	for _, tt := range []struct {
		name                     string
		edits                    []func(*services.Builder)
		near4, far4, near6, far6 string
	}{
		{"by route", []func(*services.Builder){owned, byRoute}, near4, own4, near6, own6},
		{"explicit pool", []func(*services.Builder){owned, explicit}, pool4, pool4, pool6, pool6},
		{"explicit pool for IPv4 alone", []func(*services.Builder){owned, explicit,
			func(b *services.Builder) { b.Settings().SNATByRoute6 = true }}, pool4, pool4, near6, own6},
		{"explicit pool for IPv6 alone", []func(*services.Builder){owned, explicit,
			func(b *services.Builder) { b.Settings().SNATByRoute4 = true }}, near4, own4, pool6, pool6},
		{"source not in the snapshot", []func(*services.Builder){explicit, byRoute}, near4, pool4, near6, pool6},
		{"group", []func(*services.Builder){owned, byRoute, group}, all4, all4, all6, all6},
		{"source without AddrSNAT", []func(*services.Builder){explicit, byRoute, func(b *services.Builder) {
			b.SetAddr(addr(own4), services.AddrNode|services.AddrLocal)
			b.SetAddr(addr(own6), services.AddrNode|services.AddrLocal)
		}}, near4, pool4, near6, pool6},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t, labConfig{})
			view := *l.hops.View()
			view.Generation++
			for p, source := range map[string]string{
				"10.0.1.0/24": near4, "10.0.2.0/24": own4, "2001:db8:1::/64": near6, "2001:db8:2::/64": own6,
			} {
				view.Routes = view.Routes.InsertPersist(prefix(p), nexthop.Route{Hop: hopBackend, Kind: nexthop.OnLink,
					Source: addr(source)})
			}
			l.hops.Publish(&view)
			l.publish(append(tt.edits, func(b *services.Builder) {
				serve(b, 20, farVIP4, 80, header.ProtoTCP, far4, 8080, false)
				serve(b, 21, farVIP6, 80, header.ProtoTCP, far6, 8080, false)
			})...)
			g := l.workers[0]
			for port := uint16(1000); port < 1008; port++ {
				for _, flow := range []struct{ client, vip, end, want string }{
					{client4, vip4, backend4, tt.near4}, {client4, farVIP4, far4, tt.far4},
					{client6, vip6, backend6, tt.near6}, {client6, farVIP6, far6, tt.far6},
				} {
					client, vip := join(flow.client, port), join(flow.vip, 80)
					l.send(0, headertest.TCP(client, vip, headertest.SYN))
					_, p := l.out(g.nic)
					l.wantTuple(&p, "", join(flow.end, 8080))
					src, dst := ends(&p.Tuple)
					if src.Addr().String() != flow.want {
						t.Fatalf("%s is sent from %v, want %s", flow.vip, src, flow.want)
					}
					l.send(0, headertest.TCP(dst.String(), src.String(), headertest.SYN|headertest.ACK))
					_, p = l.out(g.nic)
					l.wantTuple(&p, vip, client)
				}
			}
		})
	}
}

// TestNoSource: there is neither a route's source nor a pool.
func TestNoSource(t *testing.T) {
	l := newLab(t, labConfig{edit: func(b *services.Builder) {
		b.Settings().SNAT4, b.Settings().SNATByRoute4 = nil, true
	}})
	l.send(0, headertest.TCP(join(client4, 1), join(vip4, 80), headertest.SYN))
	l.nothing(l.workers[0].nic)
	l.wantDrop(reason.NoRoute, 1)
}

// TestNoGroupSourceForNodePort: other gateways do not get the packets of this node's node ports.
func TestNoGroupSourceForNodePort(t *testing.T) {
	l := newLab(t, labConfig{edit: func(b *services.Builder) {
		serve(b, 30, "0.0.0.0", 30080, header.ProtoTCP, backend4, 8080, false)
		b.Settings().Group4 = addr("192.0.2.88")
		b.SetAddr(addr("192.0.2.88"), services.AddrSNAT)
	}})
	for vip, want := range map[string]string{join(node4, 30080): snat4, join(vip4, 80): "192.0.2.88"} {
		l.send(0, headertest.TCP(join(client4, 1), vip, headertest.SYN))
		_, p := l.out(l.workers[0].nic)
		if src, _ := ends(&p.Tuple); src.Addr().String() != want {
			t.Errorf("%s is sent from %v, want %s", vip, src, want)
		}
	}
}

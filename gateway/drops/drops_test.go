package drops

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"sluice.dev/sluice/fastpath/capture"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/internal/boottime"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/reason"
	"sluice.dev/sluice/serve/status"
)

var t0 = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

func socket(s string) flowtable.Socket {
	ap := netip.MustParseAddrPort(s)
	a := header.AddrFrom(ap.Addr())
	return flowtable.SocketOf(&a, ap.Port())
}

// snapshot has shop/web:http as Service 3 at a VIP of each family.
func snapshot() *services.Snapshot {
	b := services.NewBuilder(nil)
	svc := &services.Service{ID: 3, Namespace: "shop", Name: "web", PortName: "http", Proto: header.ProtoTCP, Port: 80}
	b.SetService(svc)
	for _, vip := range []string{"203.0.113.10", "2001:db8:f::10"} {
		b.SetFrontend(&services.Frontend{Service: svc, Key: services.FrontendKey{
			Addr: header.AddrFrom(netip.MustParseAddr(vip)), Port: 80, Proto: header.ProtoTCP}})
	}
	return b.Build()
}

// TestSampleOf: client and Service follow from the flow, from the frontend at either end, or from
// the packet that an ICMP error quotes.
func TestSampleOf(t *testing.T) {
	const web = "shop/web:http"
	for _, f := range []struct {
		name, client, vip, snat, backend, router, other string
		icmp                                            uint8
	}{
		{"v4", "198.51.100.7:40000", "203.0.113.10:80", "10.0.1.2:21360", "10.0.1.12:8080", "192.0.2.9:0",
			"203.0.113.99:80", header.ProtoICMP},
		{"v6", "[2001:db8:c::7]:40000", "[2001:db8:f::10]:80", "[2001:db8:1::2]:21360", "[2001:db8:1::12]:8080",
			"[2001:db8:9::9]:0", "[2001:db8:f::99]:80", header.ProtoICMPv6},
	} {
		ap := netip.MustParseAddrPort
		flow := capture.Flow{Known: true, Proto: header.ProtoTCP, Service: 3, Client: socket(f.client),
			Frontend: socket(f.vip), Source: socket(f.snat), Backend: socket(f.backend)}
		packet := func(from, to string) capture.Flow {
			return capture.Flow{Proto: header.ProtoTCP, Client: socket(from), Frontend: socket(to)}
		}
		about := func(router, to, from, dst string) capture.Record {
			e := packet(router, to)
			e.Proto = f.icmp
			return capture.Record{Flow: e, Quoted: [2]flowtable.Socket{socket(from), socket(dst)},
				QuotedProto: header.ProtoTCP}
		}
		of := func(change func(*capture.Flow)) capture.Record {
			r := capture.Record{Flow: flow}
			change(&r.Flow)
			return r
		}
		translated := Sample{Protocol: header.ProtoTCP, Client: ap(f.client), VIP: ap(f.vip), SNAT: ap(f.snat),
			Backend: ap(f.backend), Service: web}
		ends := Sample{Protocol: header.ProtoTCP, Client: ap(f.client), VIP: ap(f.vip), Service: web}
		for _, c := range []struct {
			name string
			rec  capture.Record
			want func() Sample
		}{
			{"flow", of(func(*capture.Flow) {}), func() Sample { return translated }},
			{"flow, towards the client", of(func(f *capture.Flow) { f.Reply = true }), func() Sample {
				s := translated
				s.Reply = true
				return s
			}},
			{"flow of an earlier process", of(func(f *capture.Flow) { f.Service = 0 }),
				func() Sample { return translated }},
			{"flow of a Service that is gone", of(func(c *capture.Flow) { c.Service, c.Frontend = 9, socket(f.other) }),
				func() Sample {
					s := translated
					s.VIP, s.Service = ap(f.other), ""
					return s
				}},
			{"flow with direct return", of(func(f *capture.Flow) { f.Source, f.Backend = f.Client, f.Frontend }),
				func() Sample { return ends }},
			{"to a frontend", capture.Record{Flow: packet(f.client, f.vip)}, func() Sample { return ends }},
			{"from a frontend", capture.Record{Flow: packet(f.vip, f.client)}, func() Sample {
				s := ends
				s.Reply = true
				return s
			}},
			{"an error to a client, about its packet", about(f.vip, f.client, f.client, f.vip), func() Sample {
				s := ends
				s.Protocol = f.icmp
				return s
			}},
			{"an error about an answer", about(f.router, f.vip, f.vip, f.client), func() Sample {
				s := ends
				s.Protocol, s.Reply = f.icmp, true
				return s
			}},
			{"to no frontend", capture.Record{Flow: packet(f.client, f.other)}, func() Sample {
				return Sample{Protocol: header.ProtoTCP, Source: ap(f.client), Destination: ap(f.other)}
			}},
			{"no packet", capture.Record{}, func() Sample { return Sample{} }},
		} {
			c.rec.Reason, c.rec.Weight = reason.NoFlow, 7
			want := c.want()
			want.Reason, want.Weight = reason.NoFlow, 7
			if got := sampleOf(&c.rec, snapshot()); !reflect.DeepEqual(got, want) {
				t.Errorf("%s, %s:\ngot  %+v\nwant %+v", f.name, c.name, got, want)
			}
		}
	}
}

// TestReservoir: however many samples come, few are kept, their weights add up, and a client keeps
// its share.
func TestReservoir(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	rare := netip.MustParseAddrPort("198.51.100.1:1")
	for _, most := range []int{1, 2, 5, 256} {
		share, rounds := 0.0, 4000/most
		for range rounds {
			list, sum := reservoir{max: most}, uint64(0)
			for i := range random.IntN(50 * most) {
				s := Sample{Weight: 1 + random.Uint64N(5)}
				if i%5 == 0 {
					s.Client = rare
				}
				sum += s.Weight
				list.add(s)
			}
			kept, ofRare := uint64(0), uint64(0)
			for i := range list.list {
				kept += list.list[i].Weight
				if list.list[i].Client == rare {
					ofRare += list.list[i].Weight
				}
			}
			if kept != sum || len(list.list) > most {
				t.Fatalf("most %d: %d samples of weight %d, want %d", most, len(list.list), kept, sum)
			}
			share += float64(ofRare) / float64(max(1, sum)) / float64(rounds)
		}
		if share < 0.15 || share > 0.26 {
			t.Errorf("most %d: a fifth of the packets has the share %.3f", most, share)
		}
	}
}

// fill adds n samples for a reason to a ring, of clients in turn, each of weight 2.
func fill(r *capture.Ring, why reason.Drop, n int, clients ...string) {
	for i := range n {
		rec := capture.Record{At: boottime.Nanos(), Reason: why, Weight: 2, Flow: capture.Flow{Proto: header.ProtoTCP,
			Client: socket(clients[i%len(clients)]), Frontend: socket("203.0.113.10:80")}}
		r.Add(&rec, 0)
	}
	r.Publish()
}

// TestClockIsSet: samples are chosen by the monotonic clock, which a step of the wall clock does
// not move. A time with a step between its two readings cannot be made, so the test looks at them.
func TestClockIsSet(t *testing.T) {
	monotonic := func(at time.Time) bool { return at != at.Round(0) }
	handle := new(services.Handle)
	handle.Store(snapshot())
	ring, now := capture.NewRecords(1<<10), time.Now()
	var logged []Sample
	w := New(Config{Rings: []*capture.Ring{ring}, Services: handle, Log: func(s []Sample) { logged = s }},
		now.Add(-time.Minute))
	fill(ring, reason.NoFlow, 1, "198.51.100.7:1")
	w.Drain(now)
	v := w.View(now.Add(-time.Minute), now)
	if len(logged) != 1 || !monotonic(logged[0].At) || len(v.Drops) != 1 || monotonic(v.Drops[0].Last) {
		t.Errorf("samples %+v, view %+v", logged, v)
	}
}

// TestWatch: the view has the drops of all workers since a time, by reason and Service, with the
// clients that have most; the log gets few samples with the same sum; old ones and too many are
// removed, and the view says since when it has drops.
func TestWatch(t *testing.T) {
	handle := new(services.Handle)
	handle.Store(snapshot())
	rings := []*capture.Ring{capture.NewRecords(1 << 10), capture.NewRecords(1 << 10)}
	var lines []Sample
	w := New(Config{Rings: rings, Services: handle, Log: func(list []Sample) { lines = append(lines, list...) }}, t0)
	now := t0.Add(5 * time.Second)
	fill(rings[0], reason.NoFlow, 40, "198.51.100.7:1", "198.51.100.7:2", "198.51.100.8:1")
	fill(rings[1], reason.SourceRangeDenied, 1, "198.51.100.9:1")
	w.Drain(now)
	v := w.View(t0.Add(-time.Minute), now)
	if len(v.Drops) != 2 || !v.Since.Equal(t0) || !v.Until.Equal(now) {
		t.Fatalf("view %+v", v)
	}
	want := status.DropView{Reason: "no_flow", Service: "shop/web:http", Packets: 80, Samples: 40,
		Last: v.Drops[0].Last, Clients: []status.DropClient{{Client: netip.MustParseAddr("198.51.100.7"), Packets: 54},
			{Client: netip.MustParseAddr("198.51.100.8"), Packets: 26}}}
	if !reflect.DeepEqual(v.Drops[0], want) || v.Drops[1].Packets != 2 || now.Sub(want.Last).Abs() > time.Second {
		t.Errorf("got  %+v\nwant %+v", v.Drops, want)
	}
	sum := map[reason.Drop]uint64{}
	for i := range lines {
		sum[lines[i].Reason] += lines[i].Weight
	}
	if len(lines) > logged || sum[reason.NoFlow] != 80 || sum[reason.SourceRangeDenied] != 2 {
		t.Errorf("%d lines of %v", len(lines), sum)
	}
	if v := w.View(now.Add(time.Second), now.Add(time.Minute)); len(v.Drops) != 0 {
		t.Errorf("later: %+v", v)
	}

	var many []string
	for i := range 40 {
		many = append(many, fmt.Sprintf("198.51.100.%d:1", i+1))
	}
	for i := range 700 { // each of the last 600 seconds
		now = now.Add(time.Second)
		fill(rings[i%2], reason.NoRoute, 200, many...)
		w.Drain(now)
	}
	v = w.View(t0, now)
	if age := now.Sub(v.Since); age > keep+sliceTime || age < keep-sliceTime || len(v.Drops) != 1 {
		t.Errorf("the history has %v, %+v", age, v.Drops)
	}
	d := &v.Drops[0]
	if got, want := float64(d.Packets), 400*now.Sub(v.Since).Seconds(); math.Abs(got-want) > want/20 ||
		d.Samples > maxSamples || len(d.Clients) != mostClients || d.MoreClients != len(many)-mostClients {
		t.Errorf("%+v, want %v packets", d, want)
	}
	if v := w.View(now.Add(-30*time.Second), now); math.Abs(float64(v.Drops[0].Packets)-12000) > 12000/5 {
		t.Errorf("30 seconds: %d packets, want 12000", v.Drops[0].Packets)
	}

	for r := reason.None + 1; r < reason.Count; r++ {
		fill(rings[0], r, 10, many...)
	}
	lines = nil
	w.Drain(now)
	if len(lines) != int(reason.Count)-1 {
		t.Errorf("%d lines for all reasons", len(lines))
	}
	for i := range 60 { // 64 reasons at once do not fit for ten minutes
		now = now.Add(sliceTime)
		for r := reason.None + 1; r < reason.Count; r++ {
			fill(rings[i%2], r, 256, many...)
			if r%4 == 0 {
				w.Drain(now)
			}
		}
	}
	n := 0
	for _, s := range w.history.slices {
		n += s.samples()
	}
	if v := w.View(t0, now); n > maxSamples+64*sliceSamples || now.Sub(v.Since) > keep/2 {
		t.Errorf("%d samples since %v", n, now.Sub(v.Since))
	}
}

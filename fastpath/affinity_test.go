package fastpath_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/fastpath/stats"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
)

// The two ports of the lab's service with affinity, each a service of its own, and its
// second frontend.
const (
	otherVIP  = "203.0.113.62"
	stickyIdn = 0x1234567890abcdef
)

// stickyLab serves one port by two VIPs and another by one, all with affinity for a minute
// and in turn, so that without a pin each flow gets another backend than the one before.
func stickyLab(t *testing.T, workers int) *lab {
	return newLab(t, labConfig{workers: workers, flows: 1 << 16, edit: func(b *services.Builder) {
		ips := []string{"10.0.1.21", "10.0.1.22", "10.0.1.23", "10.0.1.24"}
		for _, proto := range []uint8{header.ProtoTCP, header.ProtoUDP} {
			id := services.ServiceID(30 + proto)
			f := both(b, id, ruleVIP, proto, set(b, id, 4*uint32(proto), proto, ips...))
			f.Service.AffinitySeconds, f.Service.Scheduler, f.Service.Identity = 60, services.RoundRobin, stickyIdn+
				uint64(proto)
			second := *f
			second.Key.Addr = addr(otherVIP)
			b.SetAddr(addr(otherVIP), services.AddrVIP)
			b.SetFrontend(&second)
			f = rules(b, id+40, services.LoadBalancer, ruleVIP, 81, proto, f.Outside, f.Pod)
			f.Service.AffinitySeconds, f.Service.Scheduler, f.Turn = 60, services.RoundRobin, second.Turn
		}
	}})
}

// opens opens a flow and returns the backend's address.
func (l *lab) opens(worker int, proto uint8, client, vip string) string {
	l.t.Helper()
	l.send(worker, packet(proto, client, vip, headertest.SYN))
	_, p := l.out(l.workers[worker].nic)
	return p.Tuple.Dst.String()
}

// TestAffinity: sessionAffinity ClientIP. One row for each thing that a pin is, or is not,
// shared by; in turn means that another backend would have been next.
func TestAffinity(t *testing.T) {
	for _, proto := range []uint8{header.ProtoTCP, header.ProtoUDP} {
		for _, tt := range []struct {
			name        string
			client, vip string
			after       time.Duration
			same        bool
		}{
			{"another connection", join(client4, 40001), join(ruleVIP, 80), 0, true},
			{"by another frontend", join(client4, 40001), join(otherVIP, 80), 0, true},
			{"another port of the service", join(client4, 40001), join(ruleVIP, 81), 0, false},
			{"another client", join("198.51.100.9", 40001), join(ruleVIP, 80), 0, false},
			{"just before its time is over", join(client4, 40001), join(ruleVIP, 80), 59 * time.Second, true},
			{"after its time", join(client4, 40001), join(ruleVIP, 80), 61 * time.Second, false},
		} {
			t.Run(fmt.Sprintf("proto %d: %s", proto, tt.name), func(t *testing.T) {
				l := stickyLab(t, 2)
				first := l.opens(0, proto, join(client4, 40000), join(ruleVIP, 80))
				l.step(tt.after)
				if next := l.opens(1, proto, tt.client, tt.vip); (next == first) != tt.same {
					t.Errorf("the first went to %s, this to %s", first, next)
				}
			})
		}
	}
}

// TestAffinitySlides: each new flow counts, and packets of open ones do not.
func TestAffinitySlides(t *testing.T) {
	l := stickyLab(t, 1)
	first := l.opens(0, header.ProtoTCP, join(client4, 40000), join(ruleVIP, 80))
	for n := range uint16(4) {
		l.step(40 * time.Second)
		if next := l.opens(0, header.ProtoTCP, join(client4, 40001+n), join(ruleVIP, 80)); next != first {
			t.Fatalf("after %d s it went from %s to %s", 40*(n+1), first, next)
		}
	}
	client, vip := join(client4, 40008), join(ruleVIP, 80)
	l.send(0, headertest.TCP(client, vip, headertest.SYN))
	_, p := l.out(l.workers[0].nic)
	src, dst := ends(&p.Tuple)
	l.send(0, headertest.TCP(dst.String(), src.String(), headertest.SYN|headertest.ACK),
		headertest.TCP(client, vip, headertest.ACK))
	l.out(l.workers[0].nic)
	l.out(l.workers[0].nic)
	l.step(40 * time.Second)
	l.send(0, headertest.TCP(client, vip, headertest.ACK))
	l.out(l.workers[0].nic)
	l.step(25 * time.Second)
	if next := l.opens(0, header.ProtoTCP, join(client4, 40009), join(ruleVIP, 80)); next == first {
		t.Error("a packet of an open connection made the pin last")
	}
}

// TestAffinityFollowsTheSet: a pin to what is not in the set in force is lost, and a backend
// that comes back does not get its clients back.
func TestAffinityFollowsTheSet(t *testing.T) {
	l := stickyLab(t, 1)
	key := services.FrontendKey{Addr: addr(ruleVIP), Port: 80, Proto: header.ProtoTCP}
	first := l.opens(0, header.ProtoTCP, join(client4, 40000), join(ruleVIP, 80))
	all, _ := l.handle.Load().FrontendByKey(key)
	var rest []services.BackendRef
	for _, r := range all.Outside.Set.Backends {
		if b := l.handle.Load().Backend(r); b.Addr != addr(first) {
			rest = append(rest, r)
		}
	}
	l.publish(func(b *services.Builder) {
		next := *all
		next.Outside.Set = &services.EndpointSet{Backends: rest}
		b.SetFrontend(&next)
	})
	second := l.opens(0, header.ProtoTCP, join(client4, 40001), join(ruleVIP, 80))
	if second == first {
		t.Fatalf("%s is not in the set, and was chosen", first)
	}
	l.publish(func(b *services.Builder) { b.SetFrontend(all) })
	for n := range uint16(8) {
		if next := l.opens(0, header.ProtoTCP, join(client4, 40002+n), join(ruleVIP, 80)); next != second {
			t.Fatalf("from %s it went to %s, first was %s", second, next, first)
		}
	}
}

// TestAffinityMovesWithARetry: a client whose backend does not answer is not sent there again.
func TestAffinityMovesWithARetry(t *testing.T) {
	l := stickyLab(t, 1)
	l.publish(func(b *services.Builder) { b.Settings().RetryOther = true })
	first := l.opens(0, header.ProtoTCP, join(client4, 40000), join(ruleVIP, 80))
	l.step(time.Second)
	l.opens(0, header.ProtoTCP, join(client4, 40000), join(ruleVIP, 80))
	l.step(2 * time.Second)
	moved := l.opens(0, header.ProtoTCP, join(client4, 40000), join(ruleVIP, 80))
	if moved == first {
		t.Fatalf("it stayed with %s", first)
	}
	for n := range uint16(8) {
		if next := l.opens(0, header.ProtoTCP, join(client4, 40001+n), join(ruleVIP, 80)); next != moved {
			t.Fatalf("a new connection goes to %s, the one that moved to %s", next, moved)
		}
	}
}

// TestAffinityWithoutTable: configured without room for clients, nobody is pinned, nobody is
// refused.
func TestAffinityWithoutTable(t *testing.T) {
	l := stickyLab(t, 1)
	l.pins = nil
	l.addWorker(1, &labConfig{workers: 2}, l.fragments)
	seen := map[string]bool{}
	for n := range uint16(8) {
		seen[l.opens(1, header.ProtoTCP, join(client4, 40000+n), join(ruleVIP, 80))] = true
	}
	if len(seen) != 4 {
		t.Errorf("in turn, 8 flows went to %v", seen)
	}
}

// TestAffinityAgrees: two workers see the first flows of clients at once, and choose in
// turn; what one client's flows got is one backend, and the pin names it.
func TestAffinityAgrees(t *testing.T) {
	const clients, flows = 200, 4
	l := stickyLab(t, 2)
	for c := range clients {
		client := fmt.Sprintf("198.51.100.%d", 1+c)
		for w, g := range l.workers {
			for n := range flows {
				g.nic.Inject(headertest.TCP(join(client, uint16(1000+flows*w+n)), join(ruleVIP, 80),
					headertest.SYN).Bytes())
			}
		}
		l.now += uint64(time.Millisecond)
		var group sync.WaitGroup
		for _, g := range l.workers {
			group.Go(func() { g.Step(l.now) })
		}
		group.Wait()
		got := map[string]bool{}
		for _, g := range l.workers {
			for range flows {
				_, p := l.out(g.nic)
				got[p.Tuple.Dst.String()] = true
			}
		}
		pin, ok := l.pins.Get(flowtable.Time(l.now), addr(client), stickyIdn+header.ProtoTCP)
		if len(got) != 1 || !ok || !got[pin.Addr.String()] {
			t.Errorf("client %s went to %v, its pin is %v", client, got, pin)
		}
	}
	if n := l.pins.Counts(flowtable.Time(l.now)); n.Live != clients {
		t.Errorf("%d pins for %d clients: %+v", n.Live, clients, n)
	}
}

// TestAffinityOfRefusedFlows: who gets no flow gets no pin.
func TestAffinityOfRefusedFlows(t *testing.T) {
	l := newLab(t, labConfig{snat: services.PortRange{First: 20000, Count: 1}, edit: func(b *services.Builder) {
		f := both(b, 30, ruleVIP, header.ProtoTCP, set(b, 30, 30, header.ProtoTCP, backend4))
		f.Service.AffinitySeconds, f.Service.Identity = 60, stickyIdn
	}})
	pinned := func(client string) bool {
		_, ok := l.pins.Get(flowtable.Time(l.now), addr(client), stickyIdn)
		return ok
	}
	l.opens(0, header.ProtoTCP, join(client4, 40000), join(ruleVIP, 80))
	l.send(0, headertest.TCP(join("198.51.100.9", 40000), join(ruleVIP, 80), headertest.SYN))
	l.wantDrop(stats.SNATPortsExhausted, 1)
	if !pinned(client4) || pinned("198.51.100.9") {
		t.Errorf("pinned: who has a flow %v, who has none %v", pinned(client4), pinned("198.51.100.9"))
	}
}

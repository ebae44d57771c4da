package fastpath_test

import (
	"testing"
	"time"

	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/nat/reason"
)

// TestUDPNeverOutlivesItsEndpoint: the handling of a UDP flow's next datagram and of a late answer,
// after changes of its endpoint.
func TestUDPNeverOutlivesItsEndpoint(t *testing.T) {
	const id, first, second = 30, 30, 31
	old, next := services.MakeBackendRef(first, 1), services.MakeBackendRef(second, 1)
	key := services.FrontendKey{Addr: addr(ruleVIP), Port: 80, Proto: header.ProtoUDP}
	frontend := func(b *services.Builder, edit func(*services.Frontend)) {
		f, _ := b.Settings().FrontendByKey(key)
		c := *f
		edit(&c)
		b.SetFrontend(&c)
	}
	only := func(refs ...services.BackendRef) func(*services.Frontend) {
		return func(f *services.Frontend) { f.Outside.Set = &services.EndpointSet{Backends: refs} }
	}
	flags := func(b *services.Builder, flags services.BackendFlags) {
		be := backend(first, id, backend4, 8080, header.ProtoUDP)
		be.Flags = flags
		b.SetBackend(be)
	}
	const rejected, kernel = "rejected", "to the kernel"
	for _, tt := range []struct {
		name   string
		change func(*services.Builder)
		// the backend of the client's next datagram, or the other result
		datagram string
		answers  bool // answers of the old endpoint still reach the client before that
	}{
		{"nothing changed", func(*services.Builder) {}, backend4, true},
		{"terminating, serving, others ready", func(b *services.Builder) {
			flags(b, services.BackendServing|services.BackendTerminating)
			frontend(b, only(next))
		}, backend4, true},
		{"not serving", func(b *services.Builder) {
			flags(b, 0)
			frontend(b, only(next))
		}, second4, true},
		{"removed", func(b *services.Builder) {
			b.DeleteBackend(old)
			frontend(b, only(next))
		}, second4, false},
		{"zero endpoints", func(b *services.Builder) {
			b.DeleteBackend(old)
			frontend(b, only())
		}, rejected, false},
		{"no endpoint serves", func(b *services.Builder) {
			flags(b, 0)
			frontend(b, only())
		}, rejected, true},
		{"service deleted", func(b *services.Builder) {
			b.DeleteBackend(old)
			b.DeleteFrontend(key)
			b.DeleteService(id)
		}, kernel, false},
		{"frontend gone, service stays", func(b *services.Builder) { b.DeleteFrontend(key) }, backend4, true},
		{"the endpoint's index has another owner", func(b *services.Builder) {
			be := backend(first, id, second4, 8080, header.ProtoUDP)
			be.Ref = services.MakeBackendRef(first, 2)
			b.SetBackend(be)
			frontend(b, only(be.Ref))
		}, second4, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t, labConfig{edit: func(b *services.Builder) {
				both(b, id, ruleVIP, header.ProtoUDP, set(b, id, first, header.ProtoUDP, backend4))
				b.SetBackend(backend(second, id, second4, 8080, header.ProtoUDP))
			}})
			g := l.workers[0]
			client, vip := join(client4, 40000), join(ruleVIP, 80)
			l.send(0, headertest.UDP(client, vip, "question"))
			_, p := l.out(g.nic)
			src, dst := ends(&p.Tuple)
			l.publish(tt.change)

			for range 3 { // packets in flight arrive, and do not refresh the flow
				l.step(600 * time.Millisecond)
				l.send(0, headertest.UDP(dst.String(), src.String(), "answer"))
				_, p = l.out(g.nic)
				l.wantTuple(&p, vip, client)
			}
			l.step(600 * time.Millisecond)
			l.send(0, headertest.UDP(dst.String(), src.String(), "answer"))
			if tt.answers {
				_, p = l.out(g.nic)
				l.wantTuple(&p, vip, client)
			} else {
				l.nothing(g.nic, g.host)
				l.wantDrop(reason.BackendGone, 1)
			}
			before := l.drops()[reason.NoEndpoints.String()]
			l.send(0, headertest.UDP(client, vip, "question"))
			live := uint64(1)
			switch tt.datagram {
			case rejected:
				live = 0
				_, p = l.out(g.nic)
				if p.ICMPType != header.ICMPUnreachable || p.ICMPCode != 3 ||
					l.drops()[reason.NoEndpoints.String()] != before+1 {
					t.Errorf("got ICMP %d/%d, drops %v", p.ICMPType, p.ICMPCode, l.drops())
				}
			case kernel:
				live = 0
				_, p = l.out(g.host)
				l.wantTuple(&p, client, vip)
			default:
				_, p = l.out(g.nic)
				l.wantTuple(&p, "", join(tt.datagram, 8080))
			}
			if n := l.table.Counts().Live[0]; n != live {
				t.Errorf("%d flows are left, want %d", n, live)
			}
		})
	}
}

// TestUDPWithoutChecksum: tunnels over IPv6 may omit the checksum (RFC 6935), and any sender may
// over IPv4. It stays omitted in both directions, for a datagram that opens its flow, a plain one,
// and fragments.
func TestUDPWithoutChecksum(t *testing.T) {
	for _, tt := range []struct{ client, vip string }{
		{join(client4, 40000), join(vip4, 53)}, {join(client6, 40000), join(vip6, 53)},
	} {
		t.Run(tt.vip, func(t *testing.T) {
			l := newLab(t, labConfig{})
			g := l.workers[0]
			unsummed := func(src, dst string, bytes int) []byte {
				p := headertest.UDP(src, dst, string(make([]byte, bytes)))
				p.NoChecksum = true
				return p.Bytes()
			}
			passes := func(frame []byte) (src, dst string) {
				t.Helper()
				g.nic.Inject(frame)
				l.step(time.Microsecond)
				sent, p := l.out(g.nic)
				if p.Fragment != header.LaterFragment && sent[p.L4+6]|sent[p.L4+7] != 0 {
					t.Errorf("got a checksum: %x", sent[p.L4+6:p.L4+8])
				}
				s, d := ends(&p.Tuple)
				return s.String(), d.String()
			}
			snat, backend := passes(unsummed(tt.client, tt.vip, 100))
			for range 3 {
				passes(unsummed(backend, snat, 100))
				passes(unsummed(tt.client, tt.vip, 100))
			}
			for _, part := range headertest.Split(unsummed(tt.client, tt.vip, 2000), 1400, 7) {
				passes(part)
			}
		})
	}
}

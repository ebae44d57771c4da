package fastpath_test

import (
	"testing"
	"time"

	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/test/bed/memlink"
)

// directLab is a gateway whose one TCP frontend keeps the client's address, and a client that uses
// one port for connections to the frontend and to the backend's own address.
type directLab struct {
	*lab
	g                    *gate
	client, vip, backend string
}

func newDirectLab(t *testing.T, f family, keep bool) *directLab {
	l := newLab(t, labConfig{edit: func(b *services.Builder) {
		fr := owns(b, serviceA, services.LoadBalancer, f.vip, 80, header.ProtoTCP, f.a)
		fr.Outside.KeepClient = keep
	}})
	return &directLab{l, l.workers[0], join(f.client, 40000), join(f.vip, 80), join(f.a, 8080)}
}

// open sends the client's SYN to the frontend, and returns the source that the backend sees.
func (l *directLab) open() (src string) {
	l.t.Helper()
	l.send(0, headertest.TCP(l.client, l.vip, headertest.SYN))
	_, p := l.out(l.g.nic)
	l.wantTuple(&p, "", l.backend)
	from, _ := ends(&p.Tuple)
	return from.String()
}

// direct returns a segment of the direct connection, which has other sequence numbers.
func (l *directLab) direct(flags uint8) *headertest.Packet {
	p := headertest.TCP(l.backend, l.client, flags)
	p.Seq, p.Ack = 0x77000000, 0
	if flags&headertest.ACK != 0 {
		p.Ack = 0x88000000
	}
	return p
}

// wantKernel sends a segment of the backend, and expects that it goes to the kernel unchanged.
func (l *directLab) wantKernel(p *headertest.Packet) {
	l.t.Helper()
	l.arrives(p, l.g.host, l.backend, l.client)
}

// wantClient sends a segment of the backend to an address, and expects it from the frontend.
func (l *directLab) wantClient(to string, flags uint8) {
	l.t.Helper()
	l.arrives(headertest.TCP(l.backend, to, flags), l.g.nic, l.vip, l.client)
}

func (l *directLab) arrives(p *headertest.Packet, link *memlink.Link, src, dst string) {
	l.t.Helper()
	l.send(0, p)
	_, got := l.out(link)
	l.wantTuple(&got, src, dst)
	l.nothing(l.g.nic, l.g.host)
}

// shake completes the handshake.
func (l *directLab) shake(src string) {
	l.t.Helper()
	l.wantClient(src, headertest.SYN|headertest.ACK)
	l.send(0, headertest.TCP(l.client, l.vip, headertest.ACK))
	l.out(l.g.nic)
	l.wantClient(src, headertest.ACK)
}

// TestDirectConnectionIsLeftAlone: the client has a direct connection to the backend's own address,
// and opens one through the frontend from the same port. The backend's segments of the direct
// connection go to the kernel, in any order. The connection through the frontend gets another port
// with the client's next SYN, and both work.
func TestDirectConnectionIsLeftAlone(t *testing.T) {
	const syn, ack, rst, fin = headertest.SYN, headertest.ACK, headertest.RST, headertest.FIN
	for _, f := range families {
		for name, first := range map[string]uint8{"a challenge or data": ack, "its end": fin | ack, "RST": rst,
			"RST with ACK": rst | ack, "its handshake": syn | ack} {
			t.Run(f.name+"/"+name, func(t *testing.T) {
				l := newDirectLab(t, f, true)
				l.wantKernel(l.direct(ack))
				if src := l.open(); src != l.client {
					t.Fatalf("the backend sees %s", src)
				}
				for range 3 {
					l.wantKernel(l.direct(first))
				}
				l.step(time.Second)
				src := l.open()
				if src == l.client {
					t.Fatal("the client's next SYN still has its own port")
				}
				l.wantKernel(l.direct(first))
				l.shake(src)
				l.wantKernel(l.direct(first))
				l.wantClient(src, ack)
				if n := l.table.Counts().Live; n[0]+n[1] != 1 {
					t.Errorf("%d flows, want 1", n)
				}
			})
		}
	}
}

// TestDirectConnectionAfterOneThroughTheFrontend: the backend accepts a direct connection, so it no
// longer has the connection through the frontend, which is over or was reset: the flow ends. A
// SYN-ACK alone, which may be forged, ends no open connection.
func TestDirectConnectionAfterOneThroughTheFrontend(t *testing.T) {
	const syn, ack, rst, fin = headertest.SYN, headertest.ACK, headertest.RST, headertest.FIN
	for _, f := range families {
		for _, tt := range []struct {
			name   string
			before func(l *directLab)
			ends   bool
		}{
			{"closed by both", func(l *directLab) {
				l.shake(l.client)
				l.send(0, headertest.TCP(l.client, l.vip, fin|ack))
				l.out(l.g.nic)
				l.wantClient(l.client, fin|ack)
				l.send(0, headertest.TCP(l.client, l.vip, ack))
				l.out(l.g.nic)
			}, true},
			{"reset by the backend", func(l *directLab) {
				l.shake(l.client)
				l.wantClient(l.client, rst|ack)
			}, true},
			{"refused", func(l *directLab) { l.wantClient(l.client, rst|ack) }, true},
			{"open", func(l *directLab) { l.shake(l.client) }, false},
			{"answered", func(l *directLab) { l.wantClient(l.client, syn|ack) }, false},
		} {
			t.Run(f.name+"/"+tt.name, func(t *testing.T) {
				l := newDirectLab(t, f, true)
				l.open()
				tt.before(l)
				l.step(time.Second)
				damaged := l.direct(syn | ack).Bytes()
				l.g.nic.Inject(damage(damaged)) // must change no flow
				l.step(time.Microsecond)
				if _, ok := l.g.host.Take(nil); !ok {
					t.Error("a damaged SYN-ACK of the direct connection did not go to the kernel")
				}
				if n := l.table.Counts().Live; n[0]+n[1] != 1 {
					t.Fatalf("%d flows after a damaged segment, want 1", n)
				}
				l.wantKernel(l.direct(syn | ack))
				if !tt.ends {
					l.wantClient(l.client, ack)
					return
				}
				l.wantKernel(l.direct(ack))
				if n := l.table.Counts().Live; n[0]+n[1] != 0 {
					t.Errorf("%d flows, want none", n)
				}
			})
		}
	}
}

// TestAnswersToTheFrontendsClient: answers to a SYN of the client reach it from the frontend, also
// repeated or late ones, and also if the gateway cannot know which SYN they answer.
func TestAnswersToTheFrontendsClient(t *testing.T) {
	const syn, ack, rst = headertest.SYN, headertest.ACK, headertest.RST
	for _, f := range families {
		for _, tt := range []struct {
			name string
			keep bool
			play func(l *directLab)
		}{
			{"SYN-ACK", true, func(l *directLab) { l.open(); l.shake(l.client) }},
			{"refused", true, func(l *directLab) { l.open(); l.wantClient(l.client, rst|ack) }},
			{"repeated SYN and SYN-ACK", true, func(l *directLab) {
				l.open()
				l.step(time.Second)
				l.open()
				l.wantClient(l.client, syn|ack)
				l.shake(l.client)
				l.wantClient(l.client, syn|ack)
			}},
			{"data before the SYN-ACK", true, func(l *directLab) { l.open(); l.wantClient(l.client, ack) }},
			{"another SYN", true, func(l *directLab) {
				l.open()
				again := headertest.TCP(l.client, l.vip, syn)
				again.Seq = 0x11000000
				l.send(0, again)
				l.out(l.g.nic)
				for _, number := range []uint32{0x11000001, headertest.ISN + 1} {
					p := headertest.TCP(l.backend, l.client, syn|ack)
					p.Ack = number
					l.arrives(p, l.g.nic, l.vip, l.client)
				}
			}},
			{"SYN with data", true, func(l *directLab) {
				p := headertest.TCP(l.client, l.vip, syn)
				p.Payload = []byte("early")
				l.send(0, p)
				l.out(l.g.nic)
				p = headertest.TCP(l.backend, l.client, syn|ack)
				p.Ack += 5
				l.arrives(p, l.g.nic, l.vip, l.client)
			}},
			{"a challenge, with the client's address replaced", false, func(l *directLab) {
				src := l.open()
				p := headertest.TCP(l.backend, src, ack)
				p.Ack = 0x88000000
				l.arrives(p, l.g.nic, l.vip, l.client)
			}},
		} {
			t.Run(f.name+"/"+tt.name, func(t *testing.T) { tt.play(newDirectLab(t, f, tt.keep)) })
		}
	}
}

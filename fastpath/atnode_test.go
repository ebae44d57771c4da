package fastpath_test

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/gaissmai/bart"

	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
)

// TestFragmentsAtTheNode: fragments to a frontend at an address of the node open no flow and go to
// the kernel: they may be for a socket of the node, which the kernel program cannot look up.
// Fragments of a flow that an unfragmented datagram opened are translated.
func TestFragmentsAtTheNode(t *testing.T) {
	for _, flags := range []services.AddrFlags{0, services.AddrLocal, services.AddrNode | services.AddrLocal} {
		for _, known := range []bool{false, true} {
			l := newLab(t, labConfig{edit: func(b *services.Builder) {
				b.SetAddr(addr(vip4), services.AddrVIP|flags)
			}})
			w, from, to := l.workers[0], join(client4, 5), join(vip4, 53)
			if known {
				l.send(0, headertest.UDP(from, to, "x"))
				l.out(w.nic)
			}
			served := known || flags == 0
			for i, f := range headertest.Split(headertest.UDP(from, to, strings.Repeat("x", 200)).Bytes(), 80, 7) {
				w.nic.Inject(f)
				l.step(time.Millisecond)
				_, kernel := w.host.Take(nil)
				frame, sent := w.nic.Take(nil)
				var p header.Packet
				if sent {
					_ = header.Parse(frame, &p)
				}
				if kernel == served || sent != served || sent && p.Tuple.Dst != addr(backend4) {
					t.Errorf("flags %#x, known flow %v, fragment %d: to the kernel %v, to the backend %v", flags, known,
						i, kernel, sent)
				}
			}
		}
	}
}

// TestEndpointAtItsFrontend: a pod in the host's network listens on the number of its node port,
// with policy Local. Its flows keep the client's address, are translated both ways, and are not
// taken for flows with direct return.
func TestEndpointAtItsFrontend(t *testing.T) {
	for _, proto := range []uint8{header.ProtoTCP, header.ProtoUDP} {
		l := newLab(t, labConfig{edit: func(b *services.Builder) {
			serve(b, 20, "0.0.0.0", 30090, proto, node4, 30090, true)
		}})
		r := new(bart.Table[nexthop.Route])
		r.Insert(netip.MustParsePrefix("0.0.0.0/0"), nexthop.Route{Hop: hopClient, Kind: nexthop.OnLink})
		r.Insert(netip.MustParsePrefix(node4+"/32"), nexthop.Route{Kind: nexthop.Kernel})
		l.hops.Publish(&nexthop.View{Generation: 8, Routes: r})
		g, client, front := l.workers[0], join(client4, 40000), join(node4, 30090)
		packet := func(src, dst string, flags uint8) *headertest.Packet {
			if proto == header.ProtoTCP {
				return headertest.TCP(src, dst, flags)
			}
			return headertest.UDP(src, dst, "datagram")
		}
		l.send(0, packet(client, front, headertest.SYN))
		_, h := l.out(g.host)
		src, dst := ends(&h.Tuple)
		if dst.String() != front || src.Addr() != netip.MustParseAddr(client4) {
			t.Errorf("protocol %d: left from %v to %v", proto, src, dst)
		}
		g.host.Inject(packet(front, src.String(), headertest.SYN|headertest.ACK).Bytes())
		l.step(time.Microsecond)
		_, h = l.out(g.nic)
		l.wantTuple(&h, front, client)
		l.send(0, packet(client, front, headertest.ACK))
		_, h = l.out(g.host)
		l.wantTuple(&h, src.String(), front)
	}
}

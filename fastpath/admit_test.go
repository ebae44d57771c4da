package fastpath_test

import (
	"testing"

	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/nat/reason"
)

// TestNodeAddressAsVIPKeepsItsOwnPorts: an external IP may be an address of the node. Its other
// ports belong to the node even if unserved ports of VIPs are rejected or dropped.
func TestNodeAddressAsVIPKeepsItsOwnPorts(t *testing.T) {
	for _, policy := range []services.UnservedPolicy{services.UnservedReject, services.UnservedDrop} {
		l := newLab(t, labConfig{edit: func(b *services.Builder) {
			b.Settings().UnservedPort = policy
			b.SetAddr(addr(vip4), services.AddrVIP|services.AddrLocal)
		}})
		l.send(0, headertest.TCP(join(client4, 1), join(vip4, 22), headertest.SYN))
		if n := l.drops()[reason.FrontendRejected.String()]; n != 0 {
			t.Errorf("policy %d: a SYN to port 22 of the node's own address is rejected", policy)
		}
	}
}

// TestHairpin: a backend that reaches itself through its VIP must not see its own address as the
// source, even if the client's address is kept (RFC 4787 REQ-9).
func TestHairpin(t *testing.T) {
	l := newLab(t, labConfig{edit: func(b *services.Builder) {
		serve(b, 30, "203.0.113.50", 80, header.ProtoTCP, backend4, 8080, true)
	}})
	g := l.workers[0]
	l.send(0, headertest.TCP(join(backend4, 4000), join("203.0.113.50", 80), headertest.SYN))
	_, p := l.out(g.nic)
	src, dst := ends(&p.Tuple)
	if src.Addr() == dst.Addr() {
		t.Errorf("sent %v -> %v: a land packet", src, dst)
	}
}

// TestReopenedConnectionMovesToHostLink: the route to a backend now leads through the kernel. A
// connection that is opened again from the same port gets the host link's address as its source.
func TestReopenedConnectionMovesToHostLink(t *testing.T) {
	l := newLab(t, labConfig{})
	g := l.workers[0]
	client, vip := join(client4, 4000), join(vip4, 80)
	l.send(0, headertest.TCP(client, vip, headertest.SYN))
	_, p := l.out(g.nic)
	src, dst := ends(&p.Tuple)
	l.send(0, headertest.TCP(dst.String(), src.String(), headertest.RST|headertest.ACK)) // refused: closed
	l.out(g.nic)
	view := *l.hops.View()
	view.Generation++
	view.Routes = view.Routes.InsertPersist(prefix(backend4+"/32"), nexthop.Route{Kind: nexthop.Kernel})
	l.hops.Publish(&view)
	l.send(0, headertest.TCP(client, vip, headertest.SYN))
	_, p = l.out(g.host)
	src, _ = ends(&p.Tuple)
	if src.Addr().String() != hostSource {
		t.Errorf("by the host link it leaves from %v, want %s: the kernel keeps the reply, or drops the packet as a "+
			"martian", src, hostSource)
	}
}

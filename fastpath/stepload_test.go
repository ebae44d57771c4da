package fastpath_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/gaissmai/bart"

	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
)

// duringReceive is a link that calls run once, in the next Receive.
type duringReceive struct {
	fastpath.Link
	run func()
}

func (d *duringReceive) Receive(into []fastpath.Desc) int {
	if run := d.run; run != nil {
		d.run = nil
		run()
	}
	return d.Link.Receive(into)
}

// newDuringReceive returns a lab of two workers and the link of the second one's NIC.
func newDuringReceive(t *testing.T, c labConfig) (*lab, *duringReceive) {
	t.Helper()
	var links []*duringReceive
	c.workers = 2
	c.tap = func(link fastpath.Link, _ []byte, _ bool) fastpath.Link {
		d := &duringReceive{Link: link}
		links = append(links, d)
		return d
	}
	return newLab(t, c), links[2]
}

// answerAtSecond makes worker 0 forward a client's packet, and injects the answer at worker 1.
func (l *lab) answerAtSecond(proto uint8, client, vip string) {
	l.t.Helper()
	sender, receiver := l.workers[0], l.workers[1]
	sender.nic.Inject(packet(proto, client, vip, headertest.SYN).Bytes())
	sender.Step(l.now)
	_, p := l.out(sender.nic)
	snat, end := ends(&p.Tuple)
	receiver.nic.Inject(packet(proto, end.String(), snat.String(), headertest.SYN|headertest.ACK).Bytes())
}

// TestReplyOfNewerView: with a strict reverse path, a worker whose step began with an older view
// accepts the reply to a packet that another worker sent by a newer one, whether the older view has
// no hop or another one.
func TestReplyOfNewerView(t *testing.T) {
	for _, old := range []nexthop.ID{0, hopClient} {
		t.Run(fmt.Sprintf("hop %d", old), func(t *testing.T) {
			here := 0
			l, second := newDuringReceive(t, labConfig{reversePath: &here})
			newer := l.hops.View()
			client := *l.hops.Hop(hopClient)
			client.VLANs, client.VLAN[0] = 1, nexthop.Tag{TPID: header.EtherTypeVLAN, TCI: 10}
			l.hops.SetHop(hopClient, &client)
			older := new(bart.Table[nexthop.Route])
			older.Insert(netip.MustParsePrefix("0.0.0.0/0"), nexthop.Route{Hop: old, Kind: nexthop.OnLink})
			l.hops.Publish(&nexthop.View{Generation: newer.Generation - 1, Routes: older})
			second.run = func() { // worker 1 has begun its step
				l.hops.Publish(newer)
				l.answerAtSecond(header.ProtoTCP, join(client4, 40000), join(vip4, 80))
			}
			l.workers[1].Step(l.now)
			if c := l.table.Counts(); c.States[flowtable.SynRecv] != 1 {
				t.Errorf("flows %v, drops %v; want one answered flow", c.States, l.drops())
			}
		})
	}
}

// TestReplyOfNewerSnapshot: a worker whose step began before an endpoint was added forwards the
// reply to a request that another worker sent to that endpoint.
func TestReplyOfNewerSnapshot(t *testing.T) {
	const vip, pod = "203.0.113.99", "10.0.1.77"
	for _, proto := range []uint8{header.ProtoTCP, header.ProtoUDP} {
		t.Run(fmt.Sprintf("protocol %d", proto), func(t *testing.T) {
			l, second := newDuringReceive(t, labConfig{})
			second.run = func() { // worker 1 has begun its step
				l.publish(func(b *services.Builder) { serve(b, 20, vip, 80, proto, pod, 8080, false) })
				l.answerAtSecond(proto, join(client4, 40000), join(vip, 80))
			}
			l.workers[1].Step(l.now)
			_, p := l.out(l.workers[1].nic)
			if src, dst := ends(&p.Tuple); src.String() != join(vip, 80) || dst.String() != join(client4, 40000) {
				t.Errorf("the reply is from %v to %v", src, dst)
			}
			if drops := l.drops(); len(drops) != 0 {
				t.Errorf("drops %v", drops)
			}
		})
	}
}

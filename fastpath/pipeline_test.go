package fastpath_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"sluice.dev/sluice/fastpath/nexthop"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/nat/reason"
	"sluice.dev/sluice/test/bed/memlink"
	"sluice.dev/sluice/test/bed/size"
)

// twins has two gateways that get the same packets at the same times. One handles plain packets in
// the pipeline, the other calls handleAny for every packet.
type twins struct {
	labs  [2]*lab
	r     *rand.Rand
	sent  [2][][]byte // of the last step, by gateway: NIC, then host link
	learn [][]byte    // frames that went to backends, for making replies
}

// TestPipelineEqualsHandleAny: the same frames leave in the same order, and every counter is the
// same, for all kinds of traffic and of changes meanwhile.
func TestPipelineEqualsHandleAny(t *testing.T) { twinsAgree(t, labConfig{}, 20_000) }

// TestPipelineEqualsHandleAnyUnderPressure: the same if flows are rejected or evicted for others.
func TestPipelineEqualsHandleAnyUnderPressure(t *testing.T) {
	drops := twinsAgree(t, labConfig{flows: 40, halfOpen: 20, snat: services.PortRange{First: 20000, Count: 12}},
		10_000)
	for _, r := range []reason.Drop{reason.HalfOpenLimit, reason.SNATPortsExhausted} {
		if drops[r.String()] == 0 {
			t.Errorf("no packet was dropped for %v", r)
		}
	}
}

// TestPipelineEqualsHandleAnyDirect: the same with direct return at the two main VIPs.
func TestPipelineEqualsHandleAnyDirect(t *testing.T) {
	nodes := []string{node1, node2, node61}
	twinsAgree(t, labConfig{edit: direct(nodes, nodes), sources: true}, 20_000)
}

// twinsAgree compares two gateways with a configuration, which must forward at least least packets,
// and returns their drops.
func twinsAgree(t *testing.T, c labConfig, least int) map[string]uint64 {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	w := &twins{r: rand.New(rand.NewPCG(seed, 0))}
	for i := range w.labs {
		own := c
		own.edit = func(b *services.Builder) {
			serve(b, 10, "203.0.113.15", 53, header.ProtoUDP, "10.0.9.3", 53, false) // an unresolved neighbour
			serveByAll(b)
			if c.edit != nil {
				c.edit(b)
			}
		}
		w.labs[i] = newLab(t, own)
	}
	forwarded := 0
	steps := 1500
	switch {
	case size.Race:
		steps, least = steps/20, least/20
	case testing.Short():
		steps, least = steps/5, least/5
	}
	for step := range steps {
		n := w.r.IntN(140)
		if w.r.IntN(10) == 0 {
			n = 256 + w.r.IntN(100) // a full batch, and then a partial one; both lose packets beyond the ring's size
		}
		var frames [][]byte
		for range n {
			frames = append(frames, w.frame())
		}
		pause := []time.Duration{time.Microsecond, time.Millisecond, 150 * time.Millisecond, 2 * time.Second,
			100 * time.Second}[max(w.r.IntN(60)-55, 0)]
		change := w.change()
		for i, l := range w.labs {
			change(l)
			for _, f := range frames {
				l.workers[0].nic.Inject(f)
			}
			l.now += uint64(pause)
			for range 3 {
				l.now += uint64(time.Microsecond)
				if i == 0 {
					l.workers[0].Step(l.now)
				} else {
					l.workers[0].StepByOracle(l.now)
				}
			}
			w.sent[i] = drain(l.workers[0].nic, l.workers[0].host)
		}
		if !slices.EqualFunc(w.sent[0], w.sent[1], bytes.Equal) {
			t.Fatalf("step %d: the pipeline sent\n%x\nthe oracle\n%x", step, w.sent[0], w.sent[1])
		}
		if a, b := w.labs[0].counters(), w.labs[1].counters(); a != b {
			t.Fatalf("step %d: counters of the pipeline\n%s\nof the oracle\n%s", step, a, b)
		}
		if a, b := w.labs[0].flows(), w.labs[1].flows(); step%16 == 0 && !slices.Equal(a, b) {
			t.Fatalf("step %d: flows of the pipeline\n%v\nof the oracle\n%v", step, a, b)
		}
		forwarded += len(w.sent[0])
		w.learn = append(w.learn, w.sent[0]...)
		if len(w.learn) > 500 {
			w.learn = w.learn[len(w.learn)-500:]
		}
	}
	if forwarded < least {
		t.Errorf("only %d packets were forwarded", forwarded)
	}
	return w.labs[0].drops()
}

// TestWindowsEndInMemory: a packet whose window would reach beyond the UMEM is not inspected
// through a window.
func TestWindowsEndInMemory(t *testing.T) {
	g := newLab(t, labConfig{}).workers[0]
	for _, p := range []*headertest.Packet{
		headertest.UDP(join(client4, 40000), join(vip4, 53), "x"), headertest.UDP(join(client6, 40000), join(vip6, 53),
			"x"),
	} {
		frame := p.Bytes()
		for beforeEnd := 2048; beforeEnd >= len(frame); beforeEnd-- {
			if want := beforeEnd >= header.Window6Bytes; g.PlainAt(frame, beforeEnd) != want {
				t.Fatalf("a packet of %d bytes, %d before the end: plain %v, want %v", len(frame), beforeEnd, !want,
					want)
			}
		}
	}
}

func drain(links ...*memlink.Link) (frames [][]byte) {
	for _, l := range links {
		for {
			f, ok := l.Take(nil)
			if !ok {
				break
			}
			frames = append(frames, f)
		}
		frames = append(frames, nil)
	}
	return frames
}

// dump returns the flows of the table.
func (l *lab) dump() []flowtable.Info {
	h, err := l.table.Register()
	if err != nil {
		l.t.Fatal(err)
	}
	defer h.Close()
	buf := make([]flowtable.Info, 4096)
	_, n := h.Dump(0, buf, flowtable.Time(l.now))
	return buf[:n]
}

// flows returns the flows of the table, without their positions.
func (l *lab) flows() (list []string) {
	for _, f := range l.dump() {
		f.Ref = 0
		list = append(list, fmt.Sprintf("%+v", f))
	}
	slices.Sort(list)
	return list
}

// counters returns all counters as text.
func (l *lab) counters() string {
	s := l.workers[0].stats
	text := fmt.Sprint(s.Rx.Load(), s.RxBytes.Load(), s.Tx.Load(), s.TxBytes.Load(), s.Generated.Load(),
		s.Returned.Load(),
		s.Held.Load(), s.FlowsCreated.Load(), l.drops(), l.table.Counts())
	for i := range uint32(100) {
		c := s.Backends.At(i)
		text += fmt.Sprint(" ", i, ":", c.Flows.Load(), c.ToBackend.Load(), c.ToBackendBytes.Load(), c.ToClient.Load(),
			c.ToClientBytes.Load())
	}
	return text
}

// frame makes a client's packet, or a reply to a sent packet; some are damaged.
func (w *twins) frame() []byte {
	var f []byte
	if len(w.learn) > 0 && w.r.IntN(3) == 0 {
		f = w.reply(w.learn[w.r.IntN(len(w.learn))])
	}
	if f == nil {
		f = w.request()
	}
	if w.r.IntN(3) == 0 {
		f = append(f, make([]byte, w.r.IntN(20))...) // as short frames are padded
	}
	if w.r.IntN(30) == 0 {
		f[w.r.IntN(min(len(f), 80))] ^= byte(1 << w.r.IntN(8))
	}
	if len(f) >= 34 && w.r.IntN(100) > 0 && f[12] == 8 && f[13] == 0 && f[14] == 0x45 {
		headertest.SealIPv4(f)
	}
	return f
}

func (w *twins) request() []byte {
	port := uint16(40000 + w.r.IntN(60))
	client, vip, udp := client4, []string{vip4, vip4, vip4, keepVIP, localVIP, emptyVIP, node4, "203.0.113.15",
		choiceVIP, choiceVIP}[w.r.IntN(10)], w.r.IntN(2) == 0
	if w.r.IntN(3) == 0 {
		client, vip = client6, vip6
	}
	to := uint16(80)
	switch {
	case vip == node4:
		to, udp = 30080, false
	case vip == "203.0.113.15":
		to, udp = 53, true
	case vip == choiceVIP:
		to, udp = uint16(1000+w.r.IntN(choices)), true
	case udp:
		to = 53
	}
	var p *headertest.Packet
	if udp {
		p = headertest.UDP(join(client, port), join(vip, to), "some payload of a datagram"[:w.r.IntN(26)])
		p.NoChecksum = client == client4 && w.r.IntN(4) == 0
	} else {
		p = headertest.TCP(join(client, port), join(vip, to), w.flags())
		p.Payload = make([]byte, w.r.IntN(1600))
		if w.r.IntN(8) > 0 {
			p.Payload = p.Payload[:len(p.Payload)%64]
		}
	}
	w.vary(p)
	return p.Bytes()
}

func (w *twins) flags() uint8 {
	return []uint8{headertest.SYN, headertest.SYN, headertest.ACK, headertest.ACK, headertest.ACK | headertest.PSH,
		headertest.ACK | headertest.PSH,
		headertest.ACK | headertest.URG, headertest.FIN | headertest.ACK, headertest.RST,
		headertest.SYN | headertest.ACK, headertest.SYN | headertest.FIN}[w.r.IntN(11)]
}

func (w *twins) vary(p *headertest.Packet) {
	p.TTL = []uint8{64, 64, 64, 64, 2, 1}[w.r.IntN(6)]
	p.DF = w.r.IntN(2) == 0
	if w.r.IntN(20) == 0 && p.Src.Is4() {
		p.Options = []byte{1, 1, 1, 0}
	}
	if w.r.IntN(40) == 0 {
		p.VLAN = []uint16{7}
	}
}

// reply makes a reply to a packet that went to a backend.
func (w *twins) reply(frame []byte) []byte {
	var p header.Packet
	if header.Parse(frame, &p) != 0 || p.Tuple.Proto != header.ProtoTCP && p.Tuple.Proto != header.ProtoUDP {
		return nil
	}
	back := p.Tuple.Reverse()
	src, dst := ends(&back)
	answer := headertest.UDP(src.String(), dst.String(), "an answer")
	if p.Tuple.Proto == header.ProtoTCP {
		answer = headertest.TCP(src.String(), dst.String(), w.flags())
	}
	w.vary(answer)
	return answer.Bytes()
}

// change returns a random change for both gateways before a step; mostly none.
func (w *twins) change() func(*lab) {
	pick, up := w.r.IntN(60), w.r.IntN(2) == 0
	generation := uint32(w.r.IntN(3) + 7)
	switch pick {
	case 0: // a neighbour fails or comes back
		return func(l *lab) {
			l.hops.SetHop(hopClient, &nexthop.Hop{Kind: nexthop.OnLink, Ready: up, MTU: 1500, DstMAC: macClient,
				SrcMAC: macOurs})
		}
	case 1: // a path has a smaller MTU, or tags
		return func(l *lab) {
			hop := nexthop.Hop{Kind: nexthop.OnLink, Ready: true, MTU: 600, DstMAC: macBackend, SrcMAC: macOurs}
			if up {
				hop = nexthop.Hop{Kind: nexthop.OnLink, Ready: true, VLANs: 1,
					VLAN: [2]nexthop.Tag{{TPID: header.EtherTypeVLAN, TCI: 9}}, DstMAC: macBackend, SrcMAC: macOurs}
			}
			l.hops.SetHop(hopBackend, &hop)
		}
	case 2, 3:
		return func(l *lab) {
			l.hops.SetHop(hopBackend, &nexthop.Hop{Kind: nexthop.OnLink, Ready: true, MTU: 1500, DstMAC: macBackend,
				SrcMAC: macOurs})
		}
	case 4: // routes change: clients are behind another neighbour
		return func(l *lab) {
			hop := nexthop.ID(generation + 10)
			l.hops.SetHop(hop, &nexthop.Hop{Kind: nexthop.OnLink, Ready: true, MTU: 1500,
				DstMAC: [6]byte{2, 5: byte(hop)}, SrcMAC: macOurs})
			routes := l.hops.View().Routes.Clone()
			routes.Insert(netip.MustParsePrefix("0.0.0.0/0"), nexthop.Route{Hop: hop, Kind: nexthop.OnLink})
			l.hops.Publish(&nexthop.View{Generation: generation, Routes: routes})
		}
	case 5, 6: // a backend stops serving, is removed, or comes back
		return func(l *lab) {
			l.publish(func(b *services.Builder) {
				be := backend(2, 1, backend4, 5353, header.ProtoUDP)
				be.Service = 2
				if !up {
					be.Flags = 0
				}
				if b.SetBackend(be); !up && pick == 6 {
					b.DeleteBackend(be.Ref)
				}
			})
		}
	case 7: // other rules for new flows
		return func(l *lab) { l.publish(func(b *services.Builder) { b.Settings().RetryOther = up }) }
	case 8, 9: // one backend of each set is removed, or all are present
		gone := int(generation-7) + 3*(pick-8)
		return func(l *lab) { l.publish(func(b *services.Builder) { serveByAllBut(b, gone) }) }
	case 10: // a frontend goes to another service port, with the same pod or another, or comes back
		id, pod := services.ServiceID(2), backend4
		if up {
			id, pod = 100+services.ServiceID(generation%2), []string{backend4, second4}[generation%2]
		}
		return func(l *lab) {
			l.publish(func(b *services.Builder) { serve(b, id, vip4, 53, header.ProtoUDP, pod, 5353, false) })
		}
	}
	return func(*lab) {}
}

package replication

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sluice.dev/sluice/fastpath/copies"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/gateway/group"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/nat/proxyproto"
)

const (
	syn, ack, fin, psh = headertest.SYN, headertest.ACK, headertest.FIN, headertest.PSH
)

// connection is a client's connection, as both ends have it.
type connection struct {
	family
	client, vip     string // client tuple
	backend, source string // towards the backend
}

func newConnection(f family, port int) *connection {
	return &connection{family: f, client: join(f.client, port), vip: join(f.vip, 80)}
}

// syn sends the client's SYN by a gateway, and notes the gateway's choice.
func (c *connection) syn(l *lab, id int) {
	l.t.Helper()
	l.send(id, headertest.TCP(c.client, c.vip, syn))
	p := l.one(id, "SYN")
	c.source, c.backend = ends(&p.Tuple)
}

// ends returns source and destination of a packet.
func ends(t *header.Tuple) (src, dst string) {
	return join(t.Src.String(), int(t.SrcPort)), join(t.Dst.String(), int(t.DstPort))
}

// answer sends the backend's SYN-ACK to a gateway.
func (c *connection) answer(l *lab, id int) {
	l.send(id, headertest.TCP(c.backend, c.source, syn|ack))
}

// establish opens the connection by a gateway. The SYN-ACK must leave without any time passing.
func (c *connection) establish(l *lab, id int) {
	l.t.Helper()
	c.syn(l, id)
	c.answer(l, id)
	synctest.Wait()
	l.step()
	l.one(id, "SYN-ACK")
	c.passes(l, id, "the client's ACK", headertest.TCP(c.client, c.vip, ack), c.source, c.backend)
}

// passes requires that a gateway translates a packet.
func (c *connection) passes(l *lab, id int, what string, p *headertest.Packet, src, dst string) {
	l.t.Helper()
	l.send(id, p)
	got := l.one(id, what)
	if s, d := ends(&got.Tuple); s != src || d != dst {
		l.t.Errorf("%s by gateway %d leaves from %s to %s, want %s, %s", what, id, s, d, src, dst)
	}
}

// works requires that data passes a gateway in both directions.
func (c *connection) works(l *lab, id int) {
	l.t.Helper()
	data := headertest.TCP(c.client, c.vip, psh|ack)
	data.Payload = []byte("ping")
	c.passes(l, id, "data of the client", data, c.source, c.backend)
	data = headertest.TCP(c.backend, c.source, psh|ack)
	data.Payload = []byte("pong")
	c.passes(l, id, "data of the backend", data, c.vip, c.client)
}

// inLab runs a test with a group of gateways that are in step.
func inLab(t *testing.T, gateways int, test func(l *lab)) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, gateways, idle)
		l.settle(time.Second)
		test(l)
	})
}

// TestFlowsOutliveTheirGateway: after a gateway has died, another one translates both directions of
// its connections by its copies. Replies may also pass one gateway and the client's packets
// another.
func TestFlowsOutliveTheirGateway(t *testing.T) {
	inLab(t, 3, func(l *lab) {
		var open []*connection
		for port := range 40 {
			c := newConnection(families[port%2], 1000+port)
			c.establish(l, 0)
			open = append(open, c)
		}
		l.settle(0)
		for _, c := range open {
			for id := range l.gateways {
				c.works(l, id)
			}
		}
		l.kill(0)
		for range 3 {
			for _, c := range open {
				c.works(l, 1)
				c.works(l, 2)
			}
			l.settle(2 * idle)
		}
		if n := l.gateways[1].Board().Flows(); n[copies.Protected] != 0 {
			t.Errorf("gateway 1 has counted flows: %v", n)
		}
		if n := l.gateways[0].Board().Flows(); n[copies.Protected] != 40 {
			t.Errorf("gateway 0 has counted flows %v, want 40 protected", n)
		}
	})
}

// TestTrafficElsewhere: the counts of a flow are not complete once another gateway has forwarded
// packets of it.
func TestTrafficElsewhere(t *testing.T) {
	inLab(t, 2, func(l *lab) {
		here, there := newConnection(families[0], 1000), newConnection(families[0], 1001)
		here.establish(l, 0)
		there.establish(l, 0)
		l.settle(0)
		here.works(l, 0)
		there.passes(l, 1, "the client's FIN", headertest.TCP(there.client, there.vip, headertest.FIN|ack),
			there.source, there.backend)
		l.settle(time.Second)
		h, err := l.gateways[0].table.Register()
		if err != nil {
			t.Fatal(err)
		}
		defer h.Close()
		var list [64]flowtable.Info
		_, n := h.Dump(0, list[:], flowtable.Time(l.now()))
		for i := range list[:n] {
			if f := &list[i]; f.Metered != (f.Client.SrcPort == 1000) || f.Start == 0 {
				t.Errorf("port %d: complete %v, start %d", f.Client.SrcPort, f.Metered, f.Start)
			}
		}
		if n != 2 {
			t.Errorf("%d flows, want 2", n)
		}
	})
}

// TestRemovedBefore: flows in the table of a gateway that was removed are its copies, with a clock.
// Flows of this gateway do not wait for it, and its number is free when the last has ended.
func TestRemovedBefore(t *testing.T) {
	table, err := flowtable.NewHeap(flowtable.Config{IPv4Flows: 64, Timeouts: flowtable.DefaultTimeouts(), Group: true})
	if err != nil {
		t.Fatal(err)
	}
	h, err := table.Register()
	if err != nil {
		t.Fatal(err)
	}
	var refs []flowtable.Ref
	h.Enter(1e9)
	for id := range 3 {
		r, s := h.Create(1e9, &flowtable.NewFlow{
			Client: header.Tuple{Src: addr(families[0].client), SrcPort: uint16(1 + id), Dst: addr(families[0].vip),
				DstPort: 80, Proto: header.ProtoTCP},
			Backend: addr(families[0].backend), BackendPort: 8080, Source: sources(id)[0], SourcePort: 1})
		if s != flowtable.Created {
			t.Fatal(s)
		}
		refs = append(refs, r)
	}
	h.Leave()
	c := Config{Table: table, Workers: 1, Sources: sources(0), Now: func() int64 { return 1e9 },
		Others: []Other{{Sources: sources(1)}}, Removed: []Other{{Sources: sources(2)}}}
	f, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	for id, r := range refs {
		if owner := h.OwnerOf(r); owner != id {
			t.Errorf("the flow of gateway %d has owner %d", id, owner)
		}
	}
	if f.Free(1) {
		t.Error("the number of a gateway with copies is free")
	}
	if l := f.Ledger(); l.View(0) != group.Unheard || l.View(1) != group.Out {
		t.Errorf("the views are %v of the other gateway, %v of the removed one", l.View(0), l.View(1))
	}
	const later = flowtable.Time(time.Hour)
	h.Enter(later)
	for id, live := range []bool{false, true, false} {
		t1 := header.Tuple{}
		h.Tuple(refs[id], flowtable.ClientSide, &t1)
		if r, _ := h.Lookup(h.Hash(&t1), &t1, later); (r != 0) != live {
			t.Errorf("after a long time the flow of gateway %d is there: %t, want %t", id, r != 0, live)
		}
	}
	h.Delete(refs[2])
	h.Leave()
	if !f.Free(1) {
		t.Error("the number is in use after the last copy")
	}
	c.Removed = make([]Other, flowtable.MaxOwners)
	if _, err := New(c); err == nil {
		t.Error("more gateways than numbers")
	}
}

// TestProxiedFlowsOutlive: a copy has the PROXY header of its flow: sequence numbers stay shifted.
func TestProxiedFlowsOutlive(t *testing.T) {
	inLab(t, 2, func(l *lab) {
		for i, f := range families {
			c := newConnection(f, 1000)
			c.vip = join(f.proxied, 80)
			c.syn(l, 0)
			c.answer(l, 0)
			synctest.Wait()
			l.step()
			l.one(0, "SYN-ACK")
			l.send(0, headertest.TCP(c.client, c.vip, ack)) // becomes the header
			_, frames := l.take(0)
			if len(frames) != 1 || !bytes.Contains(frames[0], []byte{0x0d, 0x0a, 0x0d, 0x0a, 0x00, 0x0d, 0x0a}) {
				t.Fatalf("family %d: no PROXY header", i)
			}
			l.settle(0)
			data := headertest.TCP(c.client, c.vip, psh|ack)
			data.Payload = []byte("ping")
			var seqs [2]uint32
			for id := range seqs {
				l.send(id, data)
				list, frames := l.take(id)
				last := len(list) - 1
				if last < 0 {
					t.Fatalf("gateway %d: %s", id, l.drops(id))
				}
				seqs[id] = uint32(frames[last][list[last].L4+4])<<24 | uint32(frames[last][list[last].L4+5])<<16 |
					uint32(frames[last][list[last].L4+6])<<8 | uint32(frames[last][list[last].L4+7])
			}
			if seqs[0] != seqs[1] || seqs[0] == headertest.ISN+1 {
				t.Errorf("family %d: sequence numbers %d and %d", i, seqs[0], seqs[1])
			}
		}
	})
}

// TestProxiedReopened: a client that opens another connection from its port, through the owner of
// its flow or through another gateway, gets one with its second SYN at the latest: the flow ends,
// although its port is held, and although the owner has not seen the SYN.
func TestProxiedReopened(t *testing.T) {
	for name, proven := range map[string]bool{"half-open": false, "established": true} {
		for both := range 4 {
			by, answered := both%2, both/2
			t.Run(fmt.Sprintf("%s, by gateway %d, answered by %d", name, by, answered), func(t *testing.T) {
				inLab(t, 2, func(l *lab) {
					for _, f := range families {
						c := newConnection(f, 1000)
						c.vip = join(f.proxied, 80)
						c.syn(l, 0)
						c.answer(l, 0)
						l.settle(0)
						l.one(0, "SYN-ACK")
						if proven {
							c.passes(l, 0, "the header", headertest.TCP(c.client, c.vip, ack), c.source, c.backend)
							l.settle(0)
						}
						before := c.source
						again := headertest.TCP(c.client, c.vip, syn)
						again.Seq += 100_000
						l.send(by, again)
						list, frames := l.take(by)
						if len(list) != 1 {
							t.Fatalf("%d packets instead of the SYN; drops %s", len(list), l.drops(by))
						}
						left := binary.BigEndian.Uint32(frames[0][list[0].L4+4:])
						answer := headertest.TCP(c.backend, c.source, syn|ack)
						answer.Seq, answer.Ack = answer.Seq+100_000, left+1
						l.send(answered, answer)
						if p := l.one(answered, "the answer to the SYN-ACK"); p.TCPFlags&headertest.RST == 0 {
							t.Errorf("flags %#x went to %v", p.TCPFlags, p.Tuple.Dst)
						}
						l.settle(time.Second)
						c.syn(l, by) // TCP repeats it
						if c.source == before {
							t.Errorf("the new flow has the port %s, which is held", before)
						}
						c.answer(l, by)
						l.settle(0)
						l.one(by, "SYN-ACK")
						c.passes(l, by, "the header", headertest.TCP(c.client, c.vip, ack), c.source, c.backend)
						l.settle(time.Second)
					}
				})
			})
		}
	}
}

// TestHeaderSentElsewhere: a backend may acknowledge a PROXY header that another gateway has sent
// before that gateway's message arrives. The client gets numbers of its own bytes.
func TestHeaderSentElsewhere(t *testing.T) {
	inLab(t, 2, func(l *lab) {
		for i, f := range families {
			c := newConnection(f, 1000)
			c.vip = join(f.proxied, 80)
			c.syn(l, 0)
			c.answer(l, 0)
			l.settle(0)
			l.one(0, "SYN-ACK")
			l.send(1, headertest.TCP(c.client, c.vip, ack)) // becomes the header
			l.one(1, "the header")
			data := headertest.TCP(c.backend, c.source, psh|ack)
			data.Payload = []byte("pong")
			want := data.Ack
			data.Ack += proxyproto.Bytes(i == 1)
			l.send(0, data)
			list, frames := l.take(0)
			if len(list) != 1 {
				t.Fatalf("family %d: %d packets; drops %s", i, len(list), l.drops(0))
			}
			if got := binary.BigEndian.Uint32(frames[0][list[0].L4+8:]); got != want {
				t.Errorf("family %d: the client gets the acknowledgement %d, want %d", i, got, want)
			}
			l.settle(0)
			c.passes(l, 0, "an ACK of the client", headertest.TCP(c.client, c.vip, ack), c.source, c.backend)
		}
	})
}

// TestHeaderAckedElsewhere: the owner learns that the backend has acknowledged a PROXY header at
// another gateway, also if it was killed meanwhile, and does not send the header again.
func TestHeaderAckedElsewhere(t *testing.T) {
	for _, killed := range []bool{false, true} {
		inLab(t, 2, func(l *lab) {
			for i, f := range families {
				c := newConnection(f, 1000)
				c.vip = join(f.proxied, 80)
				c.syn(l, 0)
				c.answer(l, 0)
				l.settle(0)
				l.one(0, "SYN-ACK")
				if killed {
					l.kill(0)
				}
				l.send(1, headertest.TCP(c.client, c.vip, ack)) // becomes the header
				l.one(1, "the header")
				p := headertest.TCP(c.backend, c.source, ack)
				p.Ack += proxyproto.Bytes(i == 1)
				l.send(1, p)
				l.take(1)
				l.settle(0)
				if killed {
					l.start(0, 1, true)
					l.settle(time.Second)
				}
				for id := range l.gateways {
					acked := false
					l.at(id, c, func(h *flowtable.Handle, r flowtable.Ref) { acked = h.Insertion(r).Acked })
					if !acked {
						t.Errorf("killed %t, %s: gateway %d does not know of the acknowledgement", killed, f.vip, id)
					}
				}
			}
		})
	}
}

// openProxied opens a connection with a PROXY header by gateway 0, until its client has the
// SYN-ACK.
func openProxied(l *lab, f family) *connection {
	c := newConnection(f, 1000)
	c.vip = join(f.proxied, 80)
	c.syn(l, 0)
	c.answer(l, 0)
	l.settle(0)
	l.one(0, "SYN-ACK")
	return c
}

// acknowledges sends the client's ACK by one gateway, where it becomes the header, and the
// backend's ACK of it by another.
func (c *connection) acknowledges(l *lab, by, replies int) {
	l.t.Helper()
	l.send(by, headertest.TCP(c.client, c.vip, ack))
	l.one(by, "the header")
	p := headertest.TCP(c.backend, c.source, ack)
	p.Ack += proxyproto.Bytes(strings.Contains(c.client, "["))
	l.send(replies, p)
	l.one(replies, "the ACK of the header")
}

// numbers returns the sequence and acknowledgement numbers of a TCP segment.
func numbers(frame []byte, p *header.Packet) (seq, ack uint32) {
	return binary.BigEndian.Uint32(frame[p.L4+4:]), binary.BigEndian.Uint32(frame[p.L4+8:])
}

// TestHeaderAckedUntold: a gateway that is never told that the header is acknowledged forwards
// the client's ACKs for data of the backend.
func TestHeaderAckedUntold(t *testing.T) {
	inLab(t, 3, func(l *lab) {
		var open []*connection
		for _, f := range families {
			open = append(open, openProxied(l, f))
		}
		l.settle(time.Second)
		l.kill(0)
		for i, c := range open {
			bytes := proxyproto.Bytes(i == 1)
			c.acknowledges(l, 2, 1)
			ping := headertest.TCP(c.client, c.vip, psh|ack)
			ping.Payload = []byte("ping")
			c.passes(l, 2, "the client's data", ping, c.source, c.backend)
			pong := headertest.TCP(c.backend, c.source, psh|ack)
			pong.Payload, pong.Ack = []byte("pong"), pong.Ack+bytes+4
			c.passes(l, 1, "the backend's data", pong, c.vip, c.client)
			reply := headertest.TCP(c.client, c.vip, ack)
			reply.Seq, reply.Ack = reply.Seq+4, reply.Ack+4
			l.send(2, reply)
			list, frames := l.take(2)
			if len(list) == 0 {
				t.Fatalf("family %d: no ACK; drops %s", i, l.drops(2))
			}
			last := len(list) - 1
			seq, acked := numbers(frames[last], &list[last])
			if seq != reply.Seq+bytes || acked != reply.Ack || int(list[last].L4)+20 != int(list[last].End) {
				t.Errorf("family %d: the ACK left with the numbers %d, %d", i, seq, acked)
			}
		}
	})
}

// TestHiddenSYNElsewhere: the backend's answer to a SYN that left by another gateway does not show
// the SYN's number to the client, and a SYN-ACK ends the flow, although it is in use.
func TestHiddenSYNElsewhere(t *testing.T) {
	inLab(t, 2, func(l *lab) {
		for i, f := range families {
			c := openProxied(l, f)
			c.acknowledges(l, 0, 0)
			l.settle(0)
			again := headertest.TCP(c.client, c.vip, syn)
			again.Seq += 100_000
			l.send(1, again)
			list, frames := l.take(1)
			if len(list) != 1 {
				t.Fatalf("family %d: %d packets instead of the SYN; drops %s", i, len(list), l.drops(1))
			}
			hidden, _ := numbers(frames[0], &list[0])
			for _, flags := range []uint8{ack, headertest.RST | ack} {
				p := headertest.TCP(c.backend, c.source, flags)
				p.Ack = hidden + 1
				l.send(0, p)
				if list, _ := l.take(0); len(list) != 0 {
					t.Errorf("family %d: flags %#x leave", i, flags)
				}
			}
			if i == 0 {
				host, _, _ := strings.Cut(c.source, ":")
				l.send(0, headertest.ICMPError("10.0.1.1", host, 3, 1, 0, frames[0], -1))
				for _, frame := range second(l.take(0)) {
					if bytes.Contains(frame, binary.BigEndian.AppendUint32(nil, hidden)) {
						t.Errorf("an ICMP error shows the number: %x", frame)
					}
				}
			}
			answer := headertest.TCP(c.backend, c.source, syn|ack)
			answer.Ack = hidden + 1
			l.send(0, answer)
			if p := l.one(0, "the answer to the SYN-ACK"); p.TCPFlags&headertest.RST == 0 {
				t.Errorf("family %d: flags %#x", i, p.TCPFlags)
			}
			l.settle(time.Second)
		}
	})
}

func second(_ []header.Packet, frames [][]byte) [][]byte { return frames }

// TestCopyBreaksCookies: a copy, also one of an earlier process, knows the SYN cookie by which the
// backend could begin another connection.
func TestCopyBreaksCookies(t *testing.T) {
	inLab(t, 2, func(l *lab) {
		var open []*connection
		for _, f := range families {
			c := openProxied(l, f)
			c.acknowledges(l, 0, 0)
			open = append(open, c)
		}
		l.settle(time.Second)
		for round := range 2 {
			for i, c := range open {
				n := proxyproto.Bytes(i == 1)
				for _, data := range []string{"", "data"} {
					p := headertest.TCP(c.client, c.vip, ack)
					p.Ack, p.Payload = p.Ack+n, []byte(data)
					l.send(1, p)
					list, frames := l.take(1)
					if len(list) == 0 {
						t.Fatalf("family %d: nothing leaves; drops %s", i, l.drops(1))
					}
					last := len(list) - 1
					if seq, acked := numbers(frames[last], &list[last]); acked-seq+3 <= 6 {
						t.Errorf("round %d, family %d: left with the numbers %d, %d", round, i, seq, acked)
					}
				}
			}
			l.kill(1)
			l.start(1, 2, true)
			l.settle(time.Second)
		}
	})
}

// TestAnswerWaits: while a member does not acknowledge, a SYN-ACK waits 2 ms, and nothing else
// does.
func TestAnswerWaits(t *testing.T) {
	inLab(t, 2, func(l *lab) {
		other := newConnection(families[0], 999)
		other.establish(l, 0)
		l.gateways[1].stalled.Store(true)
		c := newConnection(families[0], 1000)
		c.syn(l, 0)
		c.answer(l, 0)
		began := time.Now()
		for {
			synctest.Wait()
			l.step()
			if list, _ := l.take(0); len(list) > 0 {
				break
			}
			other.works(l, 0)
			time.Sleep(100 * time.Microsecond)
		}
		if waited := time.Since(began); waited != 2*time.Millisecond {
			t.Errorf("it has waited %v", waited)
		}
		if n := l.gateways[0].Board().Flows(); n[copies.Late] != 1 {
			t.Errorf("counted %v", n)
		}
		c.answer(l, 0)
		l.one(0, "the SYN-ACK again")
		l.settle(time.Second)
		next := newConnection(families[0], 1001)
		next.establish(l, 0)
		if n := l.gateways[0].Board().Flows(); n[copies.NoMember] != 1 {
			t.Errorf("without a member in step: counted %v", n)
		}
	})
}

// TestSilence: an unknown segment is answered with RST only while the gateway has all flows.
func TestSilence(t *testing.T) {
	inLab(t, 2, func(l *lab) {
		unknown := func() (answers int) {
			l.send(1, headertest.TCP(join(families[0].client, 7), join(families[0].vip, 80), ack))
			list, _ := l.take(1)
			return len(list)
		}
		unknown() // the first of a connection gets none
		l.settle(copies.Delay)
		if n := unknown(); n != 1 {
			t.Errorf("in step: %d answers; %s", n, l.drops(1))
		}
		l.kill(0)
		l.settle(290 * time.Millisecond)
		l.settle(20 * time.Millisecond)
		if n := unknown(); n != 0 {
			t.Errorf("out of step: %d answers", n)
		}
		l.start(0, 1, true)
		l.settle(time.Second)
		if n := unknown(); n != 1 {
			t.Errorf("in step again: %d answers", n)
		}
	})
}

// TestSilenceOfAFullTable: a gateway whose table has no room for a flow answers no unknown segment
// with RST, until it has all flows.
func TestSilenceOfAFullTable(t *testing.T) {
	inLab(t, 2, func(l *lab) {
		l.resize(1, 16)
		l.settle(time.Second)
		var open []*connection
		for port := range 12 {
			c := newConnection(families[0], 1000+port)
			c.establish(l, 0)
			open = append(open, c)
		}
		l.settle(0)
		refused := func() (mine, its int) {
			l.gateways[0].x.Do(func() { mine = l.gateways[0].Ledger().Refused(0) })
			l.gateways[1].x.Do(func() { its = l.gateways[1].Copies(0).Refused() })
			return mine, its
		}
		if mine, its := refused(); mine != 4 || its != 4 {
			t.Errorf("gateway 0 counts %d refused flows, gateway 1 %d, want 4", mine, its)
		}
		for range 2 {
			for _, c := range open {
				if l.state(1, c) != flowtable.None {
					continue
				}
				l.send(1, headertest.TCP(c.client, c.vip, psh|ack))
				if list, _ := l.take(1); len(list) > 0 {
					t.Errorf("client %s, whose flow has no copy, gets flags %#x", c.client, list[0].TCPFlags)
				}
			}
			l.settle(400 * time.Millisecond)
		}
		for _, c := range open {
			p := headertest.TCP(c.backend, c.source, headertest.RST|ack)
			l.send(0, p)
			l.take(0)
		}
		l.settle(2 * time.Minute)
		if mine, its := refused(); mine != 0 || its != 0 {
			t.Errorf("when all flows have ended, gateway 0 counts %d refused flows, gateway 1 %d", mine, its)
		}
		answered := 0
		for range 2 {
			l.send(1, headertest.TCP(join(families[0].client, 7), join(families[0].vip, 80), ack))
			list, _ := l.take(1)
			answered += len(list)
			l.settle(400 * time.Millisecond)
		}
		if answered != 1 {
			t.Errorf("an unknown connection gets %d answers", answered)
		}
	})
}

// TestTableOfAnotherSize: copies stay in their records when their owner starts again with a table
// of another size, where flows have other slots: established connections come first.
func TestTableOfAnotherSize(t *testing.T) {
	inLab(t, 2, func(l *lab) {
		for port := range 20 {
			udp, tcp := newConnection(families[0], 1000+port), newConnection(families[0], 2000+port)
			udp.ask(l, 0)
			udp.datagrams(l, 0)
			tcp.establish(l, 0)
		}
		l.settle(time.Second)
		copies := func() map[flowtable.Ref]header.Tuple {
			list := map[flowtable.Ref]header.Tuple{}
			l.each(1, func(h *flowtable.Handle, r flowtable.Ref) {
				var reply header.Tuple
				h.Tuple(r, flowtable.ReplySide, &reply)
				list[r] = reply
			})
			return list
		}
		before := copies()
		l.resize(0, 2048)
		l.settle(time.Second)
		if after := copies(); len(before) != 40 || !maps.Equal(before, after) {
			t.Errorf("the copies are %v, before %v", after, before)
		}
	})
}

// TestOfferedAgain: a gateway that has refused a flow gets a copy when it has room, or when its own
// flow of the client has ended.
func TestOfferedAgain(t *testing.T) {
	t.Run("room", func(t *testing.T) { synctest.Test(t, testOfferedWithRoom) })
	t.Run("another flow", func(t *testing.T) { synctest.Test(t, testOfferedAlone) })
}

func testOfferedWithRoom(t *testing.T) {
	l := newLab(t, 2, idle)
	l.resize(1, 16)
	l.settle(time.Second)
	l.fill(1, 16)
	c := newConnection(families[0], 1000)
	c.establish(l, 0)
	l.settle(time.Second)
	if s := l.state(1, c); s != flowtable.None {
		t.Fatalf("a table without room has a flow in the state %v", s)
	}
	l.empty(1)
	l.settle(20 * time.Second)
	l.at(1, c, func(h *flowtable.Handle, r flowtable.Ref) {
		if h.NewCopy(r, flowtable.Time(l.now()), time.Hour) {
			t.Error("the copy counts as one of a new flow")
		}
	})
	l.kill(0)
	c.works(l, 1)
}

func testOfferedAlone(t *testing.T) {
	l := newLab(t, 2, flowtable.DefaultTimeouts().Established)
	l.cut[0][1].Store(true)
	l.settle(time.Second)
	both := [2]*connection{newConnection(families[0], 1000), newConnection(families[0], 1000)}
	for id, c := range both {
		c.syn(l, id)
		c.answer(l, id)
		l.settle(0)
		l.one(id, "SYN-ACK")
	}
	l.cut[0][1].Store(false)
	c := both[1]
	c.passes(l, 1, "the client's ACK", headertest.TCP(c.client, c.vip, ack), c.source, c.backend)
	l.settle(45 * time.Second) // the other flow ends after 30
	l.kill(1)
	c.works(l, 0)
}

// TestTwoFlowsOfAClient: a SYN that reaches two gateways makes two flows. One of them ends, the
// higher gateway's, unless its SYN-ACK has left.
func TestTwoFlowsOfAClient(t *testing.T) {
	inLab(t, 2, func(l *lab) {
		both := [2]*connection{newConnection(families[0], 3000), newConnection(families[0], 3000)}
		for _, g := range l.gateways { // before any of them can have a copy
			g.stalled.Store(true)
		}
		for id, c := range both {
			c.syn(l, id)
			c.answer(l, id)
		}
		l.settle(0)
		for _, g := range l.gateways {
			g.stalled.Store(false)
			g.waiter.Wake()
		}
		l.settle(0)
		l.one(0, "the lower gateway's SYN-ACK")
		if list, _ := l.take(1); len(list) != 0 {
			t.Error("the higher gateway's SYN-ACK leaves, too")
		}
		both[0].works(l, 1)
		for round, first := range []int{0, 1} {
			c, d := newConnection(families[round], 1000), newConnection(families[round], 1000)
			c.syn(l, 0)
			d.syn(l, 1)
			order := []func(){func() { c.answer(l, 0) }, func() { d.answer(l, 1) }}
			order[first]()
			order[1-first]()
			l.settle(0)
			answers := [2]int{}
			for id := range answers {
				list, _ := l.take(id)
				answers[id] = len(list)
			}
			if answers[0]+answers[1] != 1 || first == 0 && answers[1] != 0 {
				t.Errorf("round %d: SYN-ACKs %v, want one, of the first gateway that was answered", round, answers)
			}
			if answers[1] == 1 { // the record came before the backend's answer to gateway 0
				c = d
			}
			for id := range answers {
				c.works(l, id)
			}
		}
		c, d := newConnection(families[0], 2000), newConnection(families[0], 2000)
		c.syn(l, 0)
		d.syn(l, 1)
		d.answer(l, 1)
		l.settle(0)
		l.one(1, "the only SYN-ACK")
		c.answer(l, 0)
		l.settle(0)
		if list, _ := l.take(0); len(list) != 0 {
			t.Error("a second SYN-ACK leaves")
		}
		d.works(l, 0)
		d.works(l, 1)

		// Data of the backend overtakes the SYN-ACK at gateway 1, which leaves after 2 ms.
		for _, g := range l.gateways {
			g.stalled.Store(true)
		}
		c, d = newConnection(families[0], 4000), newConnection(families[0], 4000)
		d.syn(l, 1)
		d.answer(l, 1)
		synctest.Wait() // gateway 1 waits for a decision
		data := headertest.TCP(d.backend, d.source, psh|ack)
		data.Payload = []byte("pong")
		d.passes(l, 1, "data of the backend", data, d.vip, d.client)
		l.settle(2 * time.Millisecond)
		l.one(1, "the late SYN-ACK")
		c.syn(l, 0)
		c.answer(l, 0)
		synctest.Wait()
		for _, g := range l.gateways {
			g.stalled.Store(false)
			g.waiter.Wake()
		}
		l.settle(0)
		if list, _ := l.take(0); len(list) != 0 {
			t.Error("a second SYN-ACK leaves")
		}
		d.works(l, 1)
	})
}

// TestPortsAreHeld: the ports of flows that end while a member is lost are not given to others
// until it is in step again, also by a process that was killed meanwhile.
func TestPortsAreHeld(t *testing.T) {
	for _, killed := range []bool{false, true} {
		inLab(t, 2, func(l *lab) {
			taken := map[string]bool{}
			var open []*connection
			for port := range ports / 2 {
				c := newConnection(families[0], 1000+port)
				c.establish(l, 0)
				taken[c.source] = true
				open = append(open, c)
			}
			l.settle(0)
			l.kill(1)
			l.settle(time.Second)
			for _, c := range open {
				c.close(l, 0)
			}
			l.settle(5 * time.Minute) // longer than TIME_WAIT
			if killed {
				l.kill(0)
				l.start(0, 1, true)
				l.settle(time.Second)
			}
			held := l.gateways[0].table.HeldPorts()
			if held != ports/2 {
				t.Errorf("killed %t: %d ports are held, want %d", killed, held, ports/2)
			}
			free := 0
			for port := range ports {
				l.send(0, headertest.TCP(join(families[0].client, 5000+port), join(families[0].vip, 80), syn))
				list, _ := l.take(0)
				for _, p := range list {
					if s, _ := ends(&p.Tuple); taken[s] {
						t.Fatalf("killed %t: port %s is given again", killed, s)
					}
					free++
				}
			}
			if free == 0 {
				t.Error("no port is free")
			}
			l.start(1, 1, true)
			l.settle(time.Second)
			if n := l.gateways[0].table.HeldPorts(); n != 0 {
				t.Errorf("killed %t: %d ports are held when all are in step, at member %d copies", killed, n,
					l.gateways[1].table.CopiesOf(1))
			}
			for _, g := range l.gateways {
				if err := g.table.Validate(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestManyChanges: if more flows change at once than a worker's ring of changes has room for, a
// member is told of all of them, in several steps, and of no others.
func TestManyChanges(t *testing.T) {
	const flows, changed = 40_000, 10_000
	f := benchGateway(t, 0)
	woken := false
	f.wake = func() { woken = true }
	l := f.Ledger()
	l.Connected(0)
	w, err := f.table.Register()
	if err != nil {
		t.Fatal(err)
	}
	told := func(what string, want int) {
		t.Helper()
		w.Leave()
		got, seq := map[uint32]bool{}, uint64(0)
		for more := true; more; {
			woken = false
			f.Step()
			more = woken
			for {
				messages := l.Send(0, f.Read, nil, 1024)
				if len(messages) == 0 {
					break
				}
				for _, m := range messages {
					if m.Kind == group.Set {
						got[m.Slot] = true
					}
				}
				seq = messages[len(messages)-1].Seq
				l.Applied(0, seq, nil)
			}
			f.rest()
		}
		if len(got) != want {
			t.Errorf("%s: told of %d flows, want %d", what, len(got), want)
		}
	}
	var refs []flowtable.Ref
	w.Enter(f.now())
	for n := range uint32(flows) {
		client, reply := benchTuples(0, n)
		r, s := w.Create(f.now(), &flowtable.NewFlow{Client: client, Backend: reply.Src, BackendPort: 8080,
			Source: reply.Dst, SourcePort: reply.DstPort, Tracked: true})
		if s != flowtable.Created {
			t.Fatal(s)
		}
		w.Observe(r, flowtable.ReplySide, flowtable.Segment{Flags: header.TCPSYN | header.TCPACK}, f.now())
		refs = append(refs, r)
	}
	told("made", flows)
	w.Enter(f.now())
	for n := range uint32(changed) {
		w.Observe(refs[n*flows/changed], flowtable.ClientSide, flowtable.Segment{Flags: header.TCPACK, Ack: 1}, f.now())
	}
	told("changed", changed)
}

// TestPortsShort: a flow whose port is short gets the port of one that is over, as soon as the
// other gateway has acknowledged the end. If that one is away, flows that it may have copies of do
// not end, and others do.
func TestPortsShort(t *testing.T) {
	inLab(t, 2, func(l *lab) {
		l.ports = 1
		l.open(l.gateways[0], 0)
		over := func(port int) *connection {
			c := newConnection(families[0], port)
			c.establish(l, 0)
			c.close(l, 0)
			l.settle(time.Second)
			return c
		}
		syns := func(port int) (sent bool) {
			l.send(0, headertest.TCP(join(families[0].client, port), join(families[0].vip, 80), syn))
			list, _ := l.take(0)
			return len(list) == 1
		}
		over(1000)
		if syns(2000) {
			t.Error("a flow gets the port of a flow that the other gateway has a copy of")
		}
		l.settle(0)
		c := over(2000)
		l.kill(1)
		l.settle(time.Second)
		for range 3 {
			if syns(3000) {
				t.Error("a flow gets a port of which a gateway that is away has a copy")
			}
			l.settle(10 * time.Millisecond)
		}
		if s := l.state(0, c); s == flowtable.None {
			t.Error("a flow ends for its port, which stays held")
		}
		l.ports = 2
		l.open(l.gateways[0], 0)
		over(4000)
		if syns(5000) {
			t.Error("a flow gets a port that is not released")
		}
		l.settle(0)
		if !syns(5000) || l.state(0, c) == flowtable.None {
			t.Errorf("a flow of which no gateway has a copy keeps its port: %s", l.drops(0))
		}
	})
}

// udp asks by a gateway, and reports whether the question leaves, and then from where.
func (c *connection) udp(l *lab, id int) (source string, sent bool) {
	l.send(id, headertest.UDP(c.client, c.vip, "question"))
	list, _ := l.take(id)
	if len(list) != 1 {
		return "", false
	}
	source, c.backend = ends(&list[0].Tuple)
	return source, true
}

// TestAnswerAfterACopy: a client's last question passes another gateway, by its copy. The flow's
// gateway does not see it, and ends the flow because ports are short. Another client does not get
// the port while the backend may answer the first one, and gets it later. If no question has passed
// the other gateway, another client gets the port at once.
func TestAnswerAfterACopy(t *testing.T) {
	type question struct {
		by    int
		after time.Duration
	}
	for _, c := range []struct {
		name      string
		questions []question // all but the last one are answered
		late      time.Duration
		at        []time.Duration // when another client asks
	}{
		{"one of two", []question{{0, 0}, {1, 2 * time.Second}}, 4 * time.Second, []time.Duration{time.Second}},
		{"one of three", []question{{0, 0}, {1, 100 * time.Millisecond}, {1, 7900 * time.Millisecond}},
			12 * time.Second, []time.Duration{200 * time.Millisecond, 10300 * time.Millisecond}},
	} {
		for _, f := range families {
			inLab(t, 2, func(l *lab) {
				l.ports = 1
				l.open(l.gateways[0], 0)
				first, other := newConnection(f, 1000), newConnection(f, 2000)
				source := ""
				for i, q := range c.questions {
					l.settle(q.after)
					from, sent := first.udp(l, q.by)
					if !sent || i > 0 && from != source {
						t.Fatalf("%s: question %d leaves from %s, want %s: %s", c.name, i, from, source, l.drops(q.by))
					}
					l.settle(0) // gateway 0 learns of a change of the copy
					if source = from; i < len(c.questions)-1 {
						answer := headertest.UDP(first.backend, source, "answer")
						first.passes(l, 0, "the answer", answer, first.vip, first.client)
					}
				}
				asked := time.Now()
				for _, at := range c.at {
					l.settle(at - time.Since(asked))
					other.udp(l, 0)
				}
				l.settle(c.late - time.Since(asked))
				l.send(0, headertest.UDP(first.backend, source, "late answer"))
				list, _ := l.take(0)
				for i := range list {
					if _, dst := ends(&list[i].Tuple); dst != first.client {
						t.Errorf("%s: the answer for %s reaches %s", c.name, first.client, dst)
					}
				}
				later := false
				for range 4 {
					l.settle(11 * time.Second)
					from, sent := other.udp(l, 0)
					later = later || sent && from == source
				}
				if !later {
					t.Errorf("%s: later another client does not get the port: %s", c.name, l.drops(0))
				}
			})
		}
	}
	inLab(t, 2, func(l *lab) {
		l.ports = 1
		l.open(l.gateways[0], 0)
		first, other := newConnection(families[0], 1000), newConnection(families[0], 2000)
		source, _ := first.udp(l, 0)
		answer := headertest.UDP(first.backend, source, "answer")
		first.passes(l, 0, "the answer", answer, first.vip, first.client)
		l.settle(1200 * time.Millisecond)
		if _, sent := other.udp(l, 0); sent {
			t.Error("another client gets the port of a flow that the other gateway has a copy of")
		}
		l.settle(0)
		if from, sent := other.udp(l, 0); !sent || from != source {
			t.Errorf("another client asks again: from %s, want %s: %s", from, source, l.drops(0))
		}
	})
}

// TestTakenBack: a gateway that lost its memory gets its flows back.
func TestTakenBack(t *testing.T) {
	inLab(t, 3, func(l *lab) {
		c := newConnection(families[1], 1000)
		c.establish(l, 0)
		l.settle(0)
		l.kill(0)
		l.lose(0)
		l.start(0, 2, false)
		l.settle(time.Second)
		c.works(l, 0)
		if !l.gateways[0].Ledger().Complete() {
			t.Error("the gateway has not reached all")
		}
	})
}

// TestReturnedAfterItsEnd: a member returns a flow that has just ended here, by a segment or by its
// timeout, so its tuple is in use and the Ledger may not know the end yet. The port is held then.
func TestReturnedAfterItsEnd(t *testing.T) {
	for _, expired := range []bool{false, true} {
		inLab(t, 2, func(l *lab) {
			c := newConnection(families[0], 1000)
			c.establish(l, 0)
			l.settle(0)
			p := headertest.TCP(c.backend, c.source, ack)
			reply := header.Tuple{Src: header.AddrFrom(p.Src), SrcPort: p.SrcPort, Dst: header.AddrFrom(p.Dst),
				DstPort: p.DstPort, Proto: header.ProtoTCP}
			g := l.gateways[0]
			g.x.Do(func() {
				g.enter()
				if expired {
					time.Sleep(2 * idle)
					g.rest()
				} else {
					g.handle.Delete(g.find(&reply, flowtable.ReplySide))
				}
				slot, live := g.Find(reply)
				if live || !g.ledger.TakeBack(0, slot, live, reply) || !g.ledger.Held(reply) {
					t.Errorf("expired %t: live %t, held %t", expired, live, g.ledger.Held(reply))
				}
			})
		})
	}
}

// state returns the state of a connection's flow at a gateway.
func (l *lab) state(id int, c *connection) (s flowtable.State) {
	l.at(id, c, func(h *flowtable.Handle, r flowtable.Ref) { s = h.Flow(r).State() })
	return s
}

// at calls do with a connection's flow at a gateway, if there is one.
func (l *lab) at(id int, c *connection, do func(h *flowtable.Handle, r flowtable.Ref)) {
	p := headertest.TCP(c.client, c.vip, ack)
	t := header.Tuple{Src: header.AddrFrom(p.Src), SrcPort: p.SrcPort, Dst: header.AddrFrom(p.Dst),
		DstPort: p.DstPort, Proto: header.ProtoTCP, V6: p.Src.Is6()}
	g := l.gateways[id]
	g.x.Do(func() {
		g.enter()
		if r := g.find(&t, flowtable.ClientSide); r != 0 {
			do(g.handle, r)
		}
	})
}

// TestLateSighting: the owner learns which packets passed another gateway while the two were not
// connected (the proof of a handshake, the ends of a connection, an RST, and data after an RST),
// although the records of its flows take several frames.
func TestLateSighting(t *testing.T) {
	lateSighting := func(killed bool) func(*testing.T) {
		return func(t *testing.T) {
			l := newLab(t, 2, flowtable.DefaultTimeouts().Established)
			for id := range l.gateways {
				l.resize(id, 16_384)
			}
			l.settle(time.Second)
			young, reset, alive := newConnection(families[0], 1000), newConnection(families[0], 1001),
				newConnection(families[0], 1002)
			half, closed := newConnection(families[0], 1003), newConnection(families[0], 1004)
			for _, c := range []*connection{reset, alive, half, closed} {
				c.establish(l, 0)
			}
			half.passes(l, 0, "the backend's FIN", headertest.TCP(half.backend, half.source, fin|ack), half.vip,
				half.client)
			l.send(0, headertest.TCP(alive.client, alive.vip, headertest.RST|ack))
			l.take(0)
			young.syn(l, 0)
			young.answer(l, 0)
			l.settle(0)
			l.take(0)
			l.fill(0, 8000)
			l.settle(time.Second)
			if killed {
				l.kill(0)
			}
			l.cut[0][1].Store(true)
			young.passes(l, 1, "the client's ACK", headertest.TCP(young.client, young.vip, ack), young.source,
				young.backend)
			l.send(1, headertest.TCP(reset.client, reset.vip, headertest.RST|ack))
			l.one(1, "an RST")
			data := headertest.TCP(alive.client, alive.vip, psh|ack)
			data.Payload = []byte("alive")
			alive.passes(l, 1, "data", data, alive.source, alive.backend)
			half.passes(l, 1, "the client's FIN", headertest.TCP(half.client, half.vip, fin|ack), half.source,
				half.backend)
			closed.close(l, 1)
			l.settle(400 * time.Millisecond)
			if s := l.state(0, young); !killed && s != flowtable.SynRecv {
				t.Errorf("while the network is cut, the flow is %v", s)
			}
			l.cut[0][1].Store(false)
			if killed {
				l.start(0, 1, true)
			}
			l.settle(time.Second)
			for _, c := range []*connection{young, reset, alive, half, closed} {
				want := flowtable.Established
				switch c {
				case half:
					want = flowtable.LastAckBackend
				case closed:
					want = flowtable.TimeWaitClient
				}
				for id := range l.gateways {
					var r group.Record
					l.at(id, c, func(h *flowtable.Handle, ref flowtable.Ref) { h.Record(ref, &r) })
					if r.State != want || r.Reset != (c == reset) {
						t.Errorf("after that, the flow of %s at gateway %d is %v, reset %t, want %v", c.client, id,
							r.State, r.Reset, want)
					}
				}
			}
			l.settle(40 * time.Second)
			young.works(l, 0)
		}
	}
	for _, killed := range []bool{false, true} {
		t.Run(fmt.Sprint("killed ", killed), func(t *testing.T) { synctest.Test(t, lateSighting(killed)) })
	}
}

// TestSightings: what passes another gateway counts for the owner: the proof of the handshake, and
// the ends of the connection.
func TestSightings(t *testing.T) {
	inLab(t, 2, func(l *lab) {
		for _, f := range families {
			c := newConnection(f, 1000)
			c.syn(l, 0)
			c.answer(l, 0)
			l.settle(0)
			l.one(0, "SYN-ACK")
			for _, step := range []struct {
				p    *headertest.Packet
				want flowtable.State
			}{
				{headertest.TCP(c.client, c.vip, ack), flowtable.Established},
				{headertest.TCP(c.client, c.vip, fin|ack), flowtable.FinClient},
				{headertest.TCP(c.backend, c.source, fin|ack), flowtable.LastAckClient},
				{headertest.TCP(c.client, c.vip, ack), flowtable.TimeWaitClient},
			} {
				l.send(1, step.p)
				l.take(1)
				l.settle(0)
				if s := l.state(0, c); s != step.want {
					t.Errorf("after %v by the other gateway, the owner's flow is %v, want %v", step.p, s, step.want)
				}
			}
		}
	})
}

// TestResetElsewhere: an RST that passes one gateway, and data after it that shows that the RST was
// forged, count at each gateway: the owner's flow ends when its connection has.
func TestResetElsewhere(t *testing.T) {
	const rst = headertest.RST
	for _, by := range []int{0, 1} {
		inLab(t, 2, func(l *lab) {
			for _, f := range families {
				for side := range flowtable.Side(2) {
					c := newConnection(f, 1000+int(side))
					c.establish(l, 0)
					l.settle(0)
					want := func(what string, want bool) {
						t.Helper()
						for id := range l.gateways {
							var r group.Record
							l.at(id, c, func(h *flowtable.Handle, ref flowtable.Ref) { h.Record(ref, &r) })
							if r.State != flowtable.Established || r.Reset != want || want && r.ResetBy != side {
								t.Errorf("%s by gateway %d: at gateway %d the flow is %v, reset %t by side %d", what,
									by, id, r.State, r.Reset, r.ResetBy)
							}
						}
					}
					send := func(flags uint8, payload string) {
						p := headertest.TCP(c.client, c.vip, flags)
						if side == flowtable.ReplySide {
							p = headertest.TCP(c.backend, c.source, flags)
						}
						p.Payload = []byte(payload)
						l.send(by, p)
						l.take(by)
						l.settle(0)
					}
					send(rst|ack, "")
					want("an RST", true)
					send(psh|ack, "alive")
					want("data", false)
					send(rst|ack, "")
					want("another RST", true)
					l.settle(2 * time.Second)
					c.works(l, 1-by)
					l.settle(0)
					want("data of both ends after an RST", false)
				}
			}
		})
	}
}

// close closes the connection by a gateway.
func (c *connection) close(l *lab, id int) {
	l.send(id, headertest.TCP(c.client, c.vip, fin|ack))
	l.send(id, headertest.TCP(c.backend, c.source, fin|ack))
	l.send(id, headertest.TCP(c.client, c.vip, ack))
	l.take(id)
}

// TestReopenedElsewhere: a client that has closed its connection opens another one from the same
// port, which passes another gateway. That one takes a port of its own address, and the flow in
// TIME_WAIT yields.
func TestReopenedElsewhere(t *testing.T) {
	inLab(t, 2, func(l *lab) {
		for _, f := range families {
			c := newConnection(f, 1000)
			c.establish(l, 0)
			l.settle(0)
			c.close(l, 0)
			l.settle(0)
			before := c.source
			c.establish(l, 1)
			if own := l.gateways[1]; !own.owns(c.source) || c.source == before {
				t.Errorf("the source is %s, and was %s", c.source, before)
			}
			l.settle(0)
			c.works(l, 0)
			c.works(l, 1)
		}
	})
}

// TestMovedElsewhere: a client opens another connection from the port of one whose endpoint is
// gone. Its SYNs pass another gateway than the flow's, which gives it another endpoint, and the
// flow yields. A connection that lives is not affected by forged SYNs: the backend answers them.
func TestMovedElsewhere(t *testing.T) {
	for n := range 4 {
		lives, owner := n%2 == 1, n/2
		by := 1 - owner
		inLab(t, 3, func(l *lab) {
			for _, f := range families {
				c := newConnection(f, 1000)
				c.establish(l, owner)
				l.settle(0)
				for _, g := range l.gateways {
					b := services.NewBuilder(g.services.Load())
					key := services.FrontendKey{Addr: addr(f.vip), Port: 80, Proto: header.ProtoTCP}
					old, _ := b.Settings().FrontendByKey(key)
					front, id := *old, old.Service.ID
					ref := services.MakeBackendRef(40+uint32(id), 1)
					b.DeleteBackend(old.Outside.Set.Backends[0])
					b.SetBackend(services.Backend{Addr: addr(f.second), Port: 8080, Proto: key.Proto, Service: id,
						Ref: ref, Flags: services.BackendServing | services.BackendReady})
					svc := *old.Service
					svc.Backends = []services.BackendRef{ref}
					front.Service, front.Outside = &svc, services.Rule{Set: &services.EndpointSet{
						Backends: svc.Backends, Table: []uint16{0, 0, 0}}}
					b.SetService(&svc)
					b.SetFrontend(&front)
					g.services.Store(b.Build())
				}
				next := newConnection(f, 1000)
				for _, pause := range []time.Duration{0, time.Second, 2 * time.Second} {
					l.settle(pause)
					next.syn(l, by)
					if lives { // RFC 5961 section 4
						c.passes(l, owner, "an ACK", headertest.TCP(c.backend, c.source, ack), c.vip, c.client)
					}
				}
				if next.backend != join(f.second, 8080) {
					t.Fatalf("the last SYN went to %s; drops %s", next.backend, l.drops(by))
				}
				next.answer(l, by)
				l.settle(0)
				list, _ := l.take(by)
				if want := 1; lives == (len(list) == want) {
					t.Errorf("the connection lives: %t; %d SYN-ACKs leave; drops %s", lives, len(list), l.drops(by))
				}
				l.settle(time.Second)
				if lives {
					next = c
				}
				for id := range l.gateways {
					next.works(l, id)
				}
			}
		})
	}
}

// ask sends a datagram by a gateway, and notes the gateway's choice.
func (c *connection) ask(l *lab, id int) {
	l.t.Helper()
	l.send(id, headertest.UDP(c.client, c.vip, "x"))
	p := l.one(id, "datagram")
	c.source, c.backend = ends(&p.Tuple)
}

// datagrams requires that a flow of UDP passes a gateway in both directions.
func (c *connection) datagrams(l *lab, id int) {
	l.t.Helper()
	c.passes(l, id, "a datagram of the client", headertest.UDP(c.client, c.vip, "x"), c.source, c.backend)
	c.passes(l, id, "a datagram of the backend", headertest.UDP(c.backend, c.source, "x"), c.vip, c.client)
}

// TestRefusedOnce: two gateways that were out of step have a flow of one client each, whose
// answers have left. When they are in step, each refuses the other's, and does not ask for it.
func TestRefusedOnce(t *testing.T) {
	inLab(t, 2, func(l *lab) {
		l.cut[0][1].Store(true)
		l.settle(10 * time.Second)
		for id := range l.gateways {
			c := newConnection(families[0], 1000)
			c.ask(l, id)
			c.passes(l, id, "the answer", headertest.UDP(c.backend, c.source, "x"), c.vip, c.client)
		}
		l.cut[0][1].Store(false)
		l.settle(10 * time.Second)
		told := 0
		for range 200 {
			l.settle(time.Millisecond)
			for _, g := range l.gateways {
				told += len(g.toResend)
			}
		}
		if in := l.gateways[0].copies[0].InStep() && l.gateways[1].copies[0].InStep(); !in || told > 0 {
			t.Errorf("in step %t; in 200 of 400 looks %d flows were to be told again", in, told)
		}
	})
}

// TestUsedElsewhere: the owner ends no flow that is in use at another gateway, however long no
// packet of it passes the owner.
func TestUsedElsewhere(t *testing.T) {
	inLab(t, 2, func(l *lab) {
		for _, f := range families {
			tcp, udp := newConnection(f, 1000), newConnection(f, 1001)
			tcp.establish(l, 0)
			l.send(0, headertest.UDP(udp.client, udp.vip, "x"))
			p := l.one(0, "datagram")
			udp.source, udp.backend = ends(&p.Tuple)
			udp.datagrams(l, 0)
			l.settle(0)
			for range 40 { // 400 s: UDPReplied is 300 s
				l.settle(idle / 3)
				tcp.works(l, 1)
				udp.datagrams(l, 1)
			}
			l.settle(2 * idle)
			if s := l.state(0, tcp); s != flowtable.None {
				t.Errorf("a connection that nothing uses is %v", s)
			}
		}
	})
}

// TestOwnerAwayForLong: a copy of a gateway that is away for long does not keep its client from
// another flow, at any gateway, when the flow may have ended elsewhere. Open connections go on.
func TestOwnerAwayForLong(t *testing.T) {
	inLab(t, 3, func(l *lab) {
		for _, f := range families {
			open, tcp, udp := newConnection(f, 1000), newConnection(f, 1001), newConnection(f, 1002)
			open.establish(l, 0)
			tcp.establish(l, 0)
			udp.ask(l, 0)
			udp.datagrams(l, 0)
			l.settle(0)
			l.kill(0)
			for id := range 2 {
				l.gateways[1+id].SetOwner(0, true, id == 0)
			}
			l.settle(10 * time.Second)
			udp.datagrams(l, 2) // it has not expired there
			for range 40 {
				l.settle(idle / 2)
				open.works(l, 1)
			}
			open.works(l, 2)
			for id := 2; id > 0; id-- {
				udp.ask(l, id)
				if !l.gateways[2].owns(udp.source) {
					t.Errorf("%s: the datagram by gateway %d leaves from %s", f.vip, id, udp.source)
				}
				udp.datagrams(l, id)
				l.settle(0)
			}
			tcp.establish(l, 2)
			if !l.gateways[2].owns(tcp.source) {
				t.Errorf("%s: the SYN leaves from %s", f.vip, tcp.source)
			}
			l.settle(0)
			tcp.works(l, 1)
			l.start(0, 1, true)
			for id := range 2 {
				l.gateways[1+id].SetOwner(0, false, false)
			}
			l.settle(time.Second)
		}
	})
}

// TestKilledForLong: connections go on when their gateway comes back after a time that is longer
// than their timeouts, also those whose handshake was proven meanwhile.
func TestKilledForLong(t *testing.T) {
	inLab(t, 2, func(l *lab) {
		old, young := newConnection(families[0], 1000), newConnection(families[1], 1001)
		old.establish(l, 0)
		young.syn(l, 0)
		young.answer(l, 0)
		l.settle(0)
		l.one(0, "SYN-ACK")
		l.kill(0)
		proof := headertest.TCP(young.client, young.vip, ack)
		young.passes(l, 1, "the client's ACK", proof, young.source, young.backend)
		for range 6 {
			l.settle(idle / 3)
			old.works(l, 1)
			young.works(l, 1)
		}
		l.start(0, 1, true)
		l.settle(10 * time.Second) // a sweep of the table takes five
		for id := range l.gateways {
			old.works(l, id)
			young.works(l, id)
		}
	})
}

// TestExpiredWhileKilled: connections that become idle for too long while their gateway is not
// running hold their ports, too.
func TestExpiredWhileKilled(t *testing.T) {
	inLab(t, 2, func(l *lab) {
		for port := range 10 {
			newConnection(families[port%2], 1000+port).establish(l, 0)
		}
		l.settle(0)
		l.kill(1)
		l.kill(0)
		time.Sleep(2 * idle)
		l.start(0, 1, true)
		l.settle(idle + 10*time.Second) // a sweep of the table takes five
		if n := l.gateways[0].table.HeldPorts(); n != 10 {
			t.Errorf("%d ports are held, want 10", n)
		}
		l.start(1, 1, true)
		l.settle(time.Second)
		if n := l.gateways[0].table.HeldPorts(); n != 0 {
			t.Errorf("%d ports are held when all are in step", n)
		}
	})
}

// TestHandshakeAgain: a handshake that begins again on an open connection must be proven again. A
// copy that was proven in the handshake before says nothing about it.
func TestHandshakeAgain(t *testing.T) {
	inLab(t, 2, func(l *lab) {
		for _, f := range families {
			c := newConnection(f, 1000)
			c.establish(l, 0)
			l.settle(0)
			c.works(l, 1)
			again := headertest.TCP(c.client, c.vip, syn)
			again.Seq += 100_000
			c.passes(l, 0, "a SYN on the open connection", again, c.source, c.backend)
			answer := headertest.TCP(c.backend, c.source, syn|ack)
			answer.Seq, answer.Ack = answer.Seq+100_000, again.Seq+1
			c.passes(l, 0, "a SYN-ACK of a backend that has lost the connection", answer, c.vip, c.client)
			l.settle(time.Second)
			for id := range l.gateways {
				if s := l.state(id, c); s != flowtable.SynRecv {
					t.Errorf("without a proof, the flow is %v at gateway %d", s, id)
				}
			}
		}
	})
}

// TestEndpointNotKnownYet: another gateway forwards datagrams by its copy, also if its table of
// Services is older than the owner's and lacks the endpoint.
func TestEndpointNotKnownYet(t *testing.T) {
	inLab(t, 2, func(l *lab) {
		for _, f := range families {
			c := newConnection(f, 1000)
			l.send(0, headertest.UDP(c.client, c.vip, "x"))
			p := l.one(0, "datagram")
			c.source, c.backend = ends(&p.Tuple)
			c.datagrams(l, 0)
			l.settle(0)
			newer := l.gateways[1].services.Load()
			b := services.NewBuilder(newer)
			front, _ := newer.FrontendByKey(services.FrontendKey{Addr: addr(f.vip), Port: 80, Proto: header.ProtoUDP})
			b.DeleteBackend(front.Outside.Set.Backends[0])
			older := b.Build()
			l.gateways[1].services.Store(older)
			c.datagrams(l, 1)
			l.gateways[1].services.Store(newer)
			c.datagrams(l, 1)

			// An endpoint that is still unknown after learnWait is gone.
			again := newConnection(f, 2000)
			l.send(0, headertest.UDP(again.client, again.vip, "x"))
			p = l.one(0, "datagram")
			again.source, again.backend = ends(&p.Tuple)
			again.datagrams(l, 0)
			l.gateways[1].services.Store(older)
			l.settle(11 * time.Second)
			l.send(1, headertest.UDP(again.client, again.vip, "x"))
			if list, _ := l.take(1); len(list) > 0 && list[0].Tuple.Proto == header.ProtoUDP {
				t.Errorf("%s: the datagram leaves to %v", f.vip, &list[0].Tuple)
			}
			l.gateways[1].services.Store(newer)
		}
	})
}

// TestFrontendChangedElsewhere: a datagram on a copy whose endpoint this gateway does not know
// makes another flow, if the frontend has got another Service or its backends read another form
// since the flow came here, or if the flow may be old.
func TestFrontendChangedElsewhere(t *testing.T) {
	for _, change := range []string{"another Service", "another form", "memory lost"} {
		inLab(t, 2, func(l *lab) {
			for _, f := range families {
				c := newConnection(f, 1000)
				c.ask(l, 0)
				c.datagrams(l, 0)
				l.settle(0)
				before := l.services.Load()
				b := services.NewBuilder(before)
				key := services.FrontendKey{Addr: addr(f.vip), Port: 80, Proto: header.ProtoUDP}
				old, _ := before.FrontendByKey(key)
				b.DeleteBackend(old.Outside.Set.Backends[0])
				lacks := b.Build()
				l.gateways[1].services.Store(lacks)
				switch front, svc := *old, *old.Service; change {
				case "memory lost":
					l.kill(1)
					l.lose(1)
					l.services.Store(lacks)
					l.start(1, 2, false)
					l.services.Store(before)
					l.settle(time.Second)
				case "another Service":
					c.datagrams(l, 1) // not learned yet
					svc.ID += 100
					fallthrough
				case "another form":
					svc.ProxyProtocol = change == "another form"
					front.Service = &svc
					b = services.NewBuilder(lacks)
					b.SetService(&svc)
					b.SetFrontend(&front)
					l.gateways[1].services.Store(b.Build())
				}
				l.send(1, headertest.UDP(c.client, c.vip, "x"))
				list, _ := l.take(1)
				for i := range list {
					if _, to := ends(&list[i].Tuple); to == c.backend {
						t.Errorf("%s, %s: the datagram leaves to the endpoint of before", change, f.vip)
					}
				}
			}
		})
	}
}

package fastpath_test

import (
	"encoding/binary"
	"testing"
	"time"

	"sluice.dev/sluice/nat/header/headertest"
)

// forger makes segments for the direct Service from forged addresses, each of another connection.
type forger struct {
	frame []byte
	n     uint32
}

func newForger(flags uint8) *forger {
	return &forger{frame: headertest.TCP("101.0.0.1:40000", join(vip4, 80), flags).Bytes()}
}

// packet returns the next segment, with a good checksum: the port compensates the address.
func (f *forger) packet() []byte {
	const sum = 1 + 40000 // of the last bytes of the address and the port
	if f.n++; f.n == sum {
		f.n++ // not port 0
	}
	binary.BigEndian.PutUint16(f.frame[28:], uint16(f.n))
	binary.BigEndian.PutUint16(f.frame[34:], uint16((2*65535+sum-f.n)%65535))
	headertest.SealIPv4(f.frame)
	return f.frame
}

// flood sends n segments, and returns how many left.
func (l *lab) flood(f *forger, n int) (sent int) {
	l.t.Helper()
	g, buf := l.workers[0], make([]byte, 0, 2048)
	for i := range n {
		if !g.nic.Inject(f.packet()) {
			l.t.Fatal("the link took no more packets")
		}
		if i%16 == 15 || i == n-1 {
			l.step(160 * time.Microsecond)
			for {
				frame, ok := g.nic.Take(buf)
				if !ok {
					break
				}
				if len(frame) > 100 { // in a tunnel
					sent++
				}
			}
		}
	}
	return sent
}

// TestForgedSegmentsLeaveRoom: segments of connections that do not exist, to a direct Service, fill
// the table. They end no handshake of another Service and no UDP flow whose reply is under way, and
// are forwarded, because the node knows whether the connection exists.
func TestForgedSegmentsLeaveRoom(t *testing.T) {
	for name, flags := range map[string][]uint8{
		"ACK": {headertest.ACK}, "SYN and ACK": {headertest.SYN, headertest.ACK},
		"FIN": {headertest.FIN | headertest.ACK},
	} {
		t.Run(name, func(t *testing.T) {
			l := tunnelLab(t, labConfig{flows: 4096}, node1)
			forge := func(from uint32, n int) {
				t.Helper()
				for _, flags := range flags {
					f := newForger(flags)
					if f.n = from; l.flood(f, n) != n {
						t.Fatalf("%d forged segments were not all forwarded: %v", n, l.drops())
					}
				}
			}
			forge(0, 12_000)
			if n := l.table.Counts().Live[0]; n < 4000 {
				t.Fatalf("%d flows; the table is not full", n)
			}
			for i := range uint32(20) {
				client := join(client4, uint16(40000+i))
				g := l.workers[0]
				l.send(0, headertest.TCP(client, join(keepVIP, 80), headertest.SYN))
				_, toBackend := l.out(g.nic)
				src, dst := ends(&toBackend.Tuple)
				l.step(1500 * time.Millisecond)
				forge(20_000+1000*i, 400)
				l.send(0, headertest.TCP(dst.String(), src.String(), headertest.SYN|headertest.ACK))
				_, toClient := l.out(g.nic)
				l.wantTuple(&toClient, join(keepVIP, 80), client)
				forge(50_000+1000*i, 400)
				l.send(0, headertest.TCP(client, join(keepVIP, 80), headertest.ACK))
				_, toBackend = l.out(g.nic)
				l.wantTuple(&toBackend, "", dst.String())
			}
			if d := l.drops(); len(d) > 0 {
				t.Errorf("drops: %v", d)
			}
		})
	}
}

// TestTunnelWithoutRoom: segments that find no room in the table, or no room among half-open flows,
// reach the node that they would reach with a flow.
func TestTunnelWithoutRoom(t *testing.T) {
	all := []string{node1, node2, node3}
	with := tunnelLab(t, labConfig{}, all...)
	without := tunnelLab(t, labConfig{flows: 64, halfOpen: 8}, all...)
	for i := range 300 {
		for _, flags := range []uint8{headertest.SYN, headertest.ACK} {
			p := headertest.TCP(join(client4, uint16(40000+i)), join(vip4, 80), flags)
			_, want := with.toNode(p)
			if _, got := without.toNode(p); got != want {
				t.Fatalf("flow %d: %s, with a flow %s", i, got, want)
			}
		}
	}
	if d := without.drops(); len(d) > 0 {
		t.Errorf("drops: %v", d)
	}
}

// TestTunnelTakeover: more connections than a step may open flows for continue at once, and none of
// their packets waits behind a flood of SYNs.
func TestTunnelTakeover(t *testing.T) {
	l := tunnelLab(t, labConfig{}, node1)
	g, f := l.workers[0], newForger(headertest.ACK)
	for range 200 {
		g.nic.Inject(f.packet())
	}
	l.step(time.Microsecond)
	n := 0
	for {
		if _, ok := g.nic.Take(nil); !ok {
			break
		}
		n++
	}
	if n != 200 {
		t.Errorf("%d of 200 segments left in the first step; drops %v", n, l.drops())
	}
}

// TestTunnelSegmentsWithoutFlow: a segment that opens no connection and is none of an open one
// makes no flow, and reaches the node: an RST, a damaged segment, a fragment.
func TestTunnelSegmentsWithoutFlow(t *testing.T) {
	l := tunnelLab(t, labConfig{}, node1)
	for _, flags := range []uint8{headertest.RST, headertest.RST | headertest.ACK, headertest.SYN | headertest.ACK} {
		l.toNode(headertest.TCP(join(client4, 40000), join(vip4, 80), flags))
	}
	damaged := headertest.TCP(join(client4, 40001), join(vip4, 80), headertest.ACK).Bytes()
	damaged[len(damaged)-3] ^= 1
	if !l.workers[0].nic.Inject(damaged) {
		t.Fatal("the link took no more packets")
	}
	l.step(time.Microsecond)
	if frame, ok := l.workers[0].nic.Take(nil); !ok || len(frame) < 100 {
		t.Errorf("sent %x, %v", frame, l.drops())
	}
	if n := l.table.Counts().Live; n != [2]uint64{} {
		t.Errorf("%d flows", n)
	}
	if d := l.drops(); len(d) != 0 {
		t.Errorf("drops: %v", d)
	}
}

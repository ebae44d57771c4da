//go:build root

package e2e

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/ipv4"

	"sluice.dev/sluice/bench/topo"
	"sluice.dev/sluice/control/status"
)

// numbered sends numbered datagrams to a VIP and expects each one's echo. Without a rate so few are
// under way at once (a veth has room for 256, a socket for 270) that no queue on the way overflows:
// one that is missing was lost by the gateway. With a rate they are sent by the clock, whether or
// not others are answered.
type numbered struct {
	rate int // a second; 0: a number under way
	conn net.PacketConn
	to   net.Addr
	// sent counts those sent, answered those that came back at least once.
	sent, answered atomic.Uint64
	repeated       uint64
	err            error
	stop           atomic.Bool
	done           chan struct{}
}

const (
	underWay      = 100
	datagramBytes = 64
)

func (l *lab) number(h *topo.Host, from netip.Addr, to netip.AddrPort) *numbered {
	l.t.Helper()
	return l.numberAt(0, h, from, to)
}

// numberAt is number with a rate.
func (l *lab) numberAt(rate int, h *topo.Host, from netip.Addr, to netip.AddrPort) *numbered {
	l.t.Helper()
	conn, err := h.ListenPacket("udp", netip.AddrPortFrom(from, 0).String())
	if err != nil {
		l.t.Fatal(err)
	}
	_ = conn.(*net.UDPConn).SetReadBuffer(8 << 20)
	n := &numbered{rate: rate, conn: conn, to: net.UDPAddrFromAddrPort(to), done: make(chan struct{})}
	l.t.Cleanup(func() { conn.Close() })
	go n.receive()
	if rate > 0 {
		go n.sendByClock()
	} else {
		go n.send()
	}
	return n
}

// sendByClock sends what is due each 0.2 ms, in one system call.
func (n *numbered) sendByClock() {
	const most = 256
	messages := make([]ipv4.Message, most)
	for i := range messages {
		messages[i] = ipv4.Message{Buffers: [][]byte{make([]byte, datagramBytes)}, Addr: n.to}
	}
	batch := ipv4.NewPacketConn(n.conn) // sendmmsg(2) is the same for both families
	for began := time.Now(); !n.stop.Load(); time.Sleep(200 * time.Microsecond) {
		sent := n.sent.Load()
		due := min(uint64(time.Since(began).Seconds()*float64(n.rate))-sent, most)
		for i := range due {
			binary.BigEndian.PutUint64(messages[i].Buffers[0], sent+i)
		}
		if due == 0 {
			continue
		}
		done, _ := batch.WriteBatch(messages[:due], 0)
		n.sent.Add(uint64(max(done, 0)))
	}
}

func (n *numbered) send() {
	var b [datagramBytes]byte
	for !n.stop.Load() {
		if n.sent.Load() >= n.answered.Load()+underWay {
			time.Sleep(50 * time.Microsecond)
			continue
		}
		binary.BigEndian.PutUint64(b[:], n.sent.Load())
		if _, err := n.conn.WriteTo(b[:], n.to); err == nil {
			n.sent.Add(1)
		}
	}
}

func (n *numbered) receive() {
	defer close(n.done)
	var b [2048]byte
	var seen []bool
	for {
		got, _, err := n.conn.ReadFrom(b[:])
		if err != nil {
			if !n.stop.Load() {
				n.err = err
			}
			return
		}
		number := binary.BigEndian.Uint64(b[max(0, got-datagramBytes):got]) // behind the name of the backend
		for uint64(len(seen)) <= number {
			seen = append(seen, make([]bool, 1<<16)...)
		}
		if seen[number] {
			n.repeated++
			continue
		}
		seen[number] = true
		n.answered.Add(1)
	}
}

// end waits for the answers that are under way, and returns how many never came.
func (n *numbered) end() (sent, lost, repeated uint64, err error) {
	n.stop.Store(true)
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if n.answered.Load() == n.sent.Load() {
			break
		}
	}
	_ = n.conn.SetReadDeadline(time.Now())
	<-n.done
	return n.sent.Load(), n.sent.Load() - n.answered.Load(), n.repeated, n.err
}

// TestTakeOver: one process after the other takes over from the one that runs, under established
// connections and numbered datagrams of both families: none is lost or comes twice, no connection
// breaks. The laws of the last process hold over all of them (lab.close).
func TestTakeOver(t *testing.T) {
	rounds, open := 3, 200
	if full() {
		rounds, open = 50, 1000
	}
	l := newLab(t, labConfig{Config: topo.Config{Backends: 3, Queues: 2}, options: handsOver,
		lasts: 10 * time.Minute})
	flows, err := l.Clients[0].OpenTCP(l.ctx, topo.FlowLoad{Targets: []netip.AddrPort{at(vip4, webPort),
		at(vip6, webPort)}, Flows: open, Interval: 100 * time.Millisecond, Timeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	client := l.Clients[0]
	loads := []*numbered{l.number(client, client.Addr4(), at(vip4, dnsPort)),
		l.number(client, client.Addr6(), at(vip6, dnsPort))}
	var gaps []time.Duration
	for round := range rounds {
		if err := l.gate.LaunchNext(); err != nil {
			t.Fatal(err)
		}
		if err := l.gate.TakenOver(l.ctx); err != nil {
			t.Fatalf("round %d: %v\n%s", round, err, l.gate.Log())
		}
		v, err := l.gate.Applied(l.ctx)
		if err != nil {
			t.Fatalf("round %d: %v\n%s", round, err, l.gate.Log())
		}
		if v.TakeOver == nil || v.TakeOver.At.IsZero() || v.TakeOver.Flows < uint64(open) {
			t.Fatalf("round %d: %+v\n%s", round, v.TakeOver, l.gate.Log())
		}
		if pid, err := status.PeerPID(l.gate.Socket()); pid != l.gate.PID() || err != nil {
			t.Fatalf("round %d: process %d listens on the status socket, %v: probes go by that", round, pid, err)
		}
		gap := time.Duration(v.TakeOver.GapMicros) * time.Microsecond
		if gaps = append(gaps, gap); gap > 5*time.Millisecond {
			_, parts, _ := strings.Cut(l.gate.Log()[strings.LastIndex(l.gate.Log(), "msg=\"taken over"):], "gap=")
			parts, _, _ = strings.Cut(parts, "\n")
			t.Logf("round %d: packets waited %s", round, parts)
		}
		for family, n := range loads {
			want := n.answered.Load() + 1000
			if err := topo.Until(l.ctx, 10*time.Second, 10*time.Millisecond, func(context.Context) error {
				if got := n.answered.Load(); got < want {
					return fmt.Errorf("%d datagrams answered, want %d", got, want)
				}
				return nil
			}); err != nil {
				t.Fatalf("round %d, load %d: %v\n%s", round, family, err, l.gate.Log())
			}
		}
	}
	slices.Sort(gaps)
	t.Logf("%d hand-overs: packets waited %v (median), %v (p99), %v (most)", rounds, gaps[len(gaps)/2],
		gaps[min(len(gaps)-1, len(gaps)*99/100)], gaps[len(gaps)-1])
	for family, n := range loads {
		sent, lost, repeated, err := n.end()
		t.Logf("load %d: %d numbered datagrams each way, %d lost, %d repeated", family, sent, lost, repeated)
		if lost > 0 || repeated > 0 || err != nil {
			t.Errorf("load %d: %d of %d lost, %d repeated, %v", family, lost, sent, repeated, err)
		}
	}
	l.handOver() // as before: what has been taken over can be left to a next process
	if err := l.gate.Start(l.ctx); err != nil {
		t.Fatal(err)
	}
	l.wantUnbroken(flows, open, fmt.Sprintf("%d hand-overs and a restart", rounds))
	l.handOverNoMore()
}

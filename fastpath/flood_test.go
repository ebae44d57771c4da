package fastpath_test

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/fastpath/stats"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
)

// serveWidely gives the TCP frontend of vip4 enough backends for as many flows as half-open ones
// are allowed.
func serveWidely(b *services.Builder) {
	set := &services.EndpointSet{}
	for i := range 8 {
		be := backend(uint32(40+i), 1, fmt.Sprintf("10.0.1.%d", 100+i), 8080, header.ProtoTCP)
		b.SetBackend(be)
		set.Backends = append(set.Backends, be.Ref)
		set.Table = append(set.Table, uint16(i))
	}
	b.SetFrontend(&services.Frontend{
		Key:     services.FrontendKey{Addr: addr(vip4), Port: 80, Proto: header.ProtoTCP},
		Service: &services.Service{ID: 1, Namespace: "default", Name: "svc"}, Outside: services.Rule{Set: set},
	})
}

// strangers makes SYNs of one client each.
type strangers struct {
	frame []byte
	next  uint32
}

func newStrangers() *strangers {
	return &strangers{frame: headertest.TCP("101.0.0.1:1024", join(vip4, 80), headertest.SYN).Bytes()}
}

func (s *strangers) packet() []byte {
	s.next++
	binary.BigEndian.PutUint32(s.frame[26:], 0x65000000+s.next/50_000)
	binary.BigEndian.PutUint16(s.frame[34:], uint16(1024+s.next%50_000))
	headertest.SealIPv4(s.frame)
	return s.frame
}

// load is what a worker is offered: packets of known flows among others.
type load struct {
	*lab
	known [][]byte
	taken int // of known
}

// offer gives the worker packets at a rate per nanosecond, one in share of them of the known flows
// and the others by other, for a time in which only the worker works. It returns how many of the
// known flows' packets came, and how many of them found no room in the receive ring.
func (l *load) offer(rate float64, share int, other func() []byte, d time.Duration) (came, lost int) {
	g, elapsed, sent := l.workers[0], time.Duration(0), 0
	for elapsed < d {
		for due := int(rate * float64(elapsed)); sent < due; sent++ {
			if sent%share != 0 {
				g.nic.Inject(other())
				continue
			}
			came++
			if !g.nic.Inject(l.packet()) {
				lost++
			}
		}
		elapsed += max(l.timed(), 2*time.Microsecond)
		g.nic.Loop()
	}
	return came, lost
}

// packet is one of the known flows', in turn.
func (l *load) packet() []byte {
	l.taken++
	return l.known[l.taken%len(l.known)]
}

// timed is a step and its time on the CPU.
func (l *load) timed() time.Duration {
	began := cpuTime()
	l.workers[0].Step(l.now)
	took := cpuTime() - began
	l.now += uint64(max(took, 2*time.Microsecond))
	return took
}

func cpuTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		panic(err) // every Linux has it
	}
	return time.Duration(t.Nano())
}

// knownRate is how many packets of known flows the worker forwards in a nanosecond.
func (l *load) knownRate() float64 {
	const rounds, batch = 200, 256
	var spent time.Duration
	for range rounds {
		for range batch {
			l.workers[0].nic.Inject(l.packet())
		}
		spent += l.timed()
		l.workers[0].nic.Loop()
	}
	return rounds * batch / float64(spent)
}

// TestEstablishedFirst: beside a flood of SYNs at a seventh of the rate at which a worker forwards
// packets of known flows, which is several times what it can open flows at, established
// connections lose no more packets, but for one in a hundred, than beside packets of known flows at
// that rate. None is evicted, and none of their packets is dropped.
func TestEstablishedFirst(t *testing.T) {
	const flows, share = 500, 8
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	l := &load{lab: newLab(t, labConfig{flows: 1 << 17, frames: 8192, ring: 2048, edit: serveWidely,
		snat: services.PortRange{First: 2000, Count: 60_000}})}
	l.validate = false
	for n := range flows {
		client := join(client4, uint16(1024+n))
		l.stands(0, header.ProtoTCP, client, join(vip4, 80))
		p := headertest.TCP(client, join(vip4, 80), headertest.ACK)
		p.Seq, p.Ack = 0x01020305, 1002
		l.known = append(l.known, p.Bytes())
	}
	g := l.workers[0]
	syns := newStrangers()
	// Other processes make either side slower, and the CPU is not always as fast.
	const long, tries = 200 * time.Millisecond, 20
	percent := func(lost, came int) float64 { return 100 * float64(lost) / float64(came) }
	var rate float64
	var came, lost, flooded, lostFlooded int
	for range tries {
		rate = l.knownRate() / 7
		came, lost = l.offer(rate, share, l.packet, long)
		flooded, lostFlooded = l.offer(rate, share, syns.packet, long)
		if percent(lostFlooded, flooded) <= percent(lost, came)+1 {
			break
		}
	}
	l.step(time.Second) // publishes all counters
	t.Logf("%.2f M packets/s, one in %d of %d established connections; lost of these: %d of %d (%.2f %%) "+
		"beside packets of known flows, %d of %d (%.2f %%) beside %d SYNs; %d flows opened; drops %v", rate*1000, share,
		flows, lost, came, percent(lost, came), lostFlooded, flooded, percent(lostFlooded, flooded), syns.next,
		g.stats.FlowsCreated.Load(), l.drops())
	if percent(lostFlooded, flooded) > percent(lost, came)+1 {
		t.Error("established connections lose more beside SYNs")
	}
	for n := range flows {
		tuple := header.Tuple{Src: addr(client4), Dst: addr(vip4), SrcPort: uint16(1024 + n), DstPort: 80,
			Proto: header.ProtoTCP}
		if ref, _ := g.Lookup(&tuple, l.now); ref == 0 {
			t.Fatalf("established connection %d was evicted", n)
		}
	}
	for name := range l.drops() { // which packets of established connections cannot have
		if name != stats.NewFlowDisplaced.String() && name != stats.HalfOpenLimit.String() {
			t.Errorf("packets were dropped as %s", name)
		}
	}
}

// TestHonestHandshakesBesideSYNs: the half-open cap of the default table holds 40,000 SYNs a second
// for four seconds. At that rate, in bursts of ten milliseconds, honest clients a tenth of a second
// away complete their handshakes, 99 in 100 with one repetition at most.
func TestHonestHandshakesBesideSYNs(t *testing.T) {
	const (
		halfOpen, perBurst, burst = 163_840, 400, 10 * time.Millisecond
		bursts, away              = 600, 10 // a handshake ends ten bursts after its SYN
	)
	l := newLab(t, labConfig{flows: 8 * halfOpen, halfOpen: halfOpen, frames: 8192, ring: 2048, edit: serveWidely,
		snat: services.PortRange{First: 2000, Count: 60_000}})
	l.workers[0].nic.Loop()
	g, syns := l.workers[0], newStrangers()
	type handshake struct {
		client   string
		src, dst string // as its SYN left
	}
	var begun []handshake
	first, second, failed := 0, 0, 0
	begin := func(client string) (h handshake, ok bool) {
		l.inject(headertest.TCP(client, join(vip4, 80), headertest.SYN))
		for range 20 {
			l.step(20 * time.Microsecond)
		}
		for {
			frame, more := g.nic.Take(nil)
			if !more {
				return h, ok
			}
			var p header.Packet
			header.Parse(frame, &p)
			src, dst := ends(&p.Tuple)
			ref, _ := g.Lookup(&header.Tuple{Src: p.Tuple.Dst, Dst: p.Tuple.Src, SrcPort: p.Tuple.DstPort,
				DstPort: p.Tuple.SrcPort, Proto: header.ProtoTCP}, l.now)
			if ref != 0 && g.ClientOf(ref) == client {
				h, ok = handshake{client, src.String(), dst.String()}, true
			}
		}
	}
	end := func(h handshake) bool {
		p := headertest.TCP(h.dst, h.src, headertest.SYN|headertest.ACK)
		p.Seq, p.Ack = 1000, 0x01020305
		l.send(0, p)
		frame, ok := g.nic.Take(nil)
		if !ok {
			return false
		}
		var q header.Packet
		header.Parse(frame, &q)
		_, dst := ends(&q.Tuple)
		return dst.String() == h.client
	}
	for n := range bursts {
		for range perBurst {
			if !g.nic.Inject(syns.packet()) {
				t.Fatal("the link took no more packets")
			}
		}
		client := join(client4, uint16(1024+n))
		h, ok := begin(client)
		if ok {
			first++
		} else if h, ok = begin(client); ok {
			second++
		} else {
			failed++
		}
		begun = append(begun, h)
		if n >= away {
			if h := begun[n-away]; h.client != "" && !end(h) {
				failed++
			}
		}
		l.step(burst - 400*time.Microsecond)
		g.nic.Loop()
	}
	t.Logf("%d SYNs, 40,000 a second; of %d honest handshakes %d by the first SYN, %d by the "+
		"second, %d failed; drops %v", syns.next, bursts, first, second, failed, l.drops())
	if failed > bursts/100 {
		t.Errorf("%d of %d honest handshakes failed", failed, bursts)
	}
}

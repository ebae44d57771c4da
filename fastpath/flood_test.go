package fastpath_test

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/nat/reason"
	"sluice.dev/sluice/test/bed/size"
)

// serveWidely gives the TCP frontend of vip4 enough backends for the maximum number of half-open
// flows.
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

// strangers makes SYNs, each from another client.
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

// load offers packets to a worker: packets of known flows among others.
type load struct {
	*lab
	known [][]byte
	taken int // number of packets taken from known
}

// offer gives the worker packets at a rate per nanosecond for a duration of the worker's own time.
// One in share packets is of a known flow; other makes the others. It returns how many packets of
// known flows arrived, and how many of them found no room in the receive ring.
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

// packet returns a packet of the next known flow.
func (l *load) packet() []byte {
	l.taken++
	return l.known[l.taken%len(l.known)]
}

// timed runs a step and returns its time on the CPU.
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

// knownRate returns how many packets of known flows the worker forwards in a nanosecond.
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

// TestEstablishedFirst offers a flood of SYNs at a seventh of the rate at which a worker forwards
// packets of known flows, which is several times the rate at which it can open flows. Established
// connections then lose no more packets than during an equal load of packets of known flows, within
// one percent. No connection is evicted, and the worker drops none of their packets.
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
	// Other processes slow down either measurement, and the CPU's speed varies, so several tries
	// are allowed.
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
	for name := range l.drops() { // only reasons that packets of established connections cannot have are allowed
		if name != reason.NewFlowDisplaced.String() && name != reason.HalfOpenLimit.String() {
			t.Errorf("packets were dropped as %s", name)
		}
	}
}

// TestHonestHandshakesBesideSYNs: the half-open limit of the default table is enough for 40,000
// SYNs a second for four seconds. At that rate, in bursts of ten milliseconds, honest clients with
// a round trip of a tenth of a second complete their handshakes, 99 in 100 with at most one
// repetition.
func TestHonestHandshakesBesideSYNs(t *testing.T) {
	const (
		halfOpen, perBurst, burst = 163_840, 400, 10 * time.Millisecond
		away                      = 10 // bursts from the SYN of a handshake to its end
	)
	bursts := 600
	if size.Race {
		bursts = 150
	}
	l := newLab(t, labConfig{flows: 8 * halfOpen, halfOpen: halfOpen, frames: 8192, ring: 2048, edit: serveWidely,
		snat: services.PortRange{First: 2000, Count: 60_000}})
	l.workers[0].nic.Loop()
	g, syns := l.workers[0], newStrangers()
	type handshake struct {
		client   string
		src, dst string // of its translated SYN
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

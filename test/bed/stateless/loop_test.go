package stateless

import (
	"encoding/binary"
	"testing"
	"time"

	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/test/bed/memlink"
)

// memQueues are the two loops over links without a kernel.
func memQueues(traffic Traffic) (*txQueue, *rxQueue) {
	const frames, size = 512, 4096
	traffic.DestinationMAC, traffic.SourceMAC = make([]byte, 6), make([]byte, 6)
	traffic.setDefaults()
	queue := func() ([]byte, *fastpath.Pool, *memlink.Link) {
		mem := make([]byte, frames*size)
		return mem, fastpath.NewPool(frames, size), memlink.New(mem, size, frames/2)
	}
	tx, rx := &txQueue{frameSize: size}, &rxQueue{}
	tx.mem, tx.pool, tx.link = func() ([]byte, *fastpath.Pool, fastpath.Link) { m, p, l := queue(); return m, p, l }()
	tx.begin(newWriter(&traffic, 5, 0, 1), 64)
	rx.mem, rx.pool, rx.link = func() ([]byte, *fastpath.Pool, fastpath.Link) { m, p, l := queue(); return m, p, l }()
	rx.judge = newJudge(newLayout(&traffic, len(traffic.VLANs)), traffic.Flows)
	rx.judge.begin(5)
	rx.link.Refill(rx.pool)
	return tx, rx
}

func TestLoopsDoNotAllocate(t *testing.T) {
	for name, traffic := range everyTraffic() {
		tx, rx := memQueues(traffic)
		buffer := make([]byte, 0, maxFrameBytes)
		now, sent := uint64(0), 0
		pass := func() {
			now += 1_000_000
			sent += tx.burst(now, 64)
			for {
				packet, ok := tx.link.(*memlink.Link).Take(buffer)
				if !ok {
					break
				}
				rx.link.(*memlink.Link).Inject(packet)
			}
			for i := 0; i < len(rx.mem); i += 4096 { // what the program writes before packets
				binary.LittleEndian.PutUint64(rx.mem[i+248:], now+2000)
			}
			for rx.step() > 0 {
			}
		}
		pass()
		if n := testing.AllocsPerRun(20, pass); n != 0 {
			t.Errorf("%s: %g allocations per burst", name, n)
		}
		c := &rx.judge.count
		if sent < 22*64 || c.Packets != uint64(sent) || c.Damaged+c.Foreign+c.Duplicates+c.Reordered+c.Moved+
			c.Renamed != 0 {
			t.Errorf("%s: sent %d, %+v", name, sent, c)
		}
	}
}

// TestFullRingLosesNothing: a full ring delays packets and loses none.
func TestFullRingLosesNothing(t *testing.T) {
	tx, rx := memQueues(traffic4())
	link := tx.link.(*memlink.Link)
	for range 6 { // the ring has 256 places
		tx.burst(1, 64)
	}
	if tx.packets != 256 || tx.refused != 2 || tx.have != 64 {
		t.Fatalf("%d packets taken, %d times refused, %d waiting", tx.packets, tx.refused, tx.have)
	}
	for range 20 {
		for {
			packet, ok := link.Take(nil)
			if !ok {
				break
			}
			rx.link.(*memlink.Link).Inject(packet)
		}
		for rx.step() > 0 {
		}
		tx.burst(1, 64)
	}
	c := &rx.judge.count
	if c.Packets != 256+19*64 || c.Reordered+c.Duplicates != 0 {
		t.Errorf("%+v", c)
	}
}

func TestPacer(t *testing.T) {
	for _, rate := range []float64{1, 999, 50_000, 1_000_000, 14_880_952} {
		p := newPacer(part(Load{Rate: rate, Duration: 2 * time.Second}, 0, 1), 1000, 64, uint64(defaultTogether), false)
		sent, now := uint64(0), uint64(0)
		for {
			n, done := p.due(now)
			if done {
				break
			}
			if now < p.start && n > 0 {
				t.Fatalf("rate %g: %d packets before the start", rate, n)
			}
			p.taken += n
			sent += n
			if n == 0 {
				now += 5000
			} else {
				now += 64 // the device takes a packet in a nanosecond
			}
		}
		if want := uint64(2 * rate); sent > want || sent+1 < want {
			t.Errorf("rate %g: sent %d in two seconds", rate, sent)
		}
	}
	if n, _ := newPacer(part(Load{Packets: 9}, 0, 1), 1000, 64, uint64(defaultTogether), false).due(999); n != 0 {
		t.Errorf("%d packets before the start", n)
	}
	// Held up for a second, it does not send a second's packets at once.
	p := newPacer(part(Load{Rate: 1e6, Duration: 10 * time.Second}, 0, 1), 0, 64, uint64(defaultTogether), false)
	n, _ := p.due(uint64(time.Second))
	if n != 64 || p.forgiven < 980_000 {
		t.Errorf("after a second: %d due, %d forgiven", n, p.forgiven)
	}
	for i := range 5 {
		l := part(Load{Packets: 12}, i, 5)
		if want := []uint64{3, 3, 2, 2, 2}[i]; l.Packets != want {
			t.Errorf("part %d of 12 packets: %d", i, l.Packets)
		}
	}
	if _, done := newPacer(part(Load{Packets: 1}, 1, 2), 0, 64, uint64(defaultTogether), false).due(5); !done {
		t.Error("a queue without packets sends")
	}
}

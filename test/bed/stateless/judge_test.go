package stateless

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/nat/checksum"
)

// stream is packets in memory: what a writer wrote, to be tampered with.
type stream struct {
	traffic Traffic
	judge   *judge
	packets [][]byte
}

func newStream(t *testing.T, traffic Traffic, n int) *stream {
	t.Helper()
	traffic.DestinationMAC, traffic.SourceMAC = make([]byte, 6), make([]byte, 6)
	traffic.setDefaults()
	must(t, traffic.check())
	s := &stream{traffic: traffic, judge: newJudge(newLayout(&traffic, len(traffic.VLANs)), traffic.Flows)}
	s.judge.begin(5)
	w := newWriter(&traffic, 5, 0, 1)
	frame := make([]byte, maxFrameBytes)
	for i := range n {
		s.packets = append(s.packets, slices.Clone(frame[:w.next(frame, uint64(1000*i))]))
	}
	return s
}

// received judges all packets, each a microsecond and a half after the time stamp of
// the one in its place.
func (s *stream) received() Received {
	for i, p := range s.packets {
		s.judge.packet(p, uint64(1000*i)+1500)
	}
	return combine([]*judge{s.judge})
}

func TestJudgeFindsFaults(t *testing.T) {
	const n = 4000 // four rounds of 1,000 flows
	base := traffic4()
	for name, c := range map[string]struct {
		fault func(*stream)
		want  Received
	}{
		"none": {func(*stream) {}, Received{Packets: n}},
		"loss": {func(s *stream) { s.packets = slices.Delete(s.packets, 1500, 1600) }, Received{Packets: n - 100}},
		"duplicate": {func(s *stream) { s.packets = slices.Insert(s.packets, 2000, s.packets[2000-1], s.packets[10]) },
			Received{Packets: n + 2, Duplicates: 2}},
		"order": {func(s *stream) {
			late := s.packets[10]
			s.packets = append(slices.Delete(s.packets, 10, 11), late)
		}, Received{Packets: n, Reordered: 1}},
		"another order of flows": {func(s *stream) {
			rand.New(rand.NewPCG(1, 2)).Shuffle(1000, func(i, j int) {
				s.packets[i], s.packets[j] = s.packets[j],
					s.packets[i]
			})
		}, Received{Packets: n}},
		"payload":     {func(s *stream) { s.packets[7][59] ^= 1 }, Received{Packets: n, Damaged: 1}},
		"IP checksum": {func(s *stream) { s.packets[7][24] ^= 1 }, Received{Packets: n, Damaged: 1}},
		"no checksum": {func(s *stream) { s.packets[7][40], s.packets[7][41] = 0, 0 },
			Received{Packets: n, Damaged: 1}},
		"length":        {func(s *stream) { s.packets[7][17] = 200 }, Received{Packets: n, Damaged: 1}},
		"not ours":      {func(s *stream) { s.packets[7][42] = 0 }, Received{Packets: n - 1, Foreign: 1}},
		"another run":   {func(s *stream) { s.packets[7][45] = 4 }, Received{Packets: n - 1, Foreign: 1}},
		"no such flow":  {func(s *stream) { s.packets[7][46] = 0xff }, Received{Packets: n - 1, Foreign: 1}},
		"cut":           {func(s *stream) { s.packets[7] = s.packets[7][:50] }, Received{Packets: n - 1, Foreign: 1}},
		"other backend": {func(s *stream) { rewrite(s.packets[3500], 33, 2) }, Received{Packets: n, Moved: 1}},
		"other port":    {func(s *stream) { rewrite(s.packets[3500], 37, 81) }, Received{Packets: n, Moved: 1}},
		"other SNAT": {func(s *stream) { rewrite(s.packets[3500], 35, s.packets[3500][35]^1) },
			Received{Packets: n, Renamed: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStream(t, base, n)
			c.fault(s)
			r := s.received()
			got := Received{Packets: r.Packets, Foreign: r.Foreign, Duplicates: r.Duplicates, Reordered: r.Reordered,
				Damaged: r.Damaged, Moved: r.Moved, Renamed: r.Renamed}
			if !slices.Equal([]uint64{got.Packets, got.Foreign, got.Duplicates, got.Reordered, got.Damaged, got.Moved,
				got.Renamed},
				[]uint64{c.want.Packets, c.want.Foreign, c.want.Duplicates, c.want.Reordered, c.want.Damaged,
					c.want.Moved, c.want.Renamed}) {
				t.Errorf("got  %+v\nwant %+v", got, c.want)
			}
			if r.Flows != 1000 || r.Latency.Count() != int64(r.Packets) {
				t.Errorf("%d flows, %d latencies", r.Flows, r.Latency.Count())
			}
			if violations := r.Damaged + r.Moved + r.Renamed; uint64(len(r.Violations)) != violations {
				t.Errorf("violations %q", r.Violations)
			} else if violations > 0 && !strings.Contains(r.Violations[0], ":80") && !strings.Contains(r.Violations[0],
				":81") {
				t.Errorf("%q does not say where", r.Violations[0])
			}
		})
	}
}

// rewrite changes a byte as a translator does: the checksums fit afterwards.
func rewrite(b []byte, at int, to byte) {
	b[at] = to
	b[24], b[25], b[40], b[41] = 0, 0, 0, 0
	ip := ^checksum.Sum(b[14:34])
	b[24], b[25] = byte(ip>>8), byte(ip)
	l4 := ^checksum.Fold(uint64(checksum.Sum(b[26:])) + protoUDP + uint64(len(b)-34))
	b[40], b[41] = byte(l4>>8), byte(l4)
}

// TestJudgeAcceptsEverything has it judge all kinds of packets that the writer writes.
func TestJudgeAcceptsEverything(t *testing.T) {
	for name, traffic := range everyTraffic() {
		s := newStream(t, traffic, 300)
		r := s.received()
		if r.Packets != 300 || r.Foreign+r.Damaged+r.Moved+r.Renamed+r.Duplicates+r.Reordered != 0 || r.Flows != 7 {
			t.Errorf("%s: %+v", name, r)
		}
		if p := r.Latency.Percentile(50); traffic.Fragments <= 1 && (p < 1400*time.Nanosecond ||
			p > 1600*time.Nanosecond) {
			t.Errorf("%s: latency %v, want 1.5 us", name, p)
		}
		s.packets[20][len(s.packets[20])-1] ^= 1
		if r := s.received(); traffic.Fragments <= 1 && r.Damaged != 1 {
			t.Errorf("%s: one byte is wrong, %d packets are damaged", name, r.Damaged)
		}
	}
}

// TestFlowOnTwoQueues: what one queue alone cannot see.
func TestFlowOnTwoQueues(t *testing.T) {
	a, b := newStream(t, traffic4(), 4000), newStream(t, traffic4(), 4000)
	a.packets, b.packets = a.packets[:3000], b.packets[3000:] // one packet of each flow in b
	rewrite(b.packets[5], 33, 9)
	a.received()
	b.received()
	r := combine([]*judge{a.judge, b.judge})
	if r.Packets != 4000 || r.Flows != 1000 || r.Moved != 1 || len(r.Queues) != 2 {
		t.Errorf("%+v", r)
	}
}

func TestOrderVisitsAllFlows(t *testing.T) {
	for _, flows := range []uint32{1, 2, 3, 4, 10, 1000, 65536, 100_003} {
		const parts = 3
		for q := range min(parts, flows) {
			o := newOrder(flows, q, min(parts, flows))
			for round := range uint32(strideCount + 2) {
				if round > 4 && flows > 1000 {
					break
				}
				seen := make(map[uint32]bool)
				for range o.flows {
					flow, in := o.next()
					if in != round || flow >= flows || flow%min(parts, flows) != q || seen[flow] {
						t.Fatalf("%d flows, part %d: flow %d in round %d of %d, seen %v", flows, q, flow, in, round,
							seen[flow])
					}
					seen[flow] = true
				}
			}
		}
	}
}

func TestDivide(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 1_000_000 {
		n, by := r.Uint32()>>(r.Uint32()%32), max(r.Uint32()>>(r.Uint32()%32), 1)
		d := newDivisor(by)
		if q, rest := d.divide(n); q != n/by || rest != n%by {
			t.Fatalf("%d / %d = %d rest %d", n, by, q, rest)
		}
	}
}

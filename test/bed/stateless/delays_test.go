//go:build root

package stateless

import (
	"testing"
	"time"

	"github.com/cilium/ebpf"
)

const xdpDrop = 1 // enum xdp_action, include/uapi/linux/bpf.h

// TestDelaysOfPackets gives the program packets of known ages.
func TestDelaysOfPackets(t *testing.T) {
	c := loopback(t, 1)
	c.Rx.Method, c.Rx.Keep = Timed, 1
	lab := open(t, c)
	rx := lab.rx.(*timer)
	for _, age := range []time.Duration{time.Millisecond, 100 * time.Millisecond, time.Second, 8 * time.Second} {
		lab.run++
		must(t, rx.begin(lab.run))
		traffic := lab.Config().Traffic
		frame := make([]byte, maxFrameBytes)
		began := lab.clock.now()
		n := newWriter(&traffic, lab.run, 0, 1).next(frame, began-uint64(age))
		verdict, err := rx.objects.Count.Run(&ebpf.RunOptions{Data: frame[:n]})
		must(t, err)
		oldest := age + time.Duration(lab.clock.now()-began) // what the call itself takes makes it older
		r, err := rx.end()
		must(t, err)
		if verdict != xdpDrop || r.Packets != 1 || r.Latency.Count() != 1 {
			t.Fatalf("verdict %d, %d packets, %d latencies: want it dropped and counted", verdict, r.Packets,
				r.Latency.Count())
		}
		if len(r.Arrivals) != 1 || r.Arrivals[0].Sent != began-uint64(age) ||
			r.Arrivals[0].Came-r.Arrivals[0].Sent > uint64(oldest) || r.Arrivals[0].Came < began {
			t.Errorf("kept of a packet that was sent at %d and received from %d on: %+v", began-uint64(age), began,
				r.Arrivals)
		}
		if got := r.Latency.Max(); got < age-age/16 || got > oldest+oldest/16 {
			t.Errorf("a packet %v to %v old has a latency of %v", age, oldest, got)
		}
	}
}

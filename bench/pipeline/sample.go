package pipeline

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"time"
)

// load is the traffic of one sample.
type load struct {
	cold  bool // headers are not in any cache
	mixed bool // half of the packets come from backends
}

func (l load) params() map[string]string {
	p := map[string]string{"headers": "hot", "packets": "clients"}
	if l.cold {
		p["headers"] = "cold"
	}
	if l.mixed {
		p["packets"] = "both"
	}
	return p
}

// sample returns the median nanoseconds per packet of the world's flows, over a number of chunks.
func (g *gate) sample(l load, chunks int, rnd *rand.Rand) (float64, error) {
	runtime.GC()
	each := make([]time.Duration, 0, chunks)
	warm := chunks/10 + 2 // results are discarded
	for i := range chunks + warm {
		if err := g.injectRandom(g.w.flows, l, rnd); err != nil {
			return 0, err
		}
		spent, err := g.chunk(chunkFrames)
		if err != nil {
			return 0, err
		}
		if i >= warm {
			each = append(each, spent)
		}
	}
	return perPacket(each, chunkFrames), nil
}

// perPacket is the median of chunks, in nanoseconds per packet.
func perPacket(each []time.Duration, packets int) float64 {
	slices.Sort(each)
	return float64(each[len(each)/2].Nanoseconds()) / float64(packets)
}

// injectRandom gives the link a chunk of packets.
func (g *gate) injectRandom(flows []flow, l load, rnd *rand.Rand) error {
	var b [128]byte
	for i := range chunkFrames {
		f, k := &flows[rnd.IntN(len(flows))], fromClient
		if l.mixed && rnd.Uint64()&1 == 0 {
			k = fromBackend
		}
		if !g.nic.Inject(b[:g.w.frame(&b, f, k, uint32(i))]) {
			return fmt.Errorf("the link took %d packets and no more", i)
		}
	}
	if l.cold {
		flushHeaders(g.umem)
	}
	return nil
}

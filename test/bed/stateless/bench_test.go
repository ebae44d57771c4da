package stateless

import "testing"

// BenchmarkWrite is what the sender itself costs per packet: all but the kernel.
func BenchmarkWrite(b *testing.B) {
	for name, flows := range map[string]int{"1k": 1000, "1M": 1_000_000} {
		b.Run(name, func(b *testing.B) {
			t := traffic4()
			t.DestinationMAC, t.SourceMAC = make([]byte, 6), make([]byte, 6)
			t.Sources.Count, t.SourcePorts, t.Flows = 250, Ports{1024, 65535}, flows
			t.setDefaults()
			const frames, size = 64, 2048 // those that a burst uses again and again
			w := newWriter(&t, 1, 0, 1)
			mem := make([]byte, frames*size)
			for i := range frames {
				w.prepare(mem[i*size : (i+1)*size])
			}
			at := 0
			for b.Loop() {
				w.next(mem[at:at+size], 1)
				at = (at + size) % (frames * size)
			}
		})
	}
}

// BenchmarkJudge is what the receiver itself costs per packet of 64 bytes.
func BenchmarkJudge(b *testing.B) {
	t := traffic4()
	t.DestinationMAC, t.SourceMAC = make([]byte, 6), make([]byte, 6)
	t.setDefaults()
	w := newWriter(&t, 1, 0, 1)
	j := newJudge(newLayout(&t, 0), t.Flows)
	j.begin(1)
	frame := make([]byte, 2048)
	packets := make([][]byte, 4096)
	for i := range packets {
		packets[i] = append([]byte(nil), frame[:w.next(frame, 1)]...)
	}
	i := 0
	for b.Loop() {
		j.packet(packets[i%len(packets)], 1000)
		i++
	}
}

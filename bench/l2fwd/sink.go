package l2fwd

import (
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"sluice.dev/sluice/bench/xdp"
)

// sink counts the source's packets that reach an interface by how long they were under way,
// and drops all, in XDP.
type sink struct{ *xdp.Program } // its map is by latency, one slot per CPU

const (
	sinkBuckets = 1024
	bucketShift = 10 // 1.024 us each; the last bucket has all that is longer
)

// openSink must be called in the interface's network namespace.
func openSink(ifindex int) (*sink, error) {
	p, err := xdp.Attach(ifindex, link.XDPDriverMode, &ebpf.MapSpec{Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: 8,
		MaxEntries: sinkBuckets}, countAndDrop)
	return &sink{p}, err
}

// countAndDrop is, for packets of the source:
//
//	counts[min((ktime - stamp) >> bucketShift, last)]++
//	return XDP_DROP
func countAndDrop(counts *ebpf.Map) asm.Instructions {
	const (
		data, dataEnd = 0, 4 // struct xdp_md
		xdpDrop       = 1    // enum xdp_action
		etherTypeAt   = 12
		ipv4          = 0x0008 // as little-endian machines load it
	)
	return asm.Instructions{
		asm.LoadMem(asm.R2, asm.R1, data, asm.Word),
		asm.LoadMem(asm.R3, asm.R1, dataEnd, asm.Word),
		asm.Mov.Reg(asm.R4, asm.R2),
		asm.Add.Imm(asm.R4, packetBytes),
		asm.JGT.Reg(asm.R4, asm.R3, "drop"),
		asm.LoadMem(asm.R4, asm.R2, etherTypeAt, asm.Half),
		asm.JNE.Imm(asm.R4, ipv4, "drop"),
		asm.LoadMem(asm.R6, asm.R2, stampAt, asm.DWord),
		asm.FnKtimeGetNs.Call(),
		asm.Sub.Reg(asm.R0, asm.R6),
		asm.RSh.Imm(asm.R0, bucketShift),
		asm.JLT.Imm(asm.R0, sinkBuckets, "count"),
		asm.Mov.Imm(asm.R0, sinkBuckets-1),
		asm.StoreMem(asm.RFP, -4, asm.R0, asm.Word).WithSymbol("count"),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -4),
		asm.LoadMapPtr(asm.R1, counts.FD()),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "drop"),
		asm.LoadMem(asm.R1, asm.R0, 0, asm.DWord), // this CPU's own slot: no atomic is needed
		asm.Add.Imm(asm.R1, 1),
		asm.StoreMem(asm.R0, 0, asm.R1, asm.DWord),
		asm.Mov.Imm(asm.R0, xdpDrop).WithSymbol("drop"),
		asm.Return(),
	}
}

// latencies is how many packets came, by bucket.
type latencies [sinkBuckets]uint64

func (s *sink) read() (l latencies, err error) {
	var perCPU []uint64
	for i := range l {
		if err := s.Map.Lookup(uint32(i), &perCPU); err != nil {
			return l, fmt.Errorf("l2fwd: read the counter: %w", err)
		}
		for _, n := range perCPU {
			l[i] += n
		}
	}
	return l, nil
}

func (l *latencies) total() (n uint64) {
	for _, k := range l {
		n += k
	}
	return n
}

// quantile is the latency that a part q of the packets did not exceed, to a microsecond. What is
// longer than all buckets counts as the last one's: at least 1 ms.
func (l *latencies) quantile(q float64) time.Duration {
	left := q * float64(l.total())
	for i, k := range l {
		if left -= float64(k); left <= 0 && k > 0 {
			return time.Duration(i+1) << bucketShift
		}
	}
	return 0
}

func (l *latencies) since(b *latencies) (d latencies) {
	for i := range l {
		d[i] = l[i] - b[i]
	}
	return d
}

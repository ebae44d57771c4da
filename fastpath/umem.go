package fastpath

// frame returns the bytes of a packet's first buffer. Its capacity is its length, so no append can
// write into the next frame.
func (w *Worker) frame(d Desc) []byte {
	end := d.Addr + uint64(d.Len)
	if d.Len == 0 {
		end = d.Addr + uint64(w.chains.First(d))
	}
	return w.mem[d.Addr:end:end]
}

// frameHeadroom is the offset of a generated packet in its frame, in bytes; received packets have
// the same offset (XDP_PACKET_HEADROOM, include/uapi/linux/bpf.h).
const frameHeadroom = 256

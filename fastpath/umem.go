package fastpath

import "sluice.dev/sluice/nat/header"

// umem has the frames of a worker, and the bytes in them.
type umem struct {
	mem    []byte
	memory header.Memory // mem, for the functions that take many packets
	pool   *Pool         // free frames
	chains *Chains       // packets in several frames
}

// frameHeadroom is the offset of a generated packet in its frame, in bytes; received packets have
// the same offset (XDP_PACKET_HEADROOM, include/uapi/linux/bpf.h).
const frameHeadroom = 256

// frame returns the bytes of a packet's first buffer. Its capacity is its length, so no append can
// write into the next frame.
func (u *umem) frame(d Desc) []byte {
	end := d.Addr + uint64(d.Len)
	if d.Len == 0 {
		end = d.Addr + uint64(u.chains.First(d))
	}
	return u.mem[d.Addr:end:end]
}

// free returns a packet's frames to the pool.
func (u *umem) free(d Desc) {
	if d.Len == 0 {
		u.chains.Free(u.pool, d)
		return
	}
	u.pool.Put(d.Addr)
}

// bytes returns the length of a packet in bytes.
func (u *umem) bytes(d Desc) uint32 {
	if d.Len == 0 {
		return uint32(u.chains.Bytes(d))
	}
	return d.Len
}

// copy fills b with the bytes of a packet, starting at offset from.
func (u *umem) copy(b []byte, d Desc, from int) {
	if d.Len == 0 {
		u.chains.copy(b, u.mem, d, from)
		return
	}
	copy(b, u.frame(d)[from:])
}

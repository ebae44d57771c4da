package fastpath

import (
	"math/bits"

	"sluice.dev/sluice/nat/checksum"
)

// Chains is a table of the frames of packets that are in several frames. All frames of such a
// packet have one owner, which holds the Desc of the first frame. The Desc's Len is 0, so no stage
// of the pipeline takes it for a plain packet, and packets of one buffer cost nothing more. The
// table has the lengths and the other frames:
//
//	Desc{Addr, 0}   of[frame]: addr, bytes, next ─► of[next]: addr, bytes, next ─► … 0
//	                └ first buffer                  └ second
//
// A packet whose headers are not all in its first buffer is dropped. So only the first buffer is
// parsed and translated; the others only change owners with it.
//
// Only the UMEM's worker and its links use it.
type Chains struct {
	of         []buffer // by frame
	frameShift uint8
}

// buffer is the part of a packet in one frame.
type buffer struct {
	addr  uint64 // of its first byte
	bytes uint32
	next  uint32 // the number of the frame that follows, plus 1; 0 in the last
}

// MaxBuffers is the maximum number of buffers of a packet: as many as every kernel configuration
// puts into one skb (MAX_SKB_FRAGS, include/linux/skbuff.h, is at least 17). In copy mode the
// kernel drops a packet with more, and never completes its frames.
const MaxBuffers = 17

// NewChains returns an empty table for a UMEM of n frames. frameSize is in bytes, and a power of
// two.
func NewChains(n, frameSize int) *Chains {
	shift := uint8(0)
	for 1<<shift < frameSize {
		shift++
	}
	return &Chains{of: make([]buffer, n), frameShift: shift}
}

func (c *Chains) at(addr uint64) *buffer { return &c.of[addr>>c.frameShift] }

// Begin starts a chain with one buffer, and returns its Desc.
func (c *Chains) Begin(addr uint64, bytes uint32) Desc {
	*c.at(addr) = buffer{addr: addr, bytes: bytes}
	return Desc{Addr: addr}
}

// Extend appends a buffer to the chain whose last buffer is at last.
func (c *Chains) Extend(last, addr uint64, bytes uint32) {
	*c.at(addr) = buffer{addr: addr, bytes: bytes}
	c.at(last).next = uint32(addr>>c.frameShift) + 1
}

// Buffers counts the frames of a packet.
func (c *Chains) Buffers(d Desc) (n int) {
	if d.Len != 0 {
		return 1
	}
	for b := c.at(d.Addr); b != nil; b = c.after(b) {
		n++
	}
	return n
}

// Bytes returns the length of a packet.
func (c *Chains) Bytes(d Desc) int {
	if d.Len != 0 {
		return int(d.Len)
	}
	n := 0
	for b := c.at(d.Addr); b != nil; b = c.after(b) {
		n += int(b.bytes)
	}
	return n
}

// First returns how many bytes of a packet are in its first frame.
func (c *Chains) First(d Desc) uint32 {
	if d.Len != 0 {
		return d.Len
	}
	return c.at(d.Addr).bytes
}

// after returns the buffer that follows b, or nil.
func (c *Chains) after(b *buffer) *buffer {
	if b.next == 0 {
		return nil
	}
	return &c.of[b.next-1]
}

// Next returns the address of the buffer that follows the buffer at addr in its chain, if there is
// one.
func (c *Chains) Next(addr uint64) (next uint64, more bool) {
	if b := c.after(c.at(addr)); b != nil {
		return b.addr, true
	}
	return 0, false
}

// Take removes the first buffer from a chain, and returns it and the rest of the chain. more
// reports whether there is a rest; if not, rest is zero.
func (c *Chains) Take(d Desc) (first, rest Desc, more bool) {
	b := c.at(d.Addr)
	first = Desc{Addr: d.Addr, Len: b.bytes}
	if next := c.after(b); next != nil {
		rest, more = Desc{Addr: next.addr}, true
	}
	*b = buffer{}
	return first, rest, more
}

// Free gives the frames of a packet to the pool.
func (c *Chains) Free(p *Pool, d Desc) {
	for more := d.Len == 0; more; {
		var first Desc
		if first, d, more = c.Take(d); more {
			p.Put(first.Addr)
		} else {
			d = first
		}
	}
	p.Put(d.Addr)
}

// move sets the start of a chain in its first frame, and its length in bytes from there: at least 1
// and at most the bytes that it has. It cuts off the rest, which is padding, and frees frames that
// are no longer needed. It returns the packet's Desc, which is no longer a chain if one frame is
// enough.
func (c *Chains) move(p *Pool, d Desc, start uint64, bytes uint32) Desc {
	b := c.at(d.Addr)
	b.bytes, b.addr = b.bytes+uint32(b.addr-start), start // in either direction: modulo 2^32
	left := bytes
	for left > b.bytes {
		left -= b.bytes
		b = &c.of[b.next-1]
	}
	b.bytes = left
	if b.next != 0 {
		c.Free(p, Desc{Addr: c.of[b.next-1].addr})
		b.next = 0
	}
	if c.at(start).next == 0 {
		*c.at(start) = buffer{}
		return Desc{Addr: start, Len: bytes}
	}
	return Desc{Addr: start}
}

// transmittable reports whether a chain can be transmitted: no buffer is empty, and there are at
// most MaxBuffers.
func (c *Chains) transmittable(d Desc) bool {
	n := 0
	for b := c.at(d.Addr); b != nil; b = c.after(b) {
		if n++; b.bytes == 0 || n > MaxBuffers {
			return false
		}
	}
	return true
}

// sum returns the checksum's sum over the bytes [from, to) of a packet. The byte at from is byte n
// of the checksummed data: if n is odd, it is the low half of a word.
func (c *Chains) sum(mem []byte, d Desc, from, to, n int) (sum uint16) {
	at := 0
	for b := c.at(d.Addr); b != nil; b = c.after(b) {
		first, last := max(from-at, 0), min(to-at, int(b.bytes))
		at += int(b.bytes)
		if first >= last {
			continue
		}
		part := checksum.Sum(mem[b.addr+uint64(first) : b.addr+uint64(last)])
		if n&1 != 0 {
			part = bits.ReverseBytes16(part)
		}
		sum = checksum.Add(sum, part)
		n += last - first
	}
	return sum
}

// copy fills b with the bytes of a packet, starting at offset from. The packet must be long enough.
func (c *Chains) copy(b, mem []byte, d Desc, from int) {
	for buffer := c.at(d.Addr); buffer != nil && len(b) > 0; buffer = c.after(buffer) {
		if from >= int(buffer.bytes) {
			from -= int(buffer.bytes)
			continue
		}
		b = b[copy(b, mem[buffer.addr+uint64(from):buffer.addr+uint64(buffer.bytes)]):]
		from = 0
	}
}

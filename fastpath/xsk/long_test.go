//go:build root

package xsk

import (
	"bytes"
	"errors"
	"testing"

	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/fastpath/xsk/xsktest"
)

// longSizes returns lengths around multiples of the buffer size, up to the maximum of MTU 9,000.
func longSizes() (sizes []int) {
	const room = 2048 - packetHeadroom
	sizes = append(sizes, 60, 9014)
	for n := 1; n <= 5; n++ {
		sizes = append(sizes, n*room-1, n*room, n*room+1)
	}
	return sizes
}

// content returns a frame of n differing bytes, of an EtherType that no stack accepts.
func content(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i) + byte(i>>8)*31 + seed
	}
	copy(b, []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5}) // local experimental EtherType 1
	return b
}

// bytesOf reads a packet in any number of frames.
func (r *rig) bytesOf(d fastpath.Desc) (b []byte) {
	c := r.umem.Chains()
	if d.Len != 0 {
		return append(b, r.umem.Bytes()[d.Addr:d.Addr+uint64(d.Len)]...)
	}
	for addr, more := d.Addr, true; more; addr, more = c.Next(addr) {
		b = append(b, r.umem.Bytes()[addr:addr+uint64(c.First(fastpath.Desc{Addr: addr}))]...)
	}
	return b
}

// TestLong: packets of all sizes are received on one link and sent by another without a changed
// byte, even if batches end between two buffers of a packet.
func TestLong(t *testing.T) {
	xsktest.EnterNamespace(t)
	in, out := xsktest.NewWire(t, "sl0", "sl0p"), xsktest.NewWire(t, "sl1", "sl1p")
	in.SetMTU(t, 9000)
	out.SetMTU(t, 9000)
	r := newRig(t, 2048)
	sizes := Config{RxSize: 256, TxSize: 64, FillSize: 256, CompletionSize: 256, Long: true, Mode: Copy}
	a, b := r.open(in, sizes), r.open(out, sizes)
	chains := r.umem.Chains()
	for _, batchLen := range []int{1, 2, 7, 64} {
		batch := make([]fastpath.Desc, batchLen)
		for i, size := range longSizes() {
			want := content(size, byte(i))
			must(t, in.Inject(want))
			var got fastpath.Desc
			eventually(t, "a packet", func() {
				if a.Receive(batch) > 0 {
					got = batch[0]
					r.held += chains.Buffers(got)
				}
				r.law("within a packet")
			}, func() bool { return got.Addr != 0 })
			n := chains.Buffers(got)
			if wantBuffers := (size-1)/1792 + 1; n != wantBuffers || !bytes.Equal(r.bytesOf(got), want) {
				t.Fatalf("%d bytes came in %d buffers, want %d, or other bytes", size, n, wantBuffers)
			}
			r.law("with a packet in hand")
			if taken := b.Transmit([]fastpath.Desc{got}); taken != 1 {
				t.Fatal("not taken")
			}
			r.held -= n
			b.Flush()
			r.law("with a packet sent")
			var back []byte
			eventually(t, "a packet on the other side", func() { back = out.Next(t) },
				func() bool { return back != nil })
			if !bytes.Equal(back, want) {
				t.Fatalf("of %d bytes, %d arrive, or others", size, len(back))
			}
			eventually(t, "completion", func() { b.Complete(r.pool) }, func() bool { return b.Frames() == 256 })
			a.Refill(r.pool)
		}
	}
	st, err := b.Stats()
	must(t, err)
	if st.TxInvalidDescs != 0 || a.Counters().ForeignFrames+b.Counters().ForeignFrames != 0 {
		t.Errorf("%+v, %+v", st, b.Counters())
	}
}

// longPacket writes a packet of size bytes into frames of the pool.
func (r *rig) longPacket(size int) fastpath.Desc {
	const room = 2048 - packetHeadroom
	data, c := content(size, 1), r.umem.Chains()
	var head fastpath.Desc
	var last uint64
	for first := true; len(data) > 0; first = false {
		addr, ok := r.pool.Get()
		if !ok {
			r.tb.Fatal("no frame")
		}
		addr += packetHeadroom
		n := copy(r.umem.Bytes()[addr:addr+room], data)
		if data = data[n:]; first {
			head = c.Begin(addr, uint32(n))
		} else {
			c.Extend(last, addr, uint32(n))
		}
		last = addr
	}
	return head
}

// TestLongAllOrNothing: a ring without room for all frames of a packet takes none of them, and no
// later packet.
func TestLongAllOrNothing(t *testing.T) {
	xsktest.EnterNamespace(t)
	w := xsktest.NewWire(t, "sl0", "sl0p")
	w.SetMTU(t, 9000)
	r := newRig(t, 512)
	s := r.open(w, Config{RxSize: 64, TxSize: 16, FillSize: 64, CompletionSize: 64, Long: true, Mode: Copy})
	short := func() fastpath.Desc {
		d := r.longPacket(1000)
		d.Len = 1000
		return d
	}
	batch := []fastpath.Desc{short(), r.longPacket(9000), short(), r.longPacket(9000), r.longPacket(3000), short()}
	if n := s.Transmit(batch); n != 5 || s.tx.untaken() != 16 { // 1 + 6 + 1 + 6 + 2 places
		t.Fatalf("%d packets were taken, by %d descriptors", n, s.tx.untaken())
	}
	r.pool.Put(batch[5].Addr)
	r.law("with a full ring")
	next := []fastpath.Desc{r.longPacket(9000)}
	if n := s.Transmit(next); n != 0 || s.umem.chains.Buffers(next[0]) != 6 {
		t.Fatalf("a full ring took %d, or frames of it", n)
	}
	s.Flush()
	var sizes []int
	eventually(t, "five packets", func() {
		if b := w.Next(t); b != nil {
			sizes = append(sizes, len(b))
		}
		s.Complete(r.pool)
	}, func() bool { return len(sizes) == 5 && s.Frames() == 64 })
	var most []fastpath.Desc
	for range 11 {
		most = append(most, short())
	}
	if n := s.Transmit(append(most, next...)); n != 11 {
		t.Fatalf("11 of 16 places are taken and 6 are needed: %d packets were taken", n)
	}
	s.umem.chains.Free(r.pool, next[0])
	s.Flush()
	eventually(t, "completion", func() { w.Next(t); s.Complete(r.pool) }, func() bool { return s.Frames() == 64 })
	r.law("at the end")
	st, err := s.Stats()
	if must(t, err); st.TxInvalidDescs != 0 {
		t.Errorf("%+v", st)
	}
}

// TestLongClosedWithin: a link that is closed when it has half a packet returns all its frames.
func TestLongClosedWithin(t *testing.T) {
	xsktest.EnterNamespace(t)
	w := xsktest.NewWire(t, "sl0", "sl0p")
	w.SetMTU(t, 9000)
	r := newRig(t, 256)
	s := r.open(w, Config{RxSize: 64, TxSize: 64, FillSize: 64, CompletionSize: 64, Long: true, Mode: Copy})
	must(t, w.Inject(content(9000, 3)))
	one := make([]fastpath.Desc, 1)
	eventually(t, "half a packet", func() { s.Receive(one) }, func() bool { return s.partial.frames > 2 })
	r.law("within a packet")
	must(t, s.Close(r.pool)) // the rig checks that all frames are free
}

// TestLongBesideShort: links with and without Long share a UMEM, in two registrations, and each
// accepts packets up to its MTU.
func TestLongBesideShort(t *testing.T) {
	xsktest.EnterNamespace(t)
	long, short := xsktest.NewWire(t, "sl0", "sl0p"), xsktest.NewWire(t, "sl1", "sl1p")
	long.SetMTU(t, 9000)
	r := newRig(t, 1024)
	c := Config{RxSize: 64, TxSize: 64, FillSize: 64, CompletionSize: 64}
	b := r.open(short, c)
	c.Long, c.Mode = true, Copy
	a := r.open(long, c)
	if !a.Long() || b.Long() {
		t.Fatal("mistaken for each other")
	}
	if a.sharable(b, Copy) || b.sharable(a, Copy) {
		t.Error("one registration for both")
	}
	must(t, long.Inject(content(1400, 1)))
	var back []byte
	eventually(t, "long to short", func() { r.step(a, b); back = short.Next(t) }, func() bool { return back != nil })
	must(t, short.Inject(content(1400, 2)))
	eventually(t, "short to long", func() { r.step(b, a); back = long.Next(t) },
		func() bool { return bytes.Equal(back, content(1400, 2)) })
	r.law("at the end")
}

// TestLongInZeroCopy: Open rejects it before any system call.
func TestLongInZeroCopy(t *testing.T) {
	xsktest.EnterNamespace(t)
	w := xsktest.NewWire(t, "sl0", "sl0p")
	r := newRig(t, 64)
	s, err := Open(t.Context(), Config{Interface: w.Dev, UMEM: r.umem, Long: true, Mode: ZeroCopy})
	if err == nil || s != nil || errors.Is(err, ErrNoZeroCopy) {
		t.Errorf("%v", err)
	}
}

//go:build unix

package nat_test

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"

	"sluice.dev/sluice/nat"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
)

// twins has a group of packets with arbitrary bytes, in memory that ends with the last window, and
// their rewrites.
type twins struct {
	memory   []byte
	frames   []header.Frame
	rewrites []header.Rewrite
	ahead    []header.Frame
}

const maxTwins = 16

func newTwins(t testing.TB) *twins {
	return &twins{memory: headertest.Guarded(t, maxTwins*header.Window6Bytes)}
}

// set takes windows and rewrites from data, as many as there are, and the remainder from r.
func (w *twins) set(r *rand.Rand, data []byte) {
	const each = header.Window6Bytes + 72
	n := min(len(data)/each+r.IntN(3), maxTwins)
	data = append(slices.Clone(data[:min(len(data), n*each)]), make([]byte, n*each)...)
	w.frames, w.rewrites = make([]header.Frame, n), make([]header.Rewrite, n)
	w.ahead = make([]header.Frame, r.IntN(maxTwins+4))
	for i := range w.ahead {
		w.ahead[i].Addr = r.Uint64() // is prefetched, not read
	}
	for i := range w.frames {
		b := data[i*each:][:each]
		w.frames[i].Addr = uint64((maxTwins - n + i) * header.Window6Bytes)
		copy(w.memory[w.frames[i].Addr:], b[:header.Window6Bytes])
		w.rewrites[i] = rewriteFrom(b[header.Window6Bytes:])
		sum := w.memory[w.frames[i].Addr:][header.Plain4Bytes:]
		if w.rewrites[i].Family == header.PlainIPv6 {
			sum = w.memory[w.frames[i].Addr:][header.Plain6Bytes:]
		}
		if sum = sum[6:]; w.rewrites[i].Proto == header.ProtoTCP {
			sum = sum[10:]
		}
		switch r.IntN(6) { // the transport checksum: none, zero, or one that becomes zero
		case 0:
			binary.LittleEndian.PutUint16(sum, 0)
		case 1:
			binary.LittleEndian.PutUint16(sum, 0xffff)
		case 2:
			binary.LittleEndian.PutUint16(sum, w.rewrites[i].L4)
		}
	}
}

// rewriteFrom makes a rewrite of 72 bytes.
func rewriteFrom(b []byte) header.Rewrite {
	word := func(at int) uint64 { return binary.LittleEndian.Uint64(b[at:]) }
	l := header.Rewrite{
		MACs: new([12]byte), Addrs: &[]uint64{word(12), word(20), word(28), word(36)}[0],
		Ports: uint32(word(44)), IP: uint16(word(52)), L4: uint16(word(54)),
		Family: uint32(b[60] & 1), Proto: header.ProtoTCP,
	}
	if copy(l.MACs[:], b); b[61]&1 != 0 {
		l.Proto = header.ProtoUDP
	}
	return l
}

// agree checks that TranslatePlain, in assembly if this build has it, writes the same bytes as its
// Go twin.
func (w *twins) agree(t *testing.T) {
	t.Helper()
	before := slices.Clone(w.memory)
	m := header.NewMemory(w.memory)
	nat.TranslatePlainGo(&m, w.frames, w.rewrites, w.ahead, len(w.frames)%2 != 0)
	want := slices.Clone(w.memory)
	copy(w.memory, before)
	nat.TranslatePlain(&m, w.frames, w.rewrites, w.ahead, len(w.frames)%2 != 0)
	if !bytes.Equal(w.memory, want) {
		t.Fatalf("%d packets, %+v:\n%x\nby the twin\n%x\nfrom\n%x", len(w.frames), w.rewrites, w.memory, want, before)
	}
	if len(w.frames) > 0 && bytes.Equal(before, want) && *w.rewrites[0].MACs != [12]byte(before[w.frames[0].Addr:]) {
		t.Fatal("nothing was written")
	}
}

// TestTranslatePlainTwins compares the twins for packets with arbitrary bytes, not only plain ones.
func TestTranslatePlainTwins(t *testing.T) {
	r, w := random(t), newTwins(t)
	for range 20_000 {
		data := make([]byte, r.IntN(3000))
		for i := range data {
			data[i] = byte(r.Uint32())
		}
		w.set(r, data)
		w.agree(t)
	}
}

// FuzzTranslatePlain is TestTranslatePlainTwins with bytes that the fuzzer chooses.
func FuzzTranslatePlain(f *testing.F) {
	w := newTwins(f)
	for i, frame := range seeds() {
		f.Add(uint64(i), append(frame, bytes.Repeat([]byte{0xff, byte(i)}, 200)...))
	}
	f.Fuzz(func(t *testing.T, seed uint64, data []byte) {
		w.set(rand.New(rand.NewPCG(seed, 0)), data)
		w.agree(t)
	})
}

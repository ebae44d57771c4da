package fastpath_test

import (
	"encoding/binary"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/nat/header/headertest"
	"sluice.dev/sluice/nat/reason"
)

// TestPieces: a packet that ends at a possible end of a device's buffer is recorded for its link;
// other truncated packets are not.
func TestPieces(t *testing.T) {
	packet := headertest.UDP(join(client4, 40000), join(vip4, 53), strings.Repeat("x", 1486-28)).Bytes()
	const room = frameSize - 256
	for _, tc := range []struct {
		name  string
		frame []byte
		want  fastpath.Piece // zero: none
	}{
		{"a KiB of a packet", packet[:1024], fastpath.Piece{Got: 1024, Claimed: 1500}},
		{"a frame full of a packet", headertest.UDP(join(client4, 40000), join(vip4, 53),
			strings.Repeat("x", 1900)).Bytes()[:room], fastpath.Piece{Got: room, Claimed: 1942}},
		{"cut anywhere else", packet[:1023], fastpath.Piece{}},
		{"at a KiB that is no buffer's end", headertest.UDP(join(client4, 40000), join(vip4, 53),
			strings.Repeat("x", 900)).Bytes()[:512], fastpath.Piece{}},
		{"whole", packet[:1500], fastpath.Piece{}},
		{"a KiB of garbage", make([]byte, 1024), fastpath.Piece{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := newLab(t, labConfig{})
			g := l.workers[0]
			if !g.nic.Inject(tc.frame) {
				t.Fatal("the link took no packet")
			}
			l.step(time.Microsecond)
			got, ok := g.Piece(0)
			if got != tc.want || ok != (tc.want != fastpath.Piece{}) {
				t.Errorf("%+v, %v; want %+v", got, ok, tc.want)
			}
			if ok && g.stats.Drops[reason.FrameTruncated].Load() != 1 {
				t.Error("the packet was not dropped as truncated")
			}
			// A packet of the same length is inconclusive; a longer one shows that the driver did
			// not truncate it.
			for _, size := range []int{1024, 1025} {
				g.nic.Inject(headertest.UDP(join(client4, 40000), join(vip4, 53), strings.Repeat("x", size-42)).Bytes())
				l.step(time.Microsecond)
				if _, still := g.Piece(0); still != (ok && (size <= tc.want.Got)) {
					t.Errorf("after a packet of %d bytes there is a piece: %v", size, still)
				}
			}
		})
	}
	t.Run("replaced link", func(t *testing.T) {
		l := newLab(t, labConfig{})
		g := l.workers[0]
		g.nic.Inject(packet[:1024])
		l.step(time.Microsecond)
		g.SetLink(0, g.SetLink(0, fastpath.NoLink{}))
		if _, ok := g.Piece(0); ok {
			t.Error("the piece of the previous link is still there")
		}
	})
	t.Run("a real piece after one longer than the MTU", func(t *testing.T) {
		l := newLab(t, labConfig{})
		g := l.workers[0]
		claims := func(n int) []byte {
			frame := slices.Clone(packet[:1024])
			binary.BigEndian.PutUint16(frame[14+2:], uint16(n-14))
			return frame
		}
		for _, step := range []struct{ claimed, want int }{{60000, 60000}, {1500, 1500}, {1514, 1500}} {
			g.nic.Inject(claims(step.claimed))
			l.step(time.Microsecond)
			if got, _ := g.Piece(0); got != (fastpath.Piece{Got: 1024, Claimed: step.want}) {
				t.Errorf("after one that claims %d: %+v, want it to claim %d", step.claimed, got, step.want)
			}
		}
		// It is still one suspicion.
		g.nic.Inject(packet[:1500])
		l.step(time.Microsecond)
		if got, ok := g.Piece(0); ok {
			t.Errorf("%+v after a longer packet", got)
		}
	})
	t.Run("of another queue", func(t *testing.T) {
		l := newLab(t, labConfig{workers: 2})
		one, other := l.workers[0], l.workers[1]
		one.nic.Inject(packet[:1024])
		l.step(time.Microsecond)
		p, _ := one.Piece(0)
		other.SetPiece(0, p)
		for _, step := range []struct {
			size    int
			refuted uint64
		}{{1024, 0}, {1025, 1}, {1025, 1}} {
			other.nic.Inject(headertest.UDP(join(client4, 40000), join(vip4, 53),
				strings.Repeat("x", step.size-42)).Bytes())
			l.step(time.Microsecond)
			if _, still := other.Piece(0); other.RefutedPieces(0) != step.refuted || still != (step.refuted == 0) {
				t.Errorf("a packet of %d bytes: %d refuted, a piece is left: %v", step.size, other.RefutedPieces(0),
					still)
			}
		}
		if _, ok := one.Piece(0); !ok || one.RefutedPieces(0) != 0 {
			t.Error("the worker of one queue refuted a piece that only the other one may refute")
		}
		one.SetPiece(0, fastpath.Piece{})
		one.nic.Inject(packet[:1500])
		l.step(time.Microsecond)
		if _, ok := one.Piece(0); ok || one.RefutedPieces(0) != 0 {
			t.Error("a removed piece is there, or was refuted")
		}
	})
}

package ports

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/fastpath/xsk"
	"sluice.dev/sluice/host/nic/devices"
	"sluice.dev/sluice/host/nic/frames"
)

// queuePieces are workers, of one link each, whose pieces a test says.
type queuePieces struct {
	Workers
	pieces  []fastpath.Piece
	refuted []uint64
	fails   bool
}

func (q *queuePieces) Piece(id, _ int) (fastpath.Piece, bool) {
	return q.pieces[id], q.pieces[id] != fastpath.Piece{}
}

func (q *queuePieces) RefutedPieces(id, _ int) uint64 { return q.refuted[id] }

func (q *queuePieces) SetPiece(_ context.Context, id, _ int, p fastpath.Piece) error {
	if q.fails {
		return errors.New("worker is stopped")
	}
	q.pieces[id] = p
	return nil
}

// longer is a packet of so many bytes that arrives on a queue.
func (q *queuePieces) longer(id, bytes int) {
	if got := q.pieces[id].Got; got != 0 && bytes > got {
		q.pieces[id] = fastpath.Piece{}
		q.refuted[id]++
	}
}

// piecesLab is a port on two queues in zero-copy, and a clock.
type piecesLab struct {
	*queuePieces
	s   *Set
	p   *port
	now time.Time
}

func newPiecesLab() *piecesLab {
	q := &queuePieces{pieces: make([]fastpath.Piece, 2), refuted: make([]uint64, 2)}
	return &piecesLab{
		queuePieces: q, now: time.Unix(1000, 0),
		s: &Set{workers: q, frames: frames.Choice{Size: frames.Small}},
		p: &port{
			name: nic, slots: []*slot{{worker: 0}, {worker: 1}}, device: devices.Device{Name: nic, Driver: "newnic",
				MTU: 1500},
			config: config.Interface{ZeroCopy: config.ZeroCopyAuto},
		},
	}
}

// look looks at the port after so long. Its sockets are in zero-copy where that is the mode to
// request.
func (l *piecesLab) look(t *testing.T, after time.Duration) {
	t.Helper()
	l.now = l.now.Add(after)
	l.p.retryZeroCopy(l.now)
	zeroCopied := l.p.slots
	if mode, _ := l.p.socketMode(frames.Small); mode == xsk.Copy {
		zeroCopied = nil
	}
	l.s.trackPieces(t.Context(), l.p, zeroCopied, l.now)
}

// want compares the mode to request.
func (l *piecesLab) want(t *testing.T, when string, mode xsk.Mode, why string) {
	t.Helper()
	got, reason := l.p.socketMode(frames.Small)
	if got != mode || !strings.HasPrefix(reason, why) || why == "" && reason != "" {
		t.Errorf("%s: %v, because %q; want %v, because %q", when, got, reason, mode, why)
	}
}

const cut = "driver newnic delivers packets in pieces in zero-copy (the first 1024 bytes of 1514"

var kibOf1514 = fastpath.Piece{Got: 1024, Claimed: 1514}

func TestPiecesConfirmed(t *testing.T) {
	l := newPiecesLab()
	l.pieces[0] = kibOf1514
	l.look(t, watchEvery)
	l.longer(1, 1024) // which is no longer
	l.look(t, confirmPieces-1)
	l.want(t, "a moment before", xsk.Auto, "")
	l.look(t, 1)
	l.want(t, "two seconds later", xsk.Copy, cut)
}

// TestPiecesRefuted: one forged packet does not end zero-copy, by whatever queue the packets come
// that refute it.
func TestPiecesRefuted(t *testing.T) {
	for queue := range 2 {
		l := newPiecesLab()
		l.pieces[0] = kibOf1514
		l.look(t, watchEvery)
		l.longer(queue, 1400)
		for range 5 {
			l.look(t, confirmPieces/2)
			l.want(t, "a longer packet came", xsk.Auto, "")
		}
		if l.pieces[0] != (fastpath.Piece{}) || l.pieces[1] != (fastpath.Piece{}) {
			t.Errorf("queue %d refuted it, and workers look for more: %+v", queue, l.pieces)
		}
	}
}

// TestPiecesAgain: forged packets that come again and again are each refuted, also where there is a
// piece at every look.
func TestPiecesAgain(t *testing.T) {
	l := newPiecesLab()
	for range 20 {
		l.pieces[0] = kibOf1514
		l.look(t, watchEvery)
		l.longer(0, 1400)
		l.longer(1, 1400)
		l.pieces[0] = kibOf1514
	}
	l.want(t, "each was refuted", xsk.Auto, "")
}

// TestZeroCopyRetried: zero-copy is tried again after a while. A driver that does cut packets is
// found out again.
func TestZeroCopyRetried(t *testing.T) {
	l := newPiecesLab()
	for _, what := range []string{"found out", "found out again"} {
		l.pieces[0] = kibOf1514
		l.look(t, watchEvery)
		l.look(t, confirmPieces)
		l.want(t, what, xsk.Copy, cut)
		l.pieces, l.p.suspected = make([]fastpath.Piece, 2), suspicion{} // as sockets that are opened again have it
		l.look(t, retryZeroCopy-1)
		l.want(t, what+", a moment before the retry", xsk.Copy, cut)
		l.look(t, 1)
		l.want(t, what+", at the retry", xsk.Auto, "")
	}
}

// TestRequiredZeroCopy: sockets that must be in zero-copy stay so, and what is reported of them
// ends when it is refuted.
func TestRequiredZeroCopy(t *testing.T) {
	for _, queues := range [][]int{{0}, {1}, {0, 1}} {
		l := newPiecesLab()
		l.p.config.ZeroCopy = config.ZeroCopyRequire
		l.pieces[0] = kibOf1514
		for _, after := range []time.Duration{watchEvery, confirmPieces, retryZeroCopy} {
			l.look(t, after)
		}
		if !strings.HasPrefix(l.p.pieces, cut) {
			t.Errorf("nothing refuted it: %q", l.p.pieces)
		}
		for _, q := range queues {
			l.longer(q, 1400)
		}
		l.look(t, watchEvery)
		if l.p.pieces != "" {
			t.Errorf("longer packets came on queues %v: %q", queues, l.p.pieces)
		}
	}
}

// TestPiecesWithoutWorkers: nothing is confirmed while workers do not look for what would refute
// it.
func TestPiecesWithoutWorkers(t *testing.T) {
	l := newPiecesLab()
	l.pieces[0], l.fails = kibOf1514, true
	for range 5 {
		l.look(t, confirmPieces)
		l.want(t, "no worker looks", xsk.Auto, "")
	}
}

func TestAdviceForPieces(t *testing.T) {
	dev := devices.Device{Name: nic, Driver: "newnic", MTU: 1500}
	for _, tc := range []struct {
		name      string
		frameSize int
		piece     fastpath.Piece
		want      string
	}{
		{"a whole packet of the MTU", 2048, fastpath.Piece{Got: 1024, Claimed: 1514},
			"driver newnic delivers packets in pieces in zero-copy (the first 1024 bytes of 1514 arrived, in a frame " +
				"of 2048): set tuning.frameSize to 4096 and restart"},
		{"frames are large", 4096, fastpath.Piece{Got: 1024, Claimed: 1522}, "set zeroCopy to never"},
		{"a packet larger than the MTU", 2048, fastpath.Piece{Got: 1024, Claimed: 1523}, ""},
	} {
		got := inPieces(dev, tc.frameSize, tc.piece)
		if !strings.Contains(got, tc.want) || (tc.want == "" && got != "") {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}
}

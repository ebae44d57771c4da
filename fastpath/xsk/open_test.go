//go:build root

package xsk

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/fastpath/xsk/xsktest"
)

func TestModeAndReason(t *testing.T) {
	xsktest.EnterNamespace(t)
	in, out := xsktest.NewWire(t, "sl0", "sl0p"), xsktest.NewWire(t, "sl1", "sl1p")
	r := newRig(t, 1024)
	a := r.open(in, smallRings)
	if err := r.umem.Close(); err == nil || !strings.Contains(err.Error(), "sl0 queue 0 is still open") {
		t.Errorf("closing a UMEM under its socket: %v", err)
	}
	if m, why := a.Mode(); m != Copy || why != "the driver has no AF_XDP zero-copy" {
		t.Errorf("veth is in %v, because %q", m, why)
	}
	b := r.open(out, smallRings)
	if m, why := b.Mode(); m != Copy || why != "the driver has no AF_XDP zero-copy" || b.registered {
		t.Errorf("second socket is in %v, because %q, registered %v", m, why, b.registered)
	}
	must(t, b.Close(r.pool))

	other, err := NewUMEM(UMEMConfig{Frames: 64, FrameSize: 2048})
	must(t, err)
	defer other.Close()
	if _, err := Open(t.Context(), Config{Interface: "sl1", UMEM: other, Mode: ZeroCopy}); !errors.Is(err,
		ErrNoZeroCopy) {
		t.Errorf("zero-copy on veth: %v", err)
	}
	c := smallRings
	c.Interface, c.UMEM, c.Mode = "sl1", r.umem, ZeroCopy
	if _, err := Open(t.Context(), c); !errors.Is(err, ErrNoZeroCopy) || !strings.Contains(err.Error(),
		"sl1 queue 0: no zero-copy: the driver has no AF_XDP zero-copy") {
		t.Errorf("zero-copy on veth, on a UMEM in copy mode: %v", err)
	}
}

func TestOpenErrors(t *testing.T) {
	xsktest.EnterNamespace(t)
	xsktest.NewWire(t, "sl0", "sl0p")
	u, err := NewUMEM(UMEMConfig{Frames: 64, FrameSize: 2048})
	must(t, err)
	defer func() { must(t, u.Close()) }() // fails if a failed Open left its socket
	for name, tc := range map[string]struct {
		c    Config
		want string
	}{
		"no such interface": {Config{Interface: "sl9"}, "sl9 queue 0"},
		"no such index":     {Config{IfIndex: 1 << 20}, "interface 1048576 queue 0"},
		"stale index":       {Config{Interface: "sl0", IfIndex: 1}, "not 1"},
		"no such queue":     {Config{Interface: "sl0", Queue: 7}, "has no queue 7"},
		"odd ring":          {Config{Interface: "sl0", RxSize: 100}, "RxSize 100 is not a power of two"},
		"completion small": {Config{Interface: "sl0", CompletionSize: 64},
			"CompletionSize 64 is less than TxSize 2048"},
	} {
		tc.c.UMEM = u // not in a subtest, which would run on another thread, outside the namespace
		_, err := Open(t.Context(), tc.c)
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: error %v, want %q in it", name, err, tc.want)
		}
	}
}

func TestMemlock(t *testing.T) {
	xsktest.EnterNamespace(t)
	xsktest.NewWire(t, "sl0", "sl0p")
	u, err := NewUMEM(UMEMConfig{Frames: 64, FrameSize: 2048})
	must(t, err)
	defer u.Close()
	xsktest.LimitMemlock(t, 4096)
	if _, err := Open(t.Context(), Config{Interface: "sl0", UMEM: u}); !errors.Is(err, ErrMemlock) {
		t.Errorf("with a memlock limit of 4 KiB: %v", err)
	}
}

func TestQueueIsTaken(t *testing.T) {
	xsktest.EnterNamespace(t)
	w := xsktest.NewWire(t, "sl0", "sl0p")
	mine, theirs := newRig(t, 512), newRig(t, 512)
	s := mine.open(w, smallRings)
	for name, u := range map[string]*UMEM{"another UMEM": theirs.umem, "the same UMEM": mine.umem} {
		c := smallRings
		c.Interface, c.UMEM, c.RebindFor = "sl0", u, 30*time.Millisecond
		start := time.Now()
		_, err := Open(t.Context(), c)
		if !errors.Is(err, ErrQueueTaken) || !strings.Contains(err.Error(), "sl0 queue 0: queue is taken") {
			t.Errorf("%s: %v", name, err)
		}
		if took := time.Since(start); took < c.RebindFor || took > time.Minute {
			t.Errorf("%s: gave up after %v", name, took)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := Open(ctx, c); !errors.Is(err, context.Canceled) {
			t.Errorf("%s, cancelled: %v", name, err)
		}
	}
	w.Send(t, 0, 10) // the first is left alone
	got := 0
	eventually(t, "10 packets at the first socket", func() { n, _ := mine.step(s, s); got += n },
		func() bool { return got == 10 })
}

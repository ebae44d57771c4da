//go:build root

package xsk

import (
	"errors"
	"testing"
	"time"

	"sluice.dev/sluice/fastpath/xsk/xsktest"
)

// TestCanReplace: if the limit allows two registrations, CanReplace returns ErrMemlock if new
// sockets need a third. It returns nil if they can join one, or if a registration ends with the
// replaced sockets.
func TestCanReplace(t *testing.T) {
	xsktest.EnterNamespace(t)
	d := &driver{zeroCopy: map[int]bool{}, bound: map[int]bool{}}
	wires := []*xsktest.Wire{xsktest.NewWire(t, "sl0", "sl0p"), xsktest.NewWire(t, "sl1", "sl1p"),
		xsktest.NewWire(t, "sl2", "sl2p")}
	d.zeroCopy[wires[2].Index(t)] = true
	u, err := NewUMEM(UMEMConfig{Frames: 512, FrameSize: 2048})
	must(t, err)
	defer func() { must(t, u.Close()) }()
	xsktest.LimitMemlock(t, 512*2048*5/2)
	var sockets []*Socket
	for _, w := range wires {
		s, err := Open(t.Context(), Config{UMEM: u, kernel: d.kernel(), Interface: w.Dev})
		must(t, err)
		defer func() { _ = s.Close(nil) }() // twice for some
		sockets = append(sockets, s)
	}
	refused := func(w int, mode Mode, long bool) bool {
		t.Helper()
		err := CanReplace([]*UMEM{u}, wires[w].Index(t), mode, long)
		if err != nil && !errors.Is(err, ErrMemlock) {
			t.Fatal(err)
		}
		return err != nil
	}
	for _, c := range []struct {
		name    string
		wire    int
		mode    Mode
		long    bool
		refused bool
	}{
		{"long, beside one in copy mode", 0, Copy, true, true},
		{"without a change", 0, Copy, false, false},
		{"zero-copy, which has a registration", 0, ZeroCopy, false, false},
		{"long, in place of the one in zero-copy", 2, Copy, true, false},
		{"copy mode, in place of the one in zero-copy", 2, Copy, false, false},
	} {
		if got := refused(c.wire, c.mode, c.long); got != c.refused {
			t.Errorf("%s: refused %v", c.name, got)
		}
	}
	must(t, sockets[1].Close(nil))
	if refused(0, Copy, true) {
		t.Error("long, in place of the only one in copy mode: refused")
	}
	var kept *KeptError
	if err := sockets[2].Close(nil); err != nil && !errors.As(err, &kept) {
		t.Fatal(err)
	}
	b, err := Open(t.Context(), Config{UMEM: u, kernel: d.kernel(), Interface: wires[1].Dev})
	must(t, err)
	defer func() { must(t, b.Close(nil)) }()
	eventually(t, "memory for a second registration", func() {}, func() bool { return !refused(0, Copy, true) })
}

// TestCanReplaceAll: the limit allows one more registration, but not two.
func TestCanReplaceAll(t *testing.T) {
	xsktest.EnterNamespace(t)
	var umems []*UMEM
	xsktest.LimitMemlock(t, 512*2048*7/2)
	xsktest.NewQueues(t, "sl0", "sl0p", 2)
	xsktest.NewQueues(t, "sl1", "sl1p", 2)
	ifindex := 0
	for queue := range 2 {
		u, err := NewUMEM(UMEMConfig{Frames: 512, FrameSize: 2048})
		must(t, err)
		defer func() { must(t, u.Close()) }()
		u.ended.Store(time.Now().UnixNano()) // memory of the tests before may still count
		umems = append(umems, u)
		for _, name := range []string{"sl1", "sl0"} {
			s, err := Open(t.Context(), Config{UMEM: u, Interface: name, Queue: queue, Mode: Copy})
			must(t, err)
			defer func() { must(t, s.Close(nil)) }()
			_, ifindex = s.Interface()
		}
	}
	if err := CanReplace(umems, ifindex, Copy, true); !errors.Is(err, ErrMemlock) {
		t.Errorf("two more: %v", err)
	}
	eventually(t, "memory for one more", func() {},
		func() bool { return CanReplace(umems[:1], ifindex, Copy, true) == nil })
}

// TestOpenWaitsForReleasedMemory: Open after a Close waits until the kernel no longer counts the
// closed socket's memory as locked.
func TestOpenWaitsForReleasedMemory(t *testing.T) {
	xsktest.EnterNamespace(t)
	w := xsktest.NewWire(t, "sl0", "sl0p")
	u, err := NewUMEM(UMEMConfig{Frames: 512, FrameSize: 2048})
	must(t, err)
	defer func() { must(t, u.Close()) }()
	xsktest.LimitMemlock(t, 512*2048*3/2)
	u.ended.Store(time.Now().UnixNano()) // memory of the tests before may still count
	for i := range 4 {
		s, err := Open(t.Context(), Config{UMEM: u, Interface: w.Dev, Mode: Copy, Long: i%2 == 1})
		must(t, err)
		must(t, s.Close(nil))
	}
}

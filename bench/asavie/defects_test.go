//go:build root

package asavie

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/asavie/xdp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/fastpath/xsk/xsktest"
)

// The tests below verify the reasons in docs/adr/0002-own-af-xdp-layer.md: each passes while the
// defect exists. If one fails after an upgrade of the library, the decision should be reviewed.

func openSocket(t *testing.T, w *xsktest.Wire) *xdp.Socket {
	t.Helper()
	s := newSocket(t, w)
	t.Cleanup(func() { s.Close() })
	return s
}

func newSocket(t *testing.T, w *xsktest.Wire) *xdp.Socket {
	t.Helper()
	dev, err := netlink.LinkByName(w.Dev)
	must(t, err)
	s, err := xdp.NewSocket(dev.Attrs().Index, 0, &xdp.SocketOptions{
		NumFrames: 256, FrameSize: 2048, FillRingNumDescs: 128, CompletionRingNumDescs: 128, RxRingNumDescs: 128,
		TxRingNumDescs: 128,
	})
	must(t, err)
	w.Redirect(t, 0, s.FD())
	return s
}

func packets(s *xdp.Socket, n int) []xdp.Desc {
	descs := s.GetDescs(n)
	for i := range descs {
		descs[i].Len = xsktest.PacketLen
		xsktest.FillPacket(s.GetFrame(descs[i]), uint64(i))
	}
	return descs
}

func TestDefectSameFramesTwice(t *testing.T) {
	xsktest.EnterNamespace(t)
	s := openSocket(t, xsktest.NewWire(t, "sl0", "sl0p"))
	first := append([]xdp.Desc(nil), s.GetDescs(8)...)
	if second := s.GetDescs(8); first[0] != second[0] || first[7] != second[7] {
		t.Error("two calls of GetDescs returned different frames")
	}
}

func TestDefectReceivedFrameIsFree(t *testing.T) {
	xsktest.EnterNamespace(t)
	w := xsktest.NewWire(t, "sl0", "sl0p")
	s := openSocket(t, w)
	s.Fill(s.GetDescs(1))
	w.Send(t, 7, 8)
	for deadline := time.Now().Add(5 * time.Second); s.NumReceived() == 0 && time.Now().Before(deadline); {
	}
	held := s.Receive(1)[0]
	for _, free := range s.GetDescs(256) {
		if free.Addr/2048 == held.Addr/2048 {
			return // the packet would be overwritten by the next use of this frame
		}
	}
	t.Error("a frame that the caller still reads is not offered")
}

func TestDefectSendsAtMost32Packets(t *testing.T) {
	xsktest.EnterNamespace(t)
	w := xsktest.NewWire(t, "sl0", "sl0p")
	s := openSocket(t, w)
	if n := s.Transmit(packets(s, 100)); n != 100 {
		t.Fatalf("Transmit took %d", n)
	}
	seen := map[uint64]int{}
	for deadline := time.Now().Add(50 * time.Millisecond); time.Now().Before(deadline); {
		w.Receive(t, seen)
	}
	if len(seen) != 32 {
		t.Errorf("%d of 100 packets were sent", len(seen))
	}
}

func TestDefectPanics(t *testing.T) {
	for name, act := range map[string]func(*xsktest.Wire){
		"link down":      func(w *xsktest.Wire) { w.Set(t, false) },
		"device deleted": func(w *xsktest.Wire) { w.Delete(t) },
	} {
		t.Run(name, func(t *testing.T) {
			xsktest.EnterNamespace(t)
			w := xsktest.NewWire(t, "sl0", "sl0p")
			s := openSocket(t, w)
			act(w)
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			s.Transmit(packets(s, 1))
		})
	}
}

func TestDefectCompleteDoesNotCheckItsArgument(t *testing.T) {
	xsktest.EnterNamespace(t)
	w := xsktest.NewWire(t, "sl0", "sl0p")
	s := openSocket(t, w)
	s.Fill(s.GetDescs(128))
	s.Complete(1) // nothing was completed; frame 0 is in the fill ring
	if got := s.GetDescs(1); got[0].Addr != 0 {
		t.Errorf("frame %d is offered, not frame 0, which the kernel has", got[0].Addr/2048)
	}
}

func TestDefectRingsStayMapped(t *testing.T) {
	xsktest.EnterNamespace(t)
	w := xsktest.NewWire(t, "sl0", "sl0p")
	before := socketMappings(t)
	s := newSocket(t, w)
	must(t, s.Close())
	if n := socketMappings(t) - before; n != 4 {
		t.Errorf("%d rings are mapped after Close", n)
	}
}

func socketMappings(t *testing.T) int {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	must(t, err)
	return bytes.Count(maps, []byte("socket:["))
}

func TestDefectNoSharedUMEM(t *testing.T) {
	xsktest.EnterNamespace(t)
	openSocket(t, xsktest.NewWire(t, "sl0", "sl0p"))
	xsktest.NewWire(t, "sl1", "sl1p")
	dev, err := netlink.LinkByName("sl1")
	must(t, err)
	xdp.DefaultSocketFlags = unix.XDP_SHARED_UMEM // a global of the library
	defer func() { xdp.DefaultSocketFlags = 0 }()
	_, err = xdp.NewSocket(dev.Attrs().Index, 0, nil)
	if err == nil || !strings.Contains(err.Error(), "invalid argument") {
		t.Errorf("binding with XDP_SHARED_UMEM: %v", err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

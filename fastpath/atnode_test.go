package fastpath_test

import (
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/header/headertest"
)

// TestFragmentsAtTheNode: fragments to a frontend at an address of the node open no flow and go to
// the kernel: they may be for a socket of the node, which the kernel program cannot look up.
// Fragments of a flow that an unfragmented datagram opened are translated.
func TestFragmentsAtTheNode(t *testing.T) {
	for _, flags := range []services.AddrFlags{0, services.AddrLocal, services.AddrNode | services.AddrLocal} {
		for _, known := range []bool{false, true} {
			l := newLab(t, labConfig{edit: func(b *services.Builder) {
				b.SetAddr(addr(vip4), services.AddrVIP|flags)
			}})
			w, from, to := l.workers[0], join(client4, 5), join(vip4, 53)
			if known {
				l.send(0, headertest.UDP(from, to, "x"))
				l.out(w.nic)
			}
			served := known || flags == 0
			for i, f := range headertest.Split(headertest.UDP(from, to, strings.Repeat("x", 200)).Bytes(), 80, 7) {
				w.nic.Inject(f)
				l.step(time.Millisecond)
				_, kernel := w.host.Take(nil)
				frame, sent := w.nic.Take(nil)
				var p header.Packet
				if sent {
					_ = header.Parse(frame, &p)
				}
				if kernel == served || sent != served || sent && p.Tuple.Dst != addr(backend4) {
					t.Errorf("flags %#x, known flow %v, fragment %d: to the kernel %v, to the backend %v", flags, known,
						i, kernel, sent)
				}
			}
		}
	}
}

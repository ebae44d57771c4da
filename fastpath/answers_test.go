package fastpath_test

import (
	"testing"
	"time"

	"sluice.dev/sluice/nat/header/headertest"
)

// firstAnswers sums the workers' counts of first answers.
func (l *lab) firstAnswers() (answered, refused uint64) {
	for _, g := range l.workers {
		for i := range uint32(64) {
			if c := g.stats.Backends.At(i); c != nil {
				answered += c.Answered.Load()
				refused += c.Refused.Load()
			}
		}
	}
	return answered, refused
}

// TestFirstAnswers: the first answer of a backend to a SYN is counted once, as answered or refused.
// Later answers, packets with a bad checksum, and packets without a flow are not counted.
func TestFirstAnswers(t *testing.T) {
	const synAck, rst = headertest.SYN | headertest.ACK, headertest.RST | headertest.ACK
	for _, tt := range []struct {
		name              string
		flags             []uint8 // of the backend's packets, one after the other
		damaged           bool
		answered, refused uint64
	}{
		{"SYN-ACK", []uint8{synAck}, false, 1, 0},
		{"SYN-ACK, repeated", []uint8{synAck, synAck, headertest.ACK}, false, 1, 0},
		{"challenge ACK", []uint8{headertest.ACK}, false, 1, 0},
		{"RST", []uint8{rst, rst}, false, 0, 1},
		{"RST of an open connection", []uint8{synAck, rst}, false, 1, 0},
		{"bad checksum", []uint8{synAck, rst}, true, 0, 0},
		{"none", nil, false, 0, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := retryLab(t, false, false, backend4)
			src, dst := l.syn(0)
			for _, flags := range tt.flags {
				p := headertest.TCP(dst, src, flags)
				if tt.damaged {
					if !l.workers[0].nic.Inject(damage(p.Bytes())) {
						t.Fatal("the link took no more packets")
					}
					l.step(time.Microsecond)
				} else {
					l.send(1, p) // at the other worker: both count for the same backend
				}
			}
			l.send(0, headertest.TCP("192.0.2.77:80", src, synAck))
			if a, r := l.firstAnswers(); a != tt.answered || r != tt.refused {
				t.Errorf("%d answered and %d refused, want %d and %d", a, r, tt.answered, tt.refused)
			}
		})
	}
}

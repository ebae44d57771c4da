package peers

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/gateway/group/wire"
)

// TestNext: frames are found wherever the bytes that have come end, and no bytes lead to a panic.
func TestNext(t *testing.T) {
	var all []byte
	for n := range 5 {
		all = binary.BigEndian.AppendUint32(all, uint32(n+1))
		all = append(all, bytes.Repeat([]byte{byte(n)}, n+1)...)
	}
	end := append(bytes.Clone(all), 0, 0, 0, 0, 0, 3, 'w', 'h', 'y')
	for cut := range len(end) {
		s := &Stream{name: "gw-b", in: end, to: cut}
		frames := 0
		for {
			frame, err := s.next()
			if err != nil {
				t.Fatalf("after %d bytes: %v", cut, err)
			}
			if frame == nil {
				break
			}
			if !bytes.Equal(frame, bytes.Repeat([]byte{byte(frames)}, frames+1)) {
				t.Errorf("after %d bytes frame %d is %v", cut, frames, frame)
			}
			frames++
		}
		if s.to = len(end); frames < 5 {
			continue
		}
		if _, err := s.next(); err == nil || err.Error() != "gw-b refuses the stream: why" {
			t.Errorf("the end is %v", err)
		}
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 100_000 {
		s := &Stream{in: make([]byte, 64), to: random.IntN(65)}
		for i := range s.in {
			if random.IntN(4) == 0 { // lengths are short
				s.in[i] = byte(random.IntN(256))
			}
		}
		for frame, err := s.next(); frame != nil && err == nil; {
			if len(frame) > wire.MaxFrame || s.from > s.to {
				t.Fatalf("a frame of %d bytes, up to %d of %d", len(frame), s.from, s.to)
			}
			frame, err = s.next()
		}
	}
}

// TestWait: Wait ends by Wake, before or during it, by bytes of a stream, and by time.
func TestWait(t *testing.T) {
	a := newAuthority(t)
	m, b := good(t, "gw-a", a), good(t, "gw-b", a)
	waits := func(d time.Duration) time.Duration {
		began := time.Now()
		m.Wait(d)
		return time.Since(began)
	}
	m.Wake()
	m.Wake()
	if took := waits(time.Minute); took > 30*time.Second {
		t.Errorf("after Wake it waits %v", took)
	}
	if took := waits(20 * time.Millisecond); took < 10*time.Millisecond {
		t.Errorf("it waits %v of 20 ms", took)
	}
	time.AfterFunc(20*time.Millisecond, m.Wake)
	if took := waits(time.Minute); took > 30*time.Second {
		t.Errorf("Wake does not end it: %v", took)
	}
	send, sent := make(chan struct{}), make(chan error, 1)
	b.serve(t, func(_ Peer, s end) error {
		<-send
		sent <- s.Send([]byte("x"))
		_, err := s.Receive()
		return err
	})
	s, err := m.dial(t, b)
	if err != nil {
		t.Fatal(err)
	}
	defer s.End(nil)
	for waits(50*time.Millisecond) < 40*time.Millisecond { // the stream can send
	}
	close(send)
	if took := waits(time.Minute); took > 30*time.Second {
		t.Errorf("bytes do not end it: %v", took)
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
	if f, err := s.Receive(); err != nil || string(f) != "x" {
		t.Errorf("%q, %v", f, err)
	}
	s.End(nil)
	if _, err := s.Stream.Receive(); err == nil || !strings.Contains(err.Error(), "closed") {
		t.Errorf("after the end: %v", err)
	}
}

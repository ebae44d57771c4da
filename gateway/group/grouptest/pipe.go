package grouptest

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// Waiter is an exchange.Waiter that needs no file descriptor, so it works in a bubble of
// testing/synctest. Use NewWaiter to make one.
type Waiter chan struct{}

// NewWaiter returns a Waiter.
func NewWaiter() Waiter { return make(Waiter, 1) }

// Wait returns after Wake or after a time.
func (w Waiter) Wait(d time.Duration) {
	select {
	case <-w:
	case <-time.After(d):
	}
}

// Wake ends Wait.
func (w Waiter) Wake() {
	select {
	case w <- struct{}{}:
	default:
	}
}

// Pause waits for a time.
func (w Waiter) Pause(d time.Duration) { time.Sleep(d) }

// pipeFrames is how many frames a Pipe holds in each direction until they are received. The buffers
// of a TCP connection may hold 3 MB.
const pipeFrames = 64

// ErrClosed is the error of a Pipe that has ended.
var ErrClosed = errors.New("closed")

// End is one end of a pipe of frames: an exchange.Stream.
type End struct {
	*pipe
	other *End
	in    chan []byte
	wake  Waiter // of the exchange that has this end
	stop  *atomic.Bool
}

type pipe struct {
	mu     sync.Mutex
	closed bool
	cut    func() bool
}

// Pipe returns the two ends of a pipe, for exchanges with two Waiters. An end does not receive
// while its stop is set, which may be nil. No frame passes once cut returns true; it may be nil.
func Pipe(a, b Waiter, stopA, stopB *atomic.Bool, cut func() bool) (*End, *End) {
	p := &pipe{cut: cut}
	x := &End{pipe: p, in: make(chan []byte, pipeFrames), wake: a, stop: stopA}
	y := &End{pipe: p, in: make(chan []byte, pipeFrames), wake: b, stop: stopB, other: x}
	x.other = y
	return x, y
}

func (p *pipe) isClosed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed
}

func (e *End) stopped() bool { return e.stop != nil && e.stop.Load() || e.cut != nil && e.cut() }

// Receive returns the next frame, or nil.
func (e *End) Receive() ([]byte, error) {
	switch {
	case e.isClosed():
		return nil, ErrClosed
	case e.stopped():
		return nil, nil
	}
	select {
	case frame := <-e.in:
		e.other.wake.Wake()
		return frame, nil
	default:
		return nil, nil
	}
}

// Ready reports whether Send has room.
func (e *End) Ready() bool { return len(e.other.in) < pipeFrames }

// Send sends a frame.
func (e *End) Send(frame []byte) error {
	if e.isClosed() {
		return ErrClosed
	}
	e.other.in <- frame // Ready: there is room
	e.other.wake.Wake()
	return nil
}

// End ends the pipe.
func (e *End) End(error) {
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
	e.wake.Wake()
	e.other.wake.Wake()
}

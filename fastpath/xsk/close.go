package xsk

import (
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"sluice.dev/sluice/fastpath"
)

// KeptError is returned by Close if it could not free all frames, because the device may still read
// or write them. The next socket that is opened on the same interface and queue with the same UMEM
// gets them.
type KeptError struct {
	Interface string
	Queue     int
	Frames    int
}

func (e *KeptError) Error() string {
	return fmt.Sprintf(
		"AF_XDP socket on %s queue %d: %d frames are kept until the queue is bound again", e.Interface, e.Queue,
		e.Frames,
	)
}

const (
	drainFor  = 50 * time.Millisecond // for packets inside the device to be sent
	drainStep = time.Millisecond
)

// Close gives the socket's frames back to the pool and unmaps its rings. The worker must not use
// the socket again. Close first waits briefly (drainFor) for packets inside the device. Then it
// takes back at once the frames in:
//
//	                         copy                  zero-copy             device deleted
//	receive, completion      yes                   yes                   yes
//	transmit, not taken      yes                   yes                   yes
//	fill, or inside the      yes: the kernel       no: until the pool    yes
//	device for receiving     wrote by CPU, under   is released the
//	                         RCU, and close waits  device may write
//	inside the device,       no: some drivers      no                    yes
//	being sent               send from the page
//
// If frames remain, the error is a *KeptError. With a nil pool all frames are lost.
func (s *Socket) Close(p *fastpath.Pool) error {
	if s.fd < 0 {
		return fmt.Errorf("AF_XDP socket on %s queue %d: closed twice", s.name, s.queue)
	}
	s.Probe()
	s.drain()
	u := s.umem
	u.mu.Lock()
	defer u.mu.Unlock()
	// After this the kernel processes no packet of the socket: before close returns, it unbinds the
	// socket and waits for every CPU to leave it. The mappings stay.
	err := s.closeFD()
	back, behind := s.sort()
	for _, addr := range back {
		s.owners[addr>>s.frameShift] = userSpace
		if p != nil {
			p.Put(addr)
		}
	}
	for _, addr := range behind {
		s.owners[addr>>s.frameShift] = kept
	}
	if len(behind) > 0 {
		u.keptFrames = append(u.keptFrames, keptFrames{s.ifindex, s.queue, behind})
		u.kept.Add(int64(len(behind)))
	}
	u.sockets[s.slot] = nil
	s.frames, s.done, s.up = 0, nil, false
	if e := s.release(); err == nil {
		err = e
	}
	if !slices.ContainsFunc(u.sockets[:], func(peer *Socket) bool { return peer.sharable(s, s.mode) }) {
		u.ended.Store(time.Now().UnixNano())
	}
	if err == nil && len(behind) > 0 {
		return &KeptError{s.name, s.queue, len(behind)}
	}
	return err
}

// drain waits, at most drainFor, until all transmitted frames are completed.
func (s *Socket) drain() {
	deadline := time.Now().Add(drainFor)
	for s.up && !s.gone.Load() && s.sending() && time.Now().Before(deadline) {
		s.Flush()
		if s.stash() == 0 {
			time.Sleep(drainStep)
		}
	}
}

// sending reports whether the transmit side has any frame that is not completed.
func (s *Socket) sending() bool {
	for _, o := range s.owners {
		if o == s.inTx {
			return true
		}
	}
	return false
}

// sort divides the socket's frames, after its descriptor was closed, into frames that can be used
// again at once (back) and frames that the device may still use (behind).
func (s *Socket) sort() (back, behind []uint64) {
	back = append(back, s.done...)
	back = s.takePartial(back)
	for i := range s.completion.peek(s.completion.mask + 1) {
		if addr := *s.completion.at(i); s.owners.take(addr>>s.frameShift, s.inTx) {
			back = append(back, addr)
		}
	}
	for i := range s.rx.peek(s.rx.mask + 1) {
		if addr := s.rx.at(i).Addr; s.owners.take(addr>>s.frameShift, s.inFill) {
			back = append(back, addr)
		}
	}
	for i := atomic.LoadUint32(s.tx.consumer); i != s.tx.local; i++ {
		if addr := s.tx.slots[i&s.tx.mask].Addr; s.owners.take(addr>>s.frameShift, s.inTx) {
			back = append(back, addr)
		}
	}
	gone := s.gone.Load()
	for frame, o := range s.owners {
		safe := gone || (o == s.inFill && s.copyMode)
		switch {
		case o != s.inFill && o != s.inTx:
		case safe:
			back = append(back, uint64(frame)<<s.frameShift)
		default:
			behind = append(behind, uint64(frame)<<s.frameShift)
		}
	}
	return back, behind
}

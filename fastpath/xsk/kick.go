package xsk

import (
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Counters counts the results of a socket's system calls. The worker is its only writer; an
// exporter gets a copy through the worker.
type Counters struct {
	Kicks    uint64 // sendto calls
	RxKicks  uint64 // recvfrom calls
	EAGAIN   uint64 // budget of one call spent, completion ring or send buffer full, or device busy: retried
	EBUSY    uint64 // copy mode: the device dropped a packet; zero-copy: busy
	ENOBUFS  uint64
	ENETDOWN uint64
	ENXIO    uint64
	EINVAL   uint64
	EINTR    uint64
	Other    uint64
	// Stalls counts calls that returned success and sent no packet, which happens for a queue that
	// the device no longer has.
	Stalls uint64
	// ForeignFrames counts frames that the kernel returned but did not own, which is a kernel bug.
	// They are ignored.
	ForeignFrames uint64
}

// Counters returns a copy.
func (s *Socket) Counters() Counters { return s.counters }

const (
	// maxDropped bounds the calls in one Flush that each drop a packet.
	maxDropped = 64
	// spareKicks is the number of calls beyond the number that a full ring needs.
	spareKicks = 8
	// probeEvery is the number of Flush calls without a system call after which the link's state is
	// checked.
	probeEvery = 64
)

// Flush implements fastpath.Link. In copy mode the system call itself sends, so it is repeated
// until the ring is empty or a call sends nothing; the next Flush sends the rest. In zero-copy mode
// one call wakes the driver, if it sleeps, or polls it.
func (s *Socket) Flush() {
	s.unsent = false
	if s.gone.Load() {
		return
	}
	if !s.up || s.tx.untaken() == 0 {
		s.flushQuiet()
		s.unsent = s.copyMode && s.up && s.tx.untaken() != 0 // the link is up again
		return
	}
	s.quiet = 0
	if !s.tx.needWakeup() && !s.busyPoll {
		return
	}
	if !s.copyMode {
		errno := s.kick()
		s.handleResult(errno)
		s.unsent = transient(errno)
		return
	}
	dropped := 0
	for range int(s.tx.mask+1)/minTxBudget + maxDropped + spareKicks {
		before := s.tx.untaken()
		if before == 0 {
			return
		}
		errno := s.kick()
		s.handleResult(errno)
		progress := s.tx.untaken() != before
		switch errno {
		case 0, unix.EAGAIN:
			// A full completion ring is EAGAIN, or success up to Linux 6.12 (xsk_generic_xmit).
			if progress || s.stash() != 0 {
				continue
			}
			if errno == 0 {
				s.counters.Stalls++
			}
			s.unsent = errno != 0 || s.inFlight() > s.completion.mask
			return
		case unix.EBUSY:
			// One packet was dropped and completed; the rest of the ring was not processed.
			if dropped++; dropped == maxDropped {
				s.unsent = true
				return
			}
		case unix.EINTR:
		default:
			s.unsent = transient(errno)
			return
		}
	}
	s.unsent = s.tx.untaken() != 0
}

// flushQuiet is Flush without frames to send. It probes a link that is down each time, and an idle
// link rarely, to notice that it went down.
//
// If the worker polls its devices itself, it polls them here.
func (s *Socket) flushQuiet() {
	if s.busyPoll && s.up {
		s.quiet = 0
		s.wakeReceive()
		return
	}
	if s.quiet++; s.up && s.quiet < probeEvery {
		return
	}
	s.Probe()
}

// transient reports whether a repeated call may succeed after this error.
func transient(errno unix.Errno) bool {
	switch errno {
	case unix.EAGAIN, unix.EBUSY, unix.EINTR, unix.ENOBUFS, unix.ENOMEM:
		return true
	}
	return false
}

// inFlight returns the number of frames that the kernel took to send and has not completed.
func (s *Socket) inFlight() uint32 {
	return atomic.LoadUint32(s.tx.consumer) - atomic.LoadUint32(s.completion.producer)
}

// Unsent implements fastpath.Link. In copy mode frames stay in the transmit ring if a call finds
// the send buffer full or the device busy, and only another call sends them. A zero-copy driver
// sends without further calls once a call has woken it. Frames of a queue that sends none at all
// (Stalls) do not count: another call would not help.
func (s *Socket) Unsent() bool { return s.unsent }

// Probe implements fastpath.Link. It updates Up and Gone by a short system call. Callers use it
// when poll(2) timed out or a change of the link was reported.
func (s *Socket) Probe() {
	s.quiet = 0
	if !s.gone.Load() {
		s.handleResult(s.kick())
	}
}

// kick makes the kernel process the transmit ring. RawSyscall, which the Go scheduler does not know
// of, would save 35 of 265 ns per call (BenchmarkKick), half a nanosecond per packet of a full
// batch. But in copy mode the call takes about 50 us per 64 packets, during which no other
// goroutine could stop the world.
func (s *Socket) kick() unix.Errno {
	s.counters.Kicks++
	_, _, errno := unix.Syscall6(unix.SYS_SENDTO, uintptr(s.fd), 0, 0, unix.MSG_DONTWAIT, 0, 0)
	return errno
}

// wakeReceive makes a sleeping zero-copy driver process the fill ring. With busy polling it also
// polls the device.
func (s *Socket) wakeReceive() {
	s.counters.RxKicks++
	_, _, errno := unix.Syscall6(unix.SYS_RECVFROM, uintptr(s.fd), 0, 0, unix.MSG_DONTWAIT, 0, 0)
	s.handleResult(errno)
}

// handleResult counts the result of a call and sets the link's state accordingly.
func (s *Socket) handleResult(errno unix.Errno) {
	down := false
	switch errno {
	case 0:
	case unix.EAGAIN:
		s.counters.EAGAIN++
	case unix.EBUSY:
		s.counters.EBUSY++
	case unix.ENOBUFS:
		s.counters.ENOBUFS++
	case unix.EINTR:
		s.counters.EINTR++
	case unix.EINVAL:
		s.counters.EINVAL++
	case unix.ENETDOWN:
		s.counters.ENETDOWN++
		down = true
	case unix.ENXIO:
		s.counters.ENXIO++
		down = true
		s.noticeGone()
	default:
		s.counters.Other++
	}
	s.up = !down
}

// noticeGone sets gone if ENXIO means that the device was deleted. In copy mode only an unbound
// socket gets ENXIO, and only the device's deletion unbinds a socket. A zero-copy driver also
// returns ENXIO while it has no XDP program; a deletion then also leaves the error ENETDOWN on the
// socket.
func (s *Socket) noticeGone() {
	pending, err := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if s.copyMode || (err == nil && unix.Errno(pending) == unix.ENETDOWN) {
		s.gone.Store(true)
	}
}

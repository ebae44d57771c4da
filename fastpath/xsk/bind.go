package xsk

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

var (
	// ErrQueueTaken is returned by Open when another socket had the queue for all of
	// Config.RebindFor.
	ErrQueueTaken = errors.New("queue is taken")
	// ErrMemlock is returned by Open when the kernel may not lock the UMEM in memory.
	ErrMemlock = errors.New(
		"the UMEM exceeds RLIMIT_MEMLOCK: grant CAP_IPC_LOCK, or raise the limit (systemd: LimitMEMLOCK=infinity)",
	)
	// ErrNoZeroCopy is returned by Open when ZeroCopy was requested and refused.
	ErrNoZeroCopy = errors.New("no zero-copy")
)

const (
	rebindFirst = time.Millisecond
	rebindLast  = 20 * time.Millisecond
)

// bind binds the socket, and waits for a queue that is still taken, or memory that still counts: a
// closed socket's pool is released by a kernel worker some 20 ms later.
func (s *Socket) bind(parent context.Context, c *Config, mtu int) error {
	ctx, cancel := context.WithTimeout(parent, c.RebindFor)
	defer cancel()
	timer := time.NewTimer(0)
	defer timer.Stop()
	<-timer.C
	for wait := rebindFirst; ; wait = min(2*wait, rebindLast) {
		err := s.tryBind(c, mtu, ctx.Err() != nil)
		if err == nil || !s.umem.passing(err) {
			return err
		}
		if err := parent.Err(); err != nil {
			return fmt.Errorf("waiting for the queue: %w", err)
		}
		if ctx.Err() != nil && errors.Is(err, ErrMemlock) {
			return err
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%w: another program, or another socket of this one, is bound to it", ErrQueueTaken)
		}
		timer.Reset(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
	}
}

// tryBind takes zero-copy if the configuration allows it and the device has it, else copy mode.
// The UMEM is locked so that no descriptor is closed, and reused, meanwhile.
func (s *Socket) tryBind(c *Config, mtu int, last bool) error {
	s.umem.mu.Lock()
	defer s.umem.mu.Unlock()
	reason := cmp.Or(c.CopyReason, "copy mode was asked for")
	if c.Mode != Copy {
		err := s.attempt(c, ZeroCopy)
		if err == nil {
			return s.bound(c, ZeroCopy, "the driver supports it")
		}
		reason = whyNoZeroCopy(err, mtu, s.umem.frameSize)
		switch {
		case s.umem.passing(err) && (!last || c.Mode == ZeroCopy):
			// A busy queue is no reason for copy mode before the last try: it may be the old
			// socket's, and so may memory.
			return err
		case c.Mode == ZeroCopy && errors.Is(err, ErrMemlock):
			return err
		case c.Mode == ZeroCopy:
			return fmt.Errorf("%w: %s", ErrNoZeroCopy, reason)
		}
	}
	if err := s.attempt(c, Copy); err != nil {
		return explainBind(err, s)
	}
	return s.bound(c, Copy, reason)
}

// attempt binds in one mode. A registration of memory has one mode (xp_assign_dev_shared,
// net/xdp/xsk_buff_pool.c), so the socket joins a socket of the UMEM that is bound in that mode, or
// registers the memory itself, once more if sockets of the other mode have done so. Frames are the
// same in all registrations. The same holds for sockets that take packets in several frames
// (XDP_UMEM_SG_FLAG, net/xdp/xsk.c).
func (s *Socket) attempt(c *Config, mode Mode) error {
	if mode == ZeroCopy && s.knownWithout() {
		return unix.EOPNOTSUPP
	}
	for _, peer := range s.umem.sockets {
		if !peer.sharable(s, mode) {
			continue
		}
		if err := s.renew(c); err != nil {
			return err
		}
		// Shared sockets inherit mode and need-wakeup; any further flag is EINVAL.
		err := s.bindTo(c, unix.XDP_SHARED_UMEM, peer.fd)
		if errors.Is(err, unix.EBADF) {
			continue // its device was deleted, and its worker has not noticed yet
		}
		return s.noticed(mode, err)
	}
	if err := s.register(); err != nil {
		return err
	}
	flag := uint16(unix.XDP_COPY)
	if mode == ZeroCopy {
		flag = unix.XDP_ZEROCOPY
	}
	if s.long {
		flag |= unix.XDP_USE_SG
	}
	return s.noticed(mode, s.bindTo(c, unix.XDP_USE_NEED_WAKEUP|flag, 0))
}

// noticed remembers that the driver has no zero-copy, on any queue and with any memory.
func (s *Socket) noticed(mode Mode, err error) error {
	s.without = s.without || mode == ZeroCopy && errors.Is(err, unix.EOPNOTSUPP)
	return err
}

// knownWithout reports whether this socket or a bound one on the same device has found that the
// driver has no zero-copy. It saves a useless registration of memory, which pins every page.
func (s *Socket) knownWithout() bool {
	for _, other := range s.umem.sockets {
		if other != nil && other.ifindex == s.ifindex && other.without && other.mode == Copy && !other.gone.Load() {
			return true
		}
	}
	return s.without
}

// sharable reports whether another socket may share this one's registration: it is open, bound in
// that mode, for packets in several frames or not, and on another queue, for two sockets on one
// queue would have to share their fill and completion rings.
func (s *Socket) sharable(other *Socket, mode Mode) bool {
	return s != nil && s != other && s.mode == mode && s.long == other.long && s.fd >= 0 && !s.gone.Load() &&
		(s.ifindex != other.ifindex || s.queue != other.queue)
}

// register registers the UMEM with this socket, if that has not been done.
func (s *Socket) register() error {
	if s.registered {
		return nil
	}
	err := explainRegister(registerUMEM(s.fd, s.umem))
	s.registered = err == nil
	return err
}

func explainRegister(err error) error {
	switch {
	case errors.Is(err, unix.ENOBUFS):
		return ErrMemlock
	case err != nil:
		return fmt.Errorf("registering the UMEM: %w", err)
	}
	return nil
}

// renew gives a socket that registered memory and could not be bound a new descriptor: with a
// registration of its own it cannot share another one (xsk_bind, net/xdp/xsk.c).
func (s *Socket) renew(c *Config) error {
	if !s.registered {
		return nil
	}
	if err := s.release(); err != nil {
		return err
	}
	s.registered = false
	s.umem.ended.Store(time.Now().UnixNano())
	return s.prepare(c)
}

// bindTo calls bind.
func (s *Socket) bindTo(c *Config, flags uint16, sharedFD int) error {
	return c.kernel.bind(s.fd, &unix.SockaddrXDP{
		Flags: flags, Ifindex: uint32(s.ifindex), QueueID: uint32(s.queue), SharedUmemFD: uint32(sharedFD),
	})
}

// bound reads from the kernel which mode it chose.
func (s *Socket) bound(c *Config, want Mode, reason string) error {
	options, err := c.kernel.options(s.fd)
	if err != nil {
		return fmt.Errorf("reading the mode: %w", err)
	}
	s.mode, s.reason = Copy, reason
	if options&unix.XDP_OPTIONS_ZEROCOPY != 0 {
		s.mode = ZeroCopy
	}
	s.copyMode = s.mode == Copy
	if s.mode != want {
		return fmt.Errorf("the kernel was asked for %v and chose %v, which it never should", want, s.mode)
	}
	return nil
}

// kernel has the system calls that tests replace, to simulate drivers with zero-copy on a kernel
// that has none.
type kernel struct {
	bind    func(fd int, to *unix.SockaddrXDP) error
	options func(fd int) (uint32, error)
}

var realKernel = kernel{
	bind: func(fd int, to *unix.SockaddrXDP) error { return unix.Bind(fd, to) },
	options: func(fd int) (options uint32, err error) {
		return options, getsockopt(fd, unix.XDP_OPTIONS, &options)
	},
}

// Room that a zero-copy packet needs beside its MTU: Ethernet header, two VLAN
// tags, FCS (ETH_PAD_LEN, net/xdp/xsk_buff_pool.c), in usable frame bytes that the
// kernel rounds down to 128.
const (
	framingBytes = 14 + 2*4 + 4
	usableAlign  = 128
)

func whyNoZeroCopy(err error, mtu, frameSize int) string {
	usable := (frameSize - packetHeadroom) &^ (usableAlign - 1)
	switch {
	case errors.Is(err, unix.EOPNOTSUPP):
		return "the driver has no AF_XDP zero-copy"
	case errors.Is(err, unix.EINVAL) && mtu+framingBytes > usable:
		return fmt.Sprintf(
			"MTU %d does not fit zero-copy frames of %d bytes, the largest that does is %d", mtu, frameSize,
			usable-framingBytes,
		)
	case errors.Is(err, unix.EBUSY):
		return "the queue was busy (another socket, or a memory provider)"
	case errors.Is(err, ErrMemlock):
		return "sockets of two modes lock the frames twice, which RLIMIT_MEMLOCK does not allow: grant CAP_IPC_LOCK, " +
			"or raise the limit (systemd: LimitMEMLOCK=infinity)"
	default:
		return fmt.Sprintf("the driver refused zero-copy: %v", err)
	}
}

func explainSocket(err error) error {
	switch {
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w: CAP_NET_RAW is needed", err)
	case errors.Is(err, unix.EAFNOSUPPORT):
		return fmt.Errorf("%w: this kernel is built without CONFIG_XDP_SOCKETS", err)
	}
	return err
}

func explainBind(err error, s *Socket) error {
	switch {
	case errors.Is(err, unix.EINVAL):
		return fmt.Errorf("bind: %w: the interface has no queue %d", err, s.queue)
	case errors.Is(err, unix.ENODEV):
		return fmt.Errorf("bind: %w: the interface was deleted", err)
	case errors.Is(err, ErrMemlock):
		return err
	}
	return fmt.Errorf("bind: %w", err)
}

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
	// ErrQueueTaken is returned by Open if another socket held the queue during all of
	// Config.RebindFor.
	ErrQueueTaken = errors.New("queue is taken")
	// ErrMemlock is returned by Open if a limit prevents the kernel from locking the UMEM in
	// memory.
	ErrMemlock = errors.New(
		"the UMEM exceeds RLIMIT_MEMLOCK: grant CAP_IPC_LOCK, or raise the limit (systemd: LimitMEMLOCK=infinity)",
	)
	// ErrNoZeroCopy is returned by Open if ZeroCopy was requested and the kernel or driver refused
	// it.
	ErrNoZeroCopy = errors.New("no zero-copy")
)

const (
	rebindFirst = time.Millisecond
	rebindLast  = 20 * time.Millisecond
)

// bind binds the socket. It waits for a queue that is still taken, or memory that is still
// accounted: a kernel worker releases a closed socket's pool about 20 ms later.
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

// tryBind uses zero-copy if the configuration allows it and the device supports it, else copy mode.
// It locks the UMEM so that no descriptor is closed, and its number reused, meanwhile.
func (s *Socket) tryBind(c *Config, mtu int, last bool) error {
	s.umem.mu.Lock()
	defer s.umem.mu.Unlock()
	reason := cmp.Or(c.CopyReason, "copy mode was requested")
	if c.Mode != Copy {
		err := s.attempt(c, ZeroCopy)
		if err == nil {
			return s.bound(c, ZeroCopy, "the driver supports it")
		}
		reason = whyNoZeroCopy(err, mtu, s.umem.frameSize)
		switch {
		case s.umem.passing(err) && (!last || c.Mode == ZeroCopy):
			// Do not fall back to copy mode before the last try: an old socket may still hold the
			// queue or the memory.
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
// net/xdp/xsk_buff_pool.c). So the socket joins a socket of the UMEM that is bound in that mode, or
// registers the memory itself, even if sockets of the other mode have also registered it. All
// registrations have the same frames. Sockets that accept packets in several frames likewise need
// their own registration (XDP_UMEM_SG_FLAG, net/xdp/xsk.c).
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
			continue // the peer's device was deleted, and its worker has not noticed yet
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

// noticed records in without that the driver has no zero-copy, for any queue and memory.
func (s *Socket) noticed(mode Mode, err error) error {
	s.without = s.without || mode == ZeroCopy && errors.Is(err, unix.EOPNOTSUPP)
	return err
}

// knownWithout reports whether this socket, or a bound one on the same device, has found that the
// driver has no zero-copy. It avoids a useless registration of memory, which pins every page.
func (s *Socket) knownWithout() bool {
	for _, other := range s.umem.sockets {
		if other != nil && other.ifindex == s.ifindex && other.without && other.mode == Copy && !other.gone.Load() {
			return true
		}
	}
	return s.without
}

// sharable reports whether another socket may share s's registration: s must be open and bound in
// that mode, have the same value of long, and be on another queue, because two sockets on one queue
// would have to share their fill and completion rings.
func (s *Socket) sharable(other *Socket, mode Mode) bool {
	return s != nil && s != other && s.mode == mode && s.long == other.long && s.fd >= 0 && !s.gone.Load() &&
		(s.ifindex != other.ifindex || s.queue != other.queue)
}

// register registers the UMEM with this socket, unless it has already done so.
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

// renew gives the socket a new descriptor if it has registered memory and could not be bound: a
// socket with its own registration cannot share another one (xsk_bind, net/xdp/xsk.c).
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

// bindTo calls bind(2).
func (s *Socket) bindTo(c *Config, flags uint16, sharedFD int) error {
	return c.kernel.bind(s.fd, &unix.SockaddrXDP{
		Flags: flags, Ifindex: uint32(s.ifindex), QueueID: uint32(s.queue), SharedUmemFD: uint32(sharedFD),
	})
}

// bound reads the mode that the kernel chose, and checks that it is want.
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
		return fmt.Errorf("requested mode %v, but the kernel chose %v: a kernel bug", want, s.mode)
	}
	return nil
}

// kernel has the system calls that tests replace, to simulate drivers with zero-copy on a machine
// without one.
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

// framingBytes is the room that a zero-copy packet needs besides its MTU: Ethernet header, two VLAN
// tags, FCS (ETH_PAD_LEN, net/xdp/xsk_buff_pool.c). The kernel rounds the usable bytes of a frame
// down to a multiple of usableAlign.
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
			"MTU %d does not fit zero-copy frames of %d bytes, the largest MTU that fits is %d", mtu, frameSize,
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

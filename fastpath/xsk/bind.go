package xsk

import (
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
	ErrMemlock = errors.New("the UMEM exceeds RLIMIT_MEMLOCK: grant CAP_IPC_LOCK, or raise the limit (systemd: LimitMEMLOCK=infinity)")
	// ErrNoZeroCopy is returned by Open when ZeroCopy was asked for and refused.
	ErrNoZeroCopy = errors.New("no zero-copy")
)

const (
	rebindFirst = time.Millisecond
	rebindLast  = 20 * time.Millisecond
)

// bind binds the socket, and waits for a queue that is still taken: a closed
// socket's pool is released by a kernel worker some 20 ms later.
func (s *Socket) bind(parent context.Context, c *Config, mtu int) error {
	ctx, cancel := context.WithTimeout(parent, c.RebindFor)
	defer cancel()
	timer := time.NewTimer(0)
	defer timer.Stop()
	<-timer.C
	for wait := rebindFirst; ; wait = min(2*wait, rebindLast) {
		err := s.tryBind(c, mtu, ctx.Err() != nil)
		if err == nil || !errors.Is(err, unix.EBUSY) {
			return err
		}
		if err := parent.Err(); err != nil {
			return fmt.Errorf("waiting for the queue: %w", err)
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

// tryBind joins a bound socket of the same UMEM, or registers the UMEM and binds
// alone. The UMEM is locked so that no descriptor is closed, and reused, meanwhile.
func (s *Socket) tryBind(c *Config, mtu int, last bool) error {
	s.umem.mu.Lock()
	defer s.umem.mu.Unlock()
	if c.ShareWith != nil && c.ShareWith.umem != s.umem {
		return errors.New("ShareWith is a socket on another UMEM")
	}
	for _, peer := range append([]*Socket{c.ShareWith}, s.umem.sockets[:]...) {
		if s.registered || !peer.sharable(s) {
			continue
		}
		// Shared sockets inherit mode and need-wakeup; any further flag is EINVAL.
		err := s.bindTo(unix.XDP_SHARED_UMEM, peer.fd)
		if errors.Is(err, unix.EBADF) {
			continue // its device was deleted, and its worker has not noticed yet
		}
		if err != nil {
			return explainShared(err, s, peer)
		}
		return s.bound(c, fmt.Sprintf("inherited from %s queue %d: %s", peer.name, peer.queue, peer.reason))
	}
	return s.bindAlone(c, mtu, last)
}

// sharable says whether another socket may share this one's registration: it is
// open, bound (a mode was found), and on another queue, for two sockets on one queue
// would have to share their fill and completion rings.
func (s *Socket) sharable(other *Socket) bool {
	return s != nil && s != other && s.mode != Auto && s.fd >= 0 && !s.gone.Load() &&
		(s.ifindex != other.ifindex || s.queue != other.queue)
}

// bindAlone registers the UMEM with this socket and tries the modes in turn. A busy
// queue is no reason for copy mode before the last try: it may be the old socket's.
func (s *Socket) bindAlone(c *Config, mtu int, last bool) error {
	if !s.registered {
		err := registerUMEM(s.fd, s.umem)
		if errors.Is(err, unix.ENOBUFS) {
			return ErrMemlock
		}
		if err != nil {
			return fmt.Errorf("registering the UMEM: %w", err)
		}
		s.registered = true
	}
	const flags = unix.XDP_USE_NEED_WAKEUP
	reason := "copy mode was asked for"
	if c.Mode != Copy {
		err := s.bindTo(flags|unix.XDP_ZEROCOPY, 0)
		if err == nil {
			return s.bound(c, "the driver supports it")
		}
		reason = whyNoZeroCopy(err, mtu, s.umem.frameSize)
		switch busy := errors.Is(err, unix.EBUSY); {
		case busy && (!last || c.Mode == ZeroCopy):
			return err
		case c.Mode == ZeroCopy:
			return fmt.Errorf("%w: %s", ErrNoZeroCopy, reason)
		}
	}
	if err := s.bindTo(flags|unix.XDP_COPY, 0); err != nil {
		return explainBind(err, s)
	}
	return s.bound(c, reason)
}

// bindTo makes the system call.
func (s *Socket) bindTo(flags uint16, sharedFD int) error {
	return unix.Bind(s.fd, &unix.SockaddrXDP{
		Flags: flags, Ifindex: uint32(s.ifindex), QueueID: uint32(s.queue), SharedUmemFD: uint32(sharedFD),
	})
}

// bound asks the kernel which mode it chose.
func (s *Socket) bound(c *Config, reason string) error {
	var options uint32
	if err := getsockopt(s.fd, unix.XDP_OPTIONS, &options); err != nil {
		return fmt.Errorf("reading the mode: %w", err)
	}
	s.mode, s.reason = Copy, reason
	if options&unix.XDP_OPTIONS_ZEROCOPY != 0 {
		s.mode = ZeroCopy
	}
	s.copyMode = s.mode == Copy
	if c.Mode != Auto && c.Mode != s.mode {
		return fmt.Errorf("%v was asked for, but the UMEM is in %v (%s): sockets of different modes need a UMEM each", c.Mode, s.mode, reason)
	}
	return nil
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
		return fmt.Sprintf("MTU %d does not fit zero-copy frames of %d bytes, the largest that does is %d", mtu, frameSize, usable-framingBytes)
	case errors.Is(err, unix.EBUSY):
		return "the queue was busy (another socket, or a memory provider)"
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
	}
	return fmt.Errorf("bind: %w", err)
}

func explainShared(err error, s, peer *Socket) error {
	if errors.Is(err, unix.EOPNOTSUPP) && peer.mode == ZeroCopy {
		return fmt.Errorf("%w: the UMEM is in zero-copy mode by %s, and this driver has none: use a UMEM of its own", ErrNoZeroCopy, peer.name)
	}
	return explainBind(err, s)
}

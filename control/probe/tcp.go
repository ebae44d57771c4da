package probe

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/control/endpointhealth"
	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/internal/duequeue"
	"sluice.dev/sluice/internal/heartbeat"
)

// connector connects: a socket for each attempt, and one epoll for all. A goroutine and a
// net.Dialer for each would cost several times as much. A TCP check is over then; others go on with
// the first socket that is connected.
//
// For a TCP check the endpoint's SYN-ACK is the answer, and the next packet is an RST, as with
// HAProxy: the handshake is not completed, so the server that listens there sees no connection come
// and go, and neither side has a TIME_WAIT. The kernel sends an ACK all the same if this process is
// late with the RST by 200 ms (TCP_DELACK_MAX).
type connector struct {
	deliver func([]Finished)
	// connected takes the socket of a check that is of another kind than CheckTCP.
	connected func(s endpointhealth.Start, fd int, began time.Time)
	beat      *heartbeat.Beat // of run
	epoll     int

	mu     sync.Mutex
	wake   int // eventfd; -1 after run's end, whose goroutine alone writes it
	fresh  []endpointhealth.Start
	closed bool

	// Only run's goroutine uses these.
	sockets map[int32]*connecting
	timers  duequeue.Queue[*connecting]
	ended   []Finished // that are not delivered yet
}

// connecting is a check that is under way.
type connecting struct {
	duequeue.Timer // of the next attempt or, after the last, of the end

	start endpointhealth.Start
	began time.Time
	fds   [attempts]int
	n     int // attempts begun
}

func newConnector(deliver func([]Finished)) (*connector, error) {
	c := &connector{deliver: deliver, sockets: map[int32]*connecting{}}
	var err error
	if c.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, fmt.Errorf("epoll for checks of endpoints: %w", err)
	}
	if c.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return nil, errors.Join(fmt.Errorf("eventfd for checks of endpoints: %w", err), unix.Close(c.epoll))
	}
	event := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(c.wake)}
	if err := unix.EpollCtl(c.epoll, unix.EPOLL_CTL_ADD, c.wake, &event); err != nil {
		return nil, errors.Join(fmt.Errorf("epoll for checks of endpoints: %w", err), unix.Close(c.wake),
			unix.Close(c.epoll))
	}
	return c, nil
}

// start queues a check.
func (c *connector) start(s endpointhealth.Start) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fresh = append(c.fresh, s); len(c.fresh) == 1 {
		c.signal()
	}
}

// signal makes run look at changes. The caller holds mu: after run has ended, the number of wake
// may be another file's. An eventfd's count cannot overflow by these calls.
func (c *connector) signal() {
	if c.wake >= 0 {
		_, _ = unix.Write(c.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	}
}

// close ends run.
func (c *connector) close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	c.signal()
	return nil
}

// run makes checks until close.
func (c *connector) run() {
	defer c.release()
	defer c.beat.Rest()
	events := make([]unix.EpollEvent, 256)
	var fresh []endpointhealth.Start
	for {
		c.mu.Lock()
		fresh, c.fresh = c.fresh, fresh[:0]
		closed := c.closed
		c.mu.Unlock()
		if closed {
			return
		}
		now := time.Now()
		for _, s := range fresh {
			c.begin(s, now)
		}
		c.beat.Rest()
		n, err := unix.EpollWait(c.epoll, events, c.timeout(now))
		c.beat.Beat()
		if err != nil && !errors.Is(err, unix.EINTR) {
			return // the epoll is of this process alone: it cannot fail otherwise
		}
		now = time.Now()
		for _, e := range events[:max(n, 0)] {
			if e.Fd == int32(c.wake) {
				var count [8]byte
				_, _ = unix.Read(c.wake, count[:])
				continue
			}
			if k := c.sockets[e.Fd]; k != nil {
				c.ready(k, e, now)
			}
		}
		// Not before all answers are read: where this process was late, they are there.
		if n < len(events) {
			c.expire(now)
		}
		if len(c.ended) > 0 {
			c.deliver(c.ended)
			c.ended = nil
		}
	}
}

// timeout returns in how many milliseconds the first timer is due, rounded up; -1 is never. Checks
// that ended as they began wait for nothing.
func (c *connector) timeout(now time.Time) int {
	if len(c.ended) > 0 {
		return 0
	}
	first, ok := c.timers.First()
	if !ok {
		return -1
	}
	return int(max(0, (first.Due().Sub(now)+time.Millisecond-1)/time.Millisecond))
}

func (c *connector) begin(s endpointhealth.Start, now time.Time) {
	c.attempt(&connecting{start: s, began: now}, now)
}

// expire makes the attempts that are due, and ends checks whose time is up.
func (c *connector) expire(now time.Time) {
	for {
		k, ok := c.timers.First()
		switch {
		case !ok || k.Due().After(now):
			return
		case k.n < attempts:
			c.attempt(k, now)
		default:
			c.end(k, endpointhealth.Result{Detail: explain(errNoAnswer, k.start.Check.Timeout)})
		}
	}
}

// attempt begins the next attempt of a check.
func (c *connector) attempt(k *connecting, now time.Time) {
	fd, err := c.connect(k.start.Target)
	switch {
	case err == nil:
		k.fds[k.n] = fd
		k.n++
		c.sockets[int32(fd)] = k
		c.timers.Schedule(k, now.Add(k.start.Check.Timeout/attempts))
	default:
		c.end(k, resultOf("", err, 0, k.start.Check.Timeout))
	}
}

func (c *connector) connect(to netip.AddrPort) (fd int, err error) {
	family, address := unix.AF_INET, unix.Sockaddr(nil)
	if a := to.Addr(); a.Is4() {
		address = &unix.SockaddrInet4{Port: int(to.Port()), Addr: a.As4()}
	} else {
		family, address = unix.AF_INET6, &unix.SockaddrInet6{Port: int(to.Port()), Addr: a.As16()}
	}
	fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("%w: %w", errLocal, err)
	}
	linger := unix.Linger{Onoff: 1} // close resets
	err = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &linger)
	if err == nil {
		// The ACK of a SYN-ACK waits for data then (tcp_rcv_synsent_state_process,
		// net/ipv4/tcp_input.c).
		err = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_QUICKACK, 0)
	}
	if err == nil {
		event := unix.EpollEvent{Events: unix.EPOLLOUT | unix.EPOLLONESHOT, Fd: int32(fd)}
		err = unix.EpollCtl(c.epoll, unix.EPOLL_CTL_ADD, fd, &event)
	}
	if err != nil {
		err = fmt.Errorf("%w: %w", errLocal, err)
	} else if err = unix.Connect(fd, address); errors.Is(err, unix.EINPROGRESS) {
		return fd, nil
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil // epoll reports at once that it is connected
}

// ready handles an answered attempt: any answer ends the check. An error is an RST or
// an ICMP error: the kernel accepts both only with the sequence number of the SYN, so a host on the
// path sent them.
func (c *connector) ready(k *connecting, e unix.EpollEvent, now time.Time) {
	var err error
	if e.Events&(unix.EPOLLERR|unix.EPOLLHUP) != 0 {
		var code int
		if code, err = unix.GetsockoptInt(int(e.Fd), unix.SOL_SOCKET, unix.SO_ERROR); err == nil && code != 0 {
			err = unix.Errno(code)
		}
	}
	if err == nil && k.start.Check.Kind != objects.CheckTCP {
		c.hand(k, e.Fd)
		return
	}
	c.end(k, resultOf("connected", err, now.Sub(k.began), k.start.Check.Timeout))
}

// hand ends the other attempts of a check, and passes on the socket that is connected.
func (c *connector) hand(k *connecting, fd int32) {
	c.timers.Remove(k)
	delete(c.sockets, fd)
	// The descriptor is duplicated, and a closed one would stay in the epoll.
	_ = unix.EpollCtl(c.epoll, unix.EPOLL_CTL_DEL, int(fd), nil)
	for i, other := range k.fds[:k.n] {
		if other == int(fd) {
			k.n--
			k.fds[i] = k.fds[k.n]
			break
		}
	}
	c.drop(k)
	c.connected(k.start, int(fd), k.began)
}

// end closes the sockets of a check and reports it.
func (c *connector) end(k *connecting, r endpointhealth.Result) {
	c.timers.Remove(k)
	c.drop(k)
	r.Spent = endpointhealth.CheckCost(objects.CheckTCP) * time.Duration(max(k.n, 1))
	c.ended = append(c.ended, Finished{k.start, r})
}

func (c *connector) drop(k *connecting) {
	for _, fd := range k.fds[:k.n] {
		delete(c.sockets, int32(fd))
		_ = unix.Close(fd)
	}
}

func (c *connector) release() {
	c.timers.All(c.drop)
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = unix.Close(c.wake)
	c.wake = -1
	_ = unix.Close(c.epoll)
}

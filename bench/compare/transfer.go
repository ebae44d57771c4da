package compare

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/test/bed/topo"
)

// transfer sends as much as TCP takes over some connections, in one direction. As in iperf3, each
// end of each connection has a thread that blocks in system calls of 128 KiB.
type transfer struct {
	streams  []*stream
	ended    atomic.Int32 // connections that ended by themselves
	stopping atomic.Bool
	done     sync.WaitGroup
	procs    int // GOMAXPROCS before
}

// stream is one TCP connection.
type stream struct {
	sender, receiver *os.File
	received         atomic.Uint64 // bytes
}

// callBytes is how much a system call sends or takes at most: iperf3's default for TCP.
const callBytes = 128 << 10

// congestionControl is set on both ends. It is the kernel's default; a machine may have another.
// BBR paces by timers, which cost processor time.
const congestionControl = "cubic"

// startTransfer connects from a client to an address that leads to the listener. toClient: the side
// that accepted sends.
func startTransfer(
	ctx context.Context, client *topo.Host, to netip.AddrPort, l *net.TCPListener, streams int, toClient bool,
) (t *transfer, err error) {
	// Each thread has a place in the Go scheduler, so that none waits for another's system call.
	const others = 4
	t = &transfer{procs: runtime.GOMAXPROCS(2*streams + others)}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.stop())
		}
	}()
	for range streams {
		s, err := connect(ctx, client, to, l)
		if err != nil {
			return t, err
		}
		if toClient {
			s.sender, s.receiver = s.receiver, s.sender
		}
		t.streams = append(t.streams, s)
	}
	for _, s := range t.streams {
		t.done.Go(func() { t.until(s.sender, unix.Write, nil) })
		t.done.Go(func() { t.until(s.receiver, unix.Read, &s.received) })
	}
	return t, nil
}

// connect opens a connection. Its sender is the client.
func connect(ctx context.Context, client *topo.Host, to netip.AddrPort, l *net.TCPListener) (s *stream, err error) {
	const patience = 10 * time.Second
	s = new(stream)
	out, err := client.Dial(ctx, "tcp4", to.String())
	if err != nil {
		return nil, err
	}
	if s.sender, err = blocking(out); err != nil {
		return nil, err
	}
	if err := l.SetDeadline(time.Now().Add(patience)); err != nil {
		return nil, errors.Join(err, s.sender.Close())
	}
	in, err := l.Accept()
	if err == nil {
		s.receiver, err = blocking(in)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("a connection to %s reached nobody: %w", to, err), s.sender.Close())
	}
	return s, nil
}

// blocking is the connection as a file whose system calls block their thread, instead of the Go
// runtime's poller.
func blocking(c net.Conn) (f *os.File, err error) {
	f, err = c.(*net.TCPConn).File()
	if err = errors.Join(err, c.Close()); err != nil {
		return nil, err
	}
	if err := unix.SetsockoptString(int(f.Fd()), unix.IPPROTO_TCP, unix.TCP_CONGESTION, congestionControl); err != nil {
		return nil, errors.Join(fmt.Errorf("TCP %s: %w", congestionControl, err), f.Close())
	}
	return f, nil
}

// until makes system calls on a file until the transfer stops, and counts the bytes.
func (t *transfer) until(f *os.File, call func(int, []byte) (int, error), count *atomic.Uint64) {
	fd, b := int(f.Fd()), make([]byte, callBytes) // Fd makes the file blocking
	for {
		n, err := call(fd, b)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err == nil && n > 0:
			if count != nil {
				count.Add(uint64(n))
			}
			continue
		case !t.stopping.Load():
			t.ended.Add(1)
		}
		return
	}
}

// received returns the number of bytes that have arrived on all connections. It returns an error if
// a connection has ended.
func (t *transfer) received() (bytes uint64, err error) {
	for _, s := range t.streams {
		bytes += s.received.Load()
	}
	if t.ended.Load() > 0 {
		err = fmt.Errorf("a connection of %d ended in the middle", len(t.streams))
	}
	return bytes, err
}

// stop closes the connections.
func (t *transfer) stop() (err error) {
	t.stopping.Store(true)
	for _, s := range t.streams {
		for _, f := range [...]*os.File{s.sender, s.receiver} {
			_ = unix.Shutdown(int(f.Fd()), unix.SHUT_RDWR) // ends a system call that blocks; ENOTCONN if it is over
		}
	}
	t.done.Wait()
	for _, s := range t.streams {
		err = errors.Join(err, s.sender.Close(), s.receiver.Close())
	}
	runtime.GOMAXPROCS(t.procs)
	return err
}

package peers

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/gateway/group/wire"
)

// Times of connections before they are streams.
const (
	handshakeTimeout = 5 * time.Second
	dialTimeout      = 2 * time.Second
)

// Config is the configuration of a Transport.
type Config struct {
	Self  Peer
	Peers []Peer // all others; see SetPeers
	Files Files
	// Refused is called with the reason for each connection that was refused, and for files that
	// cannot be used, by any goroutine.
	Refused func(error)
}

// Transport opens and accepts streams, and waits for them in one thread.
type Transport struct {
	c            Config
	peers        atomic.Pointer[[]Peer]
	certificates certificates
	epoll        int // of all streams, and of event
	event        int // eventfd(2) of Wake
}

// New returns a Transport. An error says that the files cannot be used.
func New(c Config) (*Transport, error) {
	t := &Transport{c: c, certificates: certificates{files: c.Files, name: c.Self.Name, failed: c.Refused}}
	t.SetPeers(c.Peers)
	if _, err := t.certificates.current(); err != nil {
		return nil, err
	}
	var err error
	if t.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, fmt.Errorf("peers: epoll_create1: %w", err)
	}
	if t.event, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		err = fmt.Errorf("peers: eventfd: %w", err)
	} else if err = t.watch(t.event, unix.EPOLLIN); err != nil {
		_ = unix.Close(t.event)
	}
	if err != nil {
		return nil, errors.Join(err, unix.Close(t.epoll))
	}
	return t, nil
}

// SetPeers replaces the peers from which connections are accepted. Streams go on.
func (t *Transport) SetPeers(list []Peer) { t.peers.Store(&list) }

func (t *Transport) watch(fd int, events uint32) error {
	e := unix.EpollEvent{Events: events, Fd: int32(fd)}
	if err := unix.EpollCtl(t.epoll, unix.EPOLL_CTL_ADD, fd, &e); err != nil {
		return fmt.Errorf("peers: epoll_ctl: %w", err)
	}
	return nil
}

// Close frees the descriptors of Wait and Wake, which must not be called any more.
func (t *Transport) Close() error { return errors.Join(unix.Close(t.epoll), unix.Close(t.event)) }

// Wait returns when bytes have come on a stream, or can be sent again, when Wake was called since
// the last Wait, or after a time, in whole milliseconds. The thread waits in the kernel, which
// wakes it without another thread of this process.
func (t *Transport) Wait(d time.Duration) {
	var events [8]unix.EpollEvent
	n, err := unix.EpollWait(t.epoll, events[:], int(d/time.Millisecond))
	if err != nil {
		return // EINTR
	}
	for _, e := range events[:n] {
		if e.Fd == int32(t.event) {
			var b [8]byte
			_, _ = unix.Read(t.event, b[:]) // resets it
		}
	}
}

// Pause waits for a time in the kernel, as Wait does.
func (t *Transport) Pause(d time.Duration) {
	ts := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&ts, nil) // a signal may end it early, which is harmless
}

// Wake ends Wait. Any goroutine may call it.
func (t *Transport) Wake() { _, _ = unix.Write(t.event, one) }

var one = []byte{1, 0, 0, 0, 0, 0, 0, 1} // a number that is not 0, in either byte order

// Dial opens a stream to a peer, from the own IP address. It waits until ctx ends at most.
func (t *Transport) Dial(ctx context.Context, to Peer) (*Stream, error) {
	id, err := t.certificates.current()
	if err != nil {
		return nil, err
	}
	d := &net.Dialer{LocalAddr: &net.TCPAddr{IP: t.c.Self.Address.Addr().AsSlice()}, Timeout: dialTimeout}
	conn, err := d.DialContext(ctx, "tcp", to.Address.String())
	if err != nil {
		return nil, fmt.Errorf("stream with %s: %w", to.Name, err)
	}
	c := id.client()
	c.ServerName = to.Name
	s := &socket{Conn: conn, fd: -1}
	secure := tls.Client(s, c)
	if err := t.open(ctx, secure, s, conn.(*net.TCPConn), func() {}); err != nil {
		return nil, fmt.Errorf("stream with %s: %w", to.Name, err)
	}
	return newStream(to.Name, s, secure), nil
}

// open shakes hands, and takes the socket into Wait. It closes the socket on an error.
func (t *Transport) open(ctx context.Context, secure *tls.Conn, s *socket, tcp *net.TCPConn, done func()) error {
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	err := secure.HandshakeContext(ctx)
	if err == nil {
		err = s.detach(tcp, done)
	}
	if err == nil {
		err = t.watch(s.fd, unix.EPOLLIN|unix.EPOLLOUT|unix.EPOLLRDHUP|unix.EPOLLET)
	}
	if err != nil {
		_ = s.Close()
	}
	return err
}

func newStream(name string, s *socket, secure *tls.Conn) *Stream {
	return &Stream{name: name, socket: s, tls: secure, in: make([]byte, lengthBytes+wire.MaxFrame)}
}

// Serve accepts streams of peers on l until ctx ends, and closes l. It calls handle with each, in a
// goroutine; if handle returns an error, the stream is ended with it.
func (t *Transport) Serve(ctx context.Context, l net.Listener, handle func(from Peer, s *Stream) error) error {
	var open sync.WaitGroup
	defer open.Wait()
	defer l.Close() // also after an error: the caller listens again
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	a := admit(l, &t.peers, t.c.Refused)
	for {
		c, err := a.Accept()
		if ctx.Err() != nil {
			if err == nil {
				_ = c.Close()
			}
			return nil
		}
		if err != nil {
			return err
		}
		open.Go(func() {
			if err := t.accept(ctx, c.(*admitted), handle); err != nil {
				t.c.Refused(fmt.Errorf("connection from %s: %w", c.RemoteAddr(), err))
			}
		})
	}
}

func (t *Transport) accept(ctx context.Context, c *admitted, handle func(Peer, *Stream) error) error {
	s := &socket{Conn: c, fd: -1}
	secure := tls.Server(s, t.server())
	if err := t.open(ctx, secure, s, c.Conn.(*net.TCPConn), c.release); err != nil {
		return err
	}
	from, err := peerOf(secure.ConnectionState(), *t.peers.Load())
	st := newStream(from.Name, s, secure)
	if err == nil {
		err = handle(from, st)
	}
	if err != nil {
		st.End(err)
	}
	return nil
}

// server returns a configuration that takes the present files for each connection.
func (t *Transport) server() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			id, err := t.certificates.current()
			if err != nil {
				return nil, err
			}
			return id.server(*t.peers.Load()), nil
		},
	}
}

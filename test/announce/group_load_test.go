//go:build root

package announce

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/mdlayher/packet"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/test/bed/machine"
	"sluice.dev/sluice/test/bed/topo"
)

// A message of an echoed connection is 32 bytes:
//
//	magic 8 | client's nonce 8 | backend's nonce 8 | number 8
//
// Each end draws a nonce for a connection, and checks both in each message. The low 16 bits of a
// nonce are the client's port as that end sees it, so that a packet shows whether it has reached
// the connection that it was sent on. The client's first message has no nonce of the backend.
const (
	magic       = "\x00nonces\n"
	messageSize = 32
)

type message struct{ client, backend, number uint64 }

func (m *message) write(to io.Writer) error {
	b := append(make([]byte, 0, messageSize), magic...)
	for _, v := range []uint64{m.client, m.backend, m.number} {
		b = binary.BigEndian.AppendUint64(b, v)
	}
	_, err := to.Write(b)
	return err
}

var errWrongNonce = errors.New("wrong nonce")

func readMessage(from io.Reader) (m message, err error) {
	b := make([]byte, messageSize)
	if _, err := io.ReadFull(from, b); err != nil {
		return m, err
	}
	if string(b[:8]) != magic {
		return m, errWrongNonce
	}
	read := func(at int) uint64 { return binary.BigEndian.Uint64(b[at:]) }
	return message{read(8), read(16), read(24)}, nil
}

func nonceOf(port uint16) uint64 { return rand.Uint64()<<16 | uint64(port) }

// echoes is a load of connections between a client and a backend that echoes.
type echoes struct {
	ctx             context.Context
	client, backend *topo.Host
	targets         []netip.AddrPort
	patience        time.Duration // of a request, and of opening a connection

	cancel   context.CancelFunc
	running  sync.WaitGroup
	enough   atomic.Bool  // no further requests
	astray   atomic.Int64 // packets that have reached another connection's end
	accepted sync.Map     // by the client's nonce: the backend's connections

	mu      sync.Mutex
	lasting []*lasting
	wrong   []error       // wrong nonces, and lasting connections that have ended otherwise than by Finish
	failed  []error       // connections of Rate without an answer
	reset   []error       // RSTs
	opened  int           // connections of Rate that have had an answer
	slowest time.Duration // answer on a connection of Open
	first   time.Duration // slowest first answer on a connection of Rate, with its handshake
}

// lasting is a connection that lasts.
type lasting struct {
	answers atomic.Int64
	broken  atomic.Bool
}

// newEchoes starts the backend's servers, on a port of addresses that it has, and the check of each
// packet at both hosts.
func newEchoes(ctx context.Context, client, backend *topo.Host, servers, targets []netip.AddrPort) (*echoes, error) {
	ctx, cancel := context.WithCancel(ctx)
	e := &echoes{ctx: ctx, cancel: cancel, client: client, backend: backend, targets: targets,
		patience: machine.Slower(30 * time.Second)}
	for _, at := range servers {
		l, err := backend.Listen("tcp", at.String())
		if err != nil {
			return nil, errors.Join(err, e.Close())
		}
		context.AfterFunc(ctx, func() { l.Close() })
		e.running.Go(func() { e.serve(l) })
	}
	for _, is4 := range []bool{true, false} {
		for _, h := range []*topo.Host{client, backend} {
			if err := e.watch(h, is4, h == client, servers[0].Port()); err != nil {
				return nil, errors.Join(err, e.Close())
			}
		}
	}
	return e, nil
}

func (e *echoes) serve(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		e.running.Go(func() {
			defer c.Close()
			defer context.AfterFunc(e.ctx, func() { c.Close() })()
			// The client has an error, too, if a connection ends.
			if err := e.answer(c); errors.Is(err, errWrongNonce) {
				e.note(&e.wrong, fmt.Errorf("backend, %v: %w", c.RemoteAddr(), err))
			}
		})
	}
}

// answer answers a connection until the client ends it.
func (e *echoes) answer(c net.Conn) error {
	mine := nonceOf(c.RemoteAddr().(*net.TCPAddr).AddrPort().Port())
	want := message{}
	for ; ; want.number++ {
		got, err := readMessage(c)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if want.backend == 0 {
			if _, other := e.accepted.LoadOrStore(got.client, true); other {
				return fmt.Errorf("%w: the client's other connection", errWrongNonce)
			}
			want.client = got.client
		}
		if got != want {
			return fmt.Errorf("%w: %+v, not %+v", errWrongNonce, got, want)
		}
		want.backend = mine
		if err := (&message{got.client, mine, got.number}).write(c); err != nil {
			return err
		}
	}
}

// conn is a connection of the client.
type conn struct {
	*os.File
	next message
}

// open opens a connection without a thread in the client's namespace that waits.
func (e *echoes) open(to netip.AddrPort) (*conn, error) {
	c := &conn{}
	if err := e.client.Run(func() error {
		family := unix.AF_INET6
		if to.Addr().Is4() {
			family = unix.AF_INET
		}
		fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		c.File = os.NewFile(uintptr(fd), to.String())
		if err := unix.Connect(fd, topo.Sockaddr(to)); !errors.Is(err, unix.EINPROGRESS) {
			return errors.Join(fmt.Errorf("connect: %w", err), c.Close())
		}
		return nil
	}); err != nil {
		return nil, err
	}
	_ = c.SetDeadline(time.Now().Add(e.patience))
	if err := c.connected(); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// connected waits until the socket has connected.
func (c *conn) connected() error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Write(func(fd uintptr) bool {
		code, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
		if err != nil || code != 0 {
			failed = errors.Join(err, unix.Errno(code))
			return true
		}
		if _, err := unix.Getpeername(int(fd)); err != nil {
			return false
		}
		var local unix.Sockaddr
		if local, failed = unix.Getsockname(int(fd)); failed != nil {
			return true
		}
		port := 0
		switch a := local.(type) {
		case *unix.SockaddrInet4:
			port = a.Port
		case *unix.SockaddrInet6:
			port = a.Port
		}
		c.next.client = nonceOf(uint16(port))
		return true
	})
	return errors.Join(err, failed)
}

// exchange sends a message, and returns how long its answer took.
func (e *echoes) exchange(c *conn) (time.Duration, error) {
	began := time.Now()
	_ = c.SetDeadline(began.Add(e.patience))
	if err := c.next.write(c); err != nil {
		return 0, err
	}
	got, err := readMessage(c)
	if err != nil {
		return 0, err
	}
	if c.next.backend == 0 {
		c.next.backend = got.backend
	}
	if got != c.next || got.backend == 0 {
		return 0, fmt.Errorf("%w: %+v, not %+v", errWrongNonce, got, c.next)
	}
	c.next.number++
	return time.Since(began), nil
}

func (e *echoes) note(to *[]error, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	*to = append(*to, err)
}

// Open opens connections that last, each with a request per interval.
func (e *echoes) Open(n int, interval time.Duration) error {
	for i := range n {
		c, err := e.open(e.targets[i%len(e.targets)])
		if err != nil {
			return err
		}
		l := &lasting{}
		e.lasting = append(e.lasting, l)
		e.running.Go(func() {
			defer c.Close()
			defer context.AfterFunc(e.ctx, func() { c.Close() })()
			_ = topo.Pause(e.ctx, interval*time.Duration(i)/time.Duration(n))
			for !e.enough.Load() {
				took, err := e.exchange(c)
				if e.ctx.Err() != nil {
					return
				}
				if err != nil {
					l.broken.Store(true)
					e.note(&e.wrong, fmt.Errorf("connection %d, after %d answers: %w", i, l.answers.Load(), err))
					return
				}
				e.mu.Lock()
				e.slowest = max(e.slowest, took)
				e.mu.Unlock()
				l.answers.Add(1)
				_ = topo.Pause(e.ctx, interval)
			}
		})
	}
	return nil
}

// Rate opens connections at a rate, each with one request, until stop is called.
func (e *echoes) Rate(perSecond int) (stop func()) {
	ctx, cancel := context.WithCancel(e.ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		var running sync.WaitGroup
		defer running.Wait()
		tick := time.NewTicker(time.Second / time.Duration(perSecond))
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			to := e.targets[i%len(e.targets)]
			running.Go(func() { e.once(to) })
		}
	}()
	return func() { cancel(); <-ended }
}

func (e *echoes) once(to netip.AddrPort) {
	began := time.Now()
	c, err := e.open(to)
	if err != nil {
		if e.ctx.Err() == nil {
			e.note(&e.failed, fmt.Errorf("to %v: %w", to, err))
		}
		return
	}
	defer c.Close()
	_, err = e.exchange(c)
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.ctx.Err() != nil:
	case errors.Is(err, errWrongNonce):
		e.wrong = append(e.wrong, fmt.Errorf("new connection to %v: %w", to, err))
	case err != nil:
		e.failed = append(e.failed, fmt.Errorf("to %v: %w", to, err))
	default:
		e.opened++
		e.first = max(e.first, time.Since(began))
	}
}

// AnsweredAgain waits until each lasting connection has had n answers more.
func (e *echoes) AnsweredAgain(n int64) error {
	since := make([]int64, len(e.lasting))
	for i, l := range e.lasting {
		since[i] = l.answers.Load()
	}
	return topo.Until(e.ctx, e.patience, 10*time.Millisecond, func(context.Context) error {
		waiting := 0
		for i, l := range e.lasting {
			if !l.broken.Load() && l.answers.Load() < since[i]+n {
				waiting++
			}
		}
		if waiting > 0 {
			return fmt.Errorf("%d of %d connections wait for an answer", waiting, len(since))
		}
		return nil
	})
}

// Slowest returns the slowest answer on a connection that lasts and on a new one, since the last
// call.
func (e *echoes) Slowest() (lasting, first time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	lasting, first, e.slowest, e.first = e.slowest, e.first, 0, 0
	return lasting, first
}

// Finish ends the connections in order.
func (e *echoes) Finish() {
	e.enough.Store(true)
	_ = topo.Until(e.ctx, e.patience, 10*time.Millisecond, func(context.Context) error {
		return e.AnsweredAgain(0)
	})
}

// Close ends everything.
func (e *echoes) Close() error {
	e.cancel()
	e.running.Wait()
	return nil
}

// watch checks each packet that arrives at a host: RSTs, and messages of another connection.
func (e *echoes) watch(h *topo.Host, is4, client bool, server uint16) error {
	var c *packet.Conn
	if err := h.Run(func() error {
		i, err := net.InterfaceByName(h.Interfaces[0].Name)
		if err != nil {
			return err
		}
		kind := unix.ETH_P_IPV6
		if is4 {
			kind = unix.ETH_P_IP
		}
		c, err = packet.Listen(i, packet.Raw, kind, nil)
		return err
	}); err != nil {
		return err
	}
	context.AfterFunc(e.ctx, func() { c.Close() })
	own := h.Addr6()
	if is4 {
		own = h.Addr4()
	}
	e.running.Go(func() {
		b := make([]byte, 2048)
		for {
			n, _, err := c.ReadFrom(b)
			if err != nil {
				return
			}
			if s, ok := segmentOf(b[:n]); ok && s.to == own {
				e.see(&s, client, server)
			}
		}
	})
	return nil
}

func (e *echoes) see(s *segmentAt, client bool, server uint16) {
	at, peer, nonce := s.toPort, s.fromPort, 16 // the port of the client as the backend sees it is peer
	clientPort := peer
	if client {
		nonce, clientPort = 8, at
	}
	if client && peer != port || !client && at != server {
		return
	}
	if s.reset {
		e.note(&e.reset, fmt.Errorf("RST from %v port %d to %v port %d by %v", s.from, s.fromPort, s.to, s.toPort,
			s.by))
	}
	if len(s.data) < messageSize || string(s.data[:8]) != magic {
		return
	}
	if v := binary.BigEndian.Uint64(s.data[nonce:]); v != 0 && uint16(v) != clientPort {
		e.astray.Add(1)
	}
}

// segmentAt is a TCP segment at a host.
type segmentAt struct {
	by               net.HardwareAddr // on this link
	from, to         netip.Addr
	fromPort, toPort uint16
	reset            bool
	data             []byte
}

// segmentOf reads an Ethernet frame.
func segmentOf(b []byte) (s segmentAt, ok bool) {
	p := gopacket.NewPacket(b, layers.LayerTypeEthernet, gopacket.NoCopy)
	tcp, ok := p.TransportLayer().(*layers.TCP)
	if !ok {
		return s, false
	}
	link, net := p.LinkLayer().LinkFlow(), p.NetworkLayer().NetworkFlow()
	s.by = link.Src().Raw()
	s.from, _ = netip.AddrFromSlice(net.Src().Raw())
	s.to, _ = netip.AddrFromSlice(net.Dst().Raw())
	s.fromPort, s.toPort = uint16(tcp.SrcPort), uint16(tcp.DstPort)
	s.reset, s.data = tcp.RST, tcp.Payload
	return s, true
}

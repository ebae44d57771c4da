package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/test/bed/topo"
)

// Expose makes the API server reachable in a host's namespace, on its loopback, until
// Close, and returns its URL there, which stays the same. While the API server is
// stopped, connections to it are refused, as they are by the API server's own node.
func (c *Cluster) Expose(h *topo.Host) (url string, err error) {
	if h == c.host {
		return c.URL(), nil
	}
	r := c.relays[h]
	if r == nil {
		if r, err = newRelay(h, c.host, c.port.number); err != nil {
			return "", fmt.Errorf("cluster: expose the API server: %w", err)
		}
		c.relays[h] = r
	}
	return fmt.Sprintf("https://127.0.0.1:%d", r.port.number), nil
}

// resumeRelays lets clients in other namespaces connect.
func (c *Cluster) resumeRelays() error {
	var errs []error
	for _, r := range c.relays {
		errs = append(errs, r.resume())
	}
	return errors.Join(errs...)
}

// pauseRelays has clients in other namespaces refused, as those beside the API server.
func (c *Cluster) pauseRelays() {
	for _, r := range c.relays {
		r.pause()
	}
}

// relay passes on the bytes of connections between the loopbacks of two namespaces.
type relay struct {
	from, to *topo.Host
	port     *port // in from
	target   int   // port in to

	listener net.Listener // nil while paused
	end      context.CancelFunc
	done     sync.WaitGroup

	mu   sync.Mutex
	open map[net.Conn]struct{} // nil while paused
}

func newRelay(from, to *topo.Host, target int) (*relay, error) {
	p, err := reservePort(from)
	if err != nil {
		return nil, err
	}
	r := &relay{from: from, to: to, port: p, target: target}
	if err := r.resume(); err != nil {
		return nil, errors.Join(err, p.release())
	}
	return r, nil
}

func (r *relay) resume() (err error) {
	if r.listener != nil {
		return nil
	}
	ctx, end := context.WithCancel(context.Background())
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		return errors.Join(c.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
		}), err)
	}}
	err = r.from.Run(func() (err error) {
		r.listener, err = config.Listen(ctx, "tcp4", fmt.Sprintf("127.0.0.1:%d", r.port.number))
		return err
	})
	if err != nil {
		end()
		r.listener = nil
		return err
	}
	r.end, r.open = end, map[net.Conn]struct{}{}
	l := r.listener
	r.done.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil { // paused
				return
			}
			r.done.Go(func() { r.serve(ctx, c) })
		}
	})
	return nil
}

// pause ends everything that is passed on, and refuses more.
func (r *relay) pause() {
	if r.listener == nil {
		return
	}
	r.listener.Close()
	r.listener = nil
	r.end()
	r.mu.Lock()
	for c := range r.open {
		c.Close()
	}
	r.open = nil
	r.mu.Unlock()
	r.done.Wait()
}

func (r *relay) close() error {
	r.pause()
	return r.port.release()
}

// serve passes on one connection until both sides have said all, or either breaks.
func (r *relay) serve(ctx context.Context, in net.Conn) {
	if !r.keep(in) {
		return
	}
	defer r.drop(in)
	out, err := r.to.Dial(ctx, "tcp4", fmt.Sprintf("127.0.0.1:%d", r.target))
	if err != nil || !r.keep(out) {
		return
	}
	defer r.drop(out)
	var both sync.WaitGroup
	both.Go(func() { pass(out, in) })
	both.Go(func() { pass(in, out) })
	both.Wait()
}

// pass passes on one direction and its end. A side that broke breaks the other, which
// would wait for it otherwise.
func pass(to, from net.Conn) {
	if _, err := io.Copy(to, from); err != nil {
		to.Close()
		from.Close()
		return
	}
	if t, ok := to.(*net.TCPConn); !ok || t.CloseWrite() != nil {
		to.Close()
	}
}

// keep remembers a connection for pause, and says no, having closed it, once paused.
func (r *relay) keep(c net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.open == nil {
		c.Close()
		return false
	}
	r.open[c] = struct{}{}
	return true
}

func (r *relay) drop(c net.Conn) {
	c.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.open, c) // also from a nil map
}

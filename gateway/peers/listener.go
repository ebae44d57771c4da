package peers

import (
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
)

// perPeer is the greatest number of connections at once from each peer's address: one, an earlier
// one that is not closed yet, and two whose handshake fails.
const perPeer = 4

// admitting is a listener that closes connections from addresses of no peer, and more than perPeer
// of a peer, before anything is read.
type admitting struct {
	net.Listener
	peers   *atomic.Pointer[[]Peer]
	refused func(error)

	mu   sync.Mutex
	open map[netip.Addr]int // how many connections an address has
}

func admit(l net.Listener, peers *atomic.Pointer[[]Peer], refused func(error)) *admitting {
	return &admitting{Listener: l, peers: peers, refused: refused, open: map[netip.Addr]int{}}
}

// allowed returns how many connections an address may have.
func (a *admitting) allowed(from netip.Addr) (n int) {
	for _, p := range *a.peers.Load() {
		if p.Address.Addr() == from {
			n += perPeer
		}
	}
	return n
}

// Accept returns the next connection that is admitted.
func (a *admitting) Accept() (net.Conn, error) {
	for {
		c, err := a.Listener.Accept()
		if err != nil {
			return nil, err
		}
		remote, err := netip.ParseAddrPort(c.RemoteAddr().String())
		if err == nil {
			from := remote.Addr().Unmap().WithZone("")
			if err = a.take(from); err == nil {
				return &admitted{Conn: c, done: func() { a.give(from) }}, nil
			}
		}
		_ = c.Close()
		a.refused(err)
	}
}

func (a *admitting) take(from netip.Addr) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch n := a.allowed(from); {
	case n == 0:
		return fmt.Errorf("%s is not the address of a member", from)
	case a.open[from] >= n:
		return fmt.Errorf("%s has too many connections", from)
	}
	a.open[from]++
	return nil
}

func (a *admitting) give(from netip.Addr) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.open[from]--; a.open[from] == 0 {
		delete(a.open, from)
	}
}

// admitted is a connection that counts until it is closed.
type admitted struct {
	net.Conn
	done func()
	once sync.Once
}

func (c *admitted) Close() error {
	c.release()
	return c.Conn.Close()
}

// release ends the count.
func (c *admitted) release() { c.once.Do(c.done) }

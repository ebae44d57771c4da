package stateful

import (
	"sluice.dev/sluice/fastpath"
	"sluice.dev/sluice/test/bed/memlink"
)

// pair is a client and a server engine back to back on in-memory links, on one
// goroutine.
type pair struct {
	client, server         *Engine
	clientLink, serverLink *memlink.Link
	// buf is a frame in flight, for each direction; it stays there while the receiver has no room,
	// so this wire itself loses nothing.
	buf [2][]byte
	// fault, if set, handles each frame instead of delivering it: tests lose, repeat and reorder
	// frames.
	fault func(to *memlink.Link, frame []byte)
}

const (
	pairFrameSize = 2048
	pairRing      = 512
	pairFrames    = 4 * pairRing
)

// Addresses of the two ends (RFC 7042, section 2.1: locally administered).
var (
	clientMAC = [6]byte{2, 0, 0, 0, 0, 1}
	serverMAC = [6]byte{2, 0, 0, 0, 0, 2}
)

// newPair makes both engines. Each resolves the other's MAC.
func newPair(p *Profile) (*pair, error) {
	r := &pair{}
	for i := range r.buf {
		r.buf[i] = make([]byte, 0, pairFrameSize)
	}
	build := func(c Config) (*Engine, *memlink.Link, error) {
		c.UMEM = make([]byte, pairFrames*pairFrameSize)
		c.Pool = fastpath.NewPool(pairFrames, pairFrameSize)
		link := memlink.New(c.UMEM, pairFrameSize, pairRing)
		c.Link, c.Profile = link, p
		e, err := New(c)
		return e, link, err
	}
	var err error
	if r.client, r.clientLink, err = build(Config{Role: Client, MAC: clientMAC, Gateway: p.Servers.First,
		Targets: p.Servers}); err != nil {
		return nil, err
	}
	r.server, r.serverLink, err = build(Config{Role: Server, MAC: serverMAC, Gateway: p.Clients.First})
	return r, err
}

// carry moves the frames that one side transmitted to the other.
func (r *pair) carry(direction Side, from, to *memlink.Link) {
	b := &r.buf[direction]
	for range pairRing {
		if len(*b) == 0 {
			var ok bool
			if *b, ok = from.Take(*b); !ok {
				return
			}
		}
		if r.fault != nil {
			r.fault(to, *b)
		} else if !to.Inject(*b) {
			return
		}
		*b = (*b)[:0]
	}
}

// step is one step of both engines and of the wire.
func (r *pair) step(now uint64) (moved int) {
	moved = r.client.Step(now)
	r.carry(Client, r.clientLink, r.serverLink)
	moved += r.server.Step(now)
	r.carry(Server, r.serverLink, r.clientLink)
	return moved
}

package bfd

import (
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/wake"
)

// Config configures an Endpoint.
type Config struct {
	Log  *slog.Logger
	Port uint16 // 0: the port of RFC 5881, 3784
	// Down is called, by a goroutine of its own, when a session that was up has failed. It is not
	// called if the router or this side took the session out of service (AdminDown).
	Down func(router netip.Addr, why string)
	// Changed is called when the result of Status may have changed.
	Changed func()
}

// Peer is a router to have a session with.
type Peer struct {
	Name    string
	Address netip.Addr // with a zone if link-local
	Source  netip.Addr // not valid: the kernel chooses
	// Begun identifies the BGP session: if it changes, the BFD session begins again.
	Begun time.Time
	Parameters
}

// Status is the state of a session.
type Status struct {
	State State
	Since time.Time // when it came up, or when it was last up
	Why   string    // why it is not up
}

// Endpoint has sessions with routers.
type Endpoint struct {
	config Config
	to     uint16 // the port of routers
	wake   wake.Flag
	ended  chan struct{}

	mu        sync.Mutex // guards the fields below
	peers     map[netip.Addr]*peer
	receivers map[bool]receiver // by Is4
	refused   map[bool]error    // why there is no receiver, by Is4
	closed    bool
}

// peer is a session with its socket.
type peer struct {
	Peer
	*session
	conn       sender    // nil: opened when a packet is due
	unsent     string    // why the last packet could not be sent
	bad        string    // why the router's last packet was discarded; empty: it was not
	lastPacket time.Time // when that packet came
	closing    time.Time // end of AdminDown, when the session is removed; zero: it is in service
	notUp      time.Time // since when it has not been up; zero: it is up
}

// New returns an Endpoint without sessions. It opens sockets with the first session.
func New(c Config) *Endpoint {
	c.Port = cmp.Or(c.Port, controlPort)
	e := &Endpoint{config: c, to: c.Port, wake: wake.NewFlag(), ended: make(chan struct{}),
		peers: map[netip.Addr]*peer{}, receivers: map[bool]receiver{}, refused: map[bool]error{}}
	go e.run()
	return e
}

// Set replaces the routers. Sessions continue if only their parameters changed. Sessions that are
// no longer wanted go to AdminDown, which notifies the router.
func (e *Endpoint) Set(list []Peer) {
	now := time.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	wanted := map[netip.Addr]bool{}
	for _, one := range list {
		wanted[one.Address] = true
		e.listen(one.Address.Is4())
		p := e.peers[one.Address]
		if p != nil && p.closing.IsZero() && p.Begun.Equal(one.Begun) && p.Source == one.Source {
			p.configure(one.Parameters, now)
			p.Peer = one
			continue
		}
		if p != nil {
			p.hangUp()
		}
		e.peers[one.Address] = &peer{Peer: one, session: newSession(one.Parameters, now, random), notUp: now}
	}
	for address, p := range e.peers {
		if wanted[address] || !p.closing.IsZero() {
			continue
		}
		if p.state == Down {
			e.forget(address)
		} else {
			p.closing = p.close(now)
		}
	}
	e.wake.Raise()
}

// random returns 32 random bits.
func random() uint32 {
	var b [4]byte
	_, _ = rand.Read(b[:]) // it never fails
	return binary.BigEndian.Uint32(b[:])
}

// listen opens the receiver of a family if there is none. The caller holds e.mu.
func (e *Endpoint) listen(is4 bool) {
	if e.receivers[is4] != nil || e.closed {
		return
	}
	r, err := listen(is4, e.config.Port)
	if err != nil {
		if before := e.refused[is4]; before == nil || before.Error() != err.Error() {
			e.config.Log.Warn("BFD packets cannot be received; it is tried again", "error", err)
		}
		e.refused[is4] = err
		return
	}
	e.receivers[is4], e.refused[is4] = r, nil
	go e.read(is4, r)
}

// forget removes a session without notifying the router. The caller holds e.mu.
func (e *Endpoint) forget(address netip.Addr) {
	e.peers[address].hangUp()
	delete(e.peers, address)
}

// Status returns the state of the session with a router; known reports whether there is one.
func (e *Endpoint) Status(address netip.Addr) (s Status, known bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	p := e.peers[address]
	if p == nil || !p.closing.IsZero() {
		return Status{}, false
	}
	if p.state == Up {
		return Status{State: Up, Since: p.since}, true
	}
	s = Status{State: p.state, Since: p.notUp}
	heard := time.Since(p.lastPacket) < maxDetection
	switch err := e.refused[address.Is4()]; {
	case err != nil:
		s.Why = "packets cannot be received: " + err.Error()
	case p.unsent != "":
		s.Why = "packets cannot be sent: " + p.unsent
	case heard && p.bad != "":
		s.Why = "the router's packets are discarded: " + p.bad
	case p.remote.state == AdminDown:
		s.Why = "the router has taken its session out of service (AdminDown)"
	case heard:
		s.Why = "the router's packets arrive, but it does not answer packets of this side"
	default:
		s.Why = "no packet with TTL 255 arrives from the router (RFC 5881, section 5)"
	}
	return s, true
}

// Close removes all sessions without notifying the routers.
func (e *Endpoint) Close() {
	e.mu.Lock()
	e.closed = true
	for address := range e.peers {
		e.forget(address)
	}
	for is4, r := range e.receivers {
		r.Close()
		delete(e.receivers, is4)
	}
	e.mu.Unlock()
	close(e.ended)
}

// run sends packets and expires sessions.
func (e *Endpoint) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		if next := e.step(time.Now()); next.IsZero() {
			timer.Stop()
		} else {
			timer.Reset(time.Until(next))
		}
		select {
		case <-e.ended:
			return
		case <-e.wake:
		case <-timer.C:
		}
	}
}

// step sends and expires what is due, and returns the time of the next call; zero: after Set or a
// packet.
func (e *Endpoint) step(now time.Time) (next time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for address, p := range e.peers {
		if !p.closing.IsZero() && !now.Before(p.closing) {
			e.forget(address)
			continue
		}
		e.noteState(p, p.expire(now), now)
		if at := p.due(); !at.IsZero() && !now.Before(at) {
			e.transmit(p, p.send(now))
		}
		for _, at := range []time.Time{p.nextWake(), p.closing} {
			if !at.IsZero() && (next.IsZero() || at.Before(next)) {
				next = at
			}
		}
	}
	return next
}

// noteState records whether a session is up, has failed or was closed. The caller holds e.mu.
func (e *Endpoint) noteState(p *peer, failed string, now time.Time) {
	up := p.notUp.IsZero()
	if up == (p.state == Up) {
		return
	}
	if p.state == Up {
		p.notUp = time.Time{}
		e.config.Log.Info("BFD session is up", "peer", p.Name, "address", p.Address)
	} else {
		p.notUp = now
		e.config.Log.Warn("BFD session is down", "peer", p.Name, "address", p.Address, "why",
			cmp.Or(failed, "one end took it out of service"))
	}
	if failed != "" {
		go e.config.Down(p.Address, failed)
	}
	e.config.Changed()
}

// transmit sends a packet of a session, without waiting: a link that takes no packets must not stop
// the sessions of other links. If that fails the packet is lost, and the next one uses a new socket
// unless the queue is full. The caller holds e.mu.
func (e *Endpoint) transmit(p *peer, one packet) {
	var err error
	if p.conn == nil {
		p.conn, err = dial(&p.Peer, e.to)
	}
	if err == nil {
		b := one.marshal()
		switch err = send(p.conn, b[:]); {
		case errors.Is(err, unix.ECONNREFUSED):
			err = nil // the answer to an earlier packet: the router does not listen
		case errors.Is(err, unix.EAGAIN):
			err = errQueueFull // by a new socket, more packets would wait
		case err != nil:
			p.hangUp()
		}
	}
	unsent := ""
	if err != nil {
		if unsent = err.Error(); unsent != p.unsent {
			e.config.Log.Warn("BFD packets cannot be sent; it is tried again", "peer", p.Name, "address",
				p.Address, "error", err)
		}
	}
	p.unsent = unsent
}

func (p *peer) hangUp() {
	if p.conn != nil {
		p.conn.Close()
		p.conn = nil
	}
}

// read reads packets from a receiver until it is closed or fails. Set opens a failed one again.
func (e *Endpoint) read(is4 bool, r receiver) {
	b := make([]byte, maxPacket)
	var failure error
	for {
		n, hops, from, err := r.read(b)
		if err != nil {
			failure = err
			break
		}
		if hops != ttl {
			continue // the filter drops these, too, but only after it is attached
		}
		one, bad := parse(b[:n])
		e.take(from, &one, bad, time.Now())
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.receivers[is4] == r {
		e.config.Log.Warn("BFD packets cannot be received any more; the socket is opened again", "error", failure)
		r.Close()
		delete(e.receivers, is4)
	}
}

// take passes a packet to the session of its source address. bad is why it must be discarded.
func (e *Endpoint) take(from netip.Addr, one *packet, bad string, now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	p := e.peers[from]
	if p == nil {
		return
	}
	if bad == "" && !p.accepts(one) {
		bad = "they belong to another session"
	}
	if p.bad, p.lastPacket = bad, now; bad != "" {
		return
	}
	final, failed := p.packet(one, now)
	e.noteState(p, failed, now)
	if final {
		e.transmit(p, p.say(false, true))
	}
	e.wake.Raise()
}

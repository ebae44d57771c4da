package bfd

import (
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/wake"
)

// Config configures an Endpoint.
type Config struct {
	Log  *slog.Logger
	Port uint16 // 0: that of RFC 5881, 3784
	// Down is called when a session that was up has failed, by a goroutine of its own. It is not
	// when the router took the session out of service (AdminDown), or this side did.
	Down func(router netip.Addr, why string)
	// Changed is called when States may return something else.
	Changed func()
}

// Peer is a router that there is to be a session with.
type Peer struct {
	Name    string
	Address netip.Addr // with a zone if it is a link-local one
	Source  netip.Addr // not valid: the kernel chooses
	// Begun tells sessions with the same address apart: another one begins as a new session.
	Begun time.Time
	Parameters
}

// Status is the state of a session.
type Status struct {
	State State
	Since time.Time // of the state up, or of not being up
	Why   string    // it is not up
}

// Endpoint has sessions with routers.
type Endpoint struct {
	config Config
	to     uint16 // the port of routers
	wake   wake.Flag
	ended  chan struct{}

	mu        sync.Mutex // guards what follows
	peers     map[netip.Addr]*peer
	receivers map[bool]receiver // by Is4
	refused   map[bool]error    // why there is no receiver
	closed    bool
}

// peer is a session with its socket.
type peer struct {
	Peer
	*session
	conn    *net.UDPConn // nil: it is opened when a packet is due
	unsent  string       // why the last packet could not be sent
	bad     string       // why the packet of the router that came last was discarded; empty: it was not
	heard   time.Time    // when it came
	closing time.Time    // the session is out of service, and is forgotten then; zero: it is not
	notUp   time.Time    // since when it has not been up
}

// New returns an Endpoint without sessions. It opens no socket before there is one.
func New(c Config) *Endpoint {
	c.Port = cmp.Or(c.Port, controlPort)
	e := &Endpoint{config: c, to: c.Port, wake: wake.NewFlag(), ended: make(chan struct{}),
		peers: map[netip.Addr]*peer{}, receivers: map[bool]receiver{}, refused: map[bool]error{}}
	go e.run()
	return e
}

// Set replaces the routers that there are sessions with. Sessions whose parameters alone are others
// go on. Those that are not wanted any more are taken out of service, and tell the router.
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

// listen opens the receiver of a family if there is none; e.mu is held.
func (e *Endpoint) listen(is4 bool) {
	if e.receivers[is4] != nil || e.closed {
		return
	}
	r, err := listen(is4, e.config.Port)
	if err != nil {
		if before := e.refused[is4]; before == nil || before.Error() != err.Error() {
			e.config.Log.Warn("BFD packets cannot be received, which is tried again", "error", err)
		}
		e.refused[is4] = err
		return
	}
	e.receivers[is4], e.refused[is4] = r, nil
	go e.read(is4, r)
}

// forget ends a session without a word; e.mu is held.
func (e *Endpoint) forget(address netip.Addr) {
	e.peers[address].hangUp()
	delete(e.peers, address)
}

// Status returns the state of the session with a router. known: there is one.
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
	heard := time.Since(p.heard) < maxDetection
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
		s.Why = "packets of the router come, and it does not answer those of this side"
	default:
		s.Why = "no packet with TTL 255 comes from the router (RFC 5881, section 5)"
	}
	return s, true
}

// Close ends all sessions without a word.
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

// run sends packets and lets sessions expire.
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

// step does what is due, and returns when it must be called again; zero: when Set was, or a packet
// came.
func (e *Endpoint) step(now time.Time) (next time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for address, p := range e.peers {
		if !p.closing.IsZero() && !now.Before(p.closing) {
			e.forget(address)
			continue
		}
		e.settle(p, p.expire(now), now)
		if at := p.due(); !at.IsZero() && !now.Before(at) {
			e.transmit(p, p.send(now))
		}
		for _, at := range []time.Time{p.wakes(), p.closing} {
			if !at.IsZero() && (next.IsZero() || at.Before(next)) {
				next = at
			}
		}
	}
	return next
}

// settle notes what has become of a session: it is up, or has failed, or is not up any more; e.mu
// is held.
func (e *Endpoint) settle(p *peer, failed string, now time.Time) {
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

// transmit sends a packet of a session. One that cannot be sent is lost, and the next one leaves by
// a new socket.
func (e *Endpoint) transmit(p *peer, one packet) {
	var err error
	if p.conn == nil {
		p.conn, err = dial(&p.Peer, e.to)
	}
	if err == nil {
		b := one.marshal()
		_, err = p.conn.Write(b[:])
		if errors.Is(err, unix.ECONNREFUSED) {
			err = nil // an answer to a packet before: nobody listens
		}
		if err != nil {
			p.hangUp()
			err = cause(err)
		}
	}
	unsent := ""
	if err != nil {
		if unsent = err.Error(); unsent != p.unsent {
			e.config.Log.Warn("BFD packets cannot be sent, which is tried again", "peer", p.Name, "address",
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

// read takes packets from a receiver until it is closed. One that fails is opened again by Set.
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
			continue // as the filter does
		}
		one, bad := parse(b[:n])
		e.take(from, &one, bad, time.Now())
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.receivers[is4] == r {
		e.config.Log.Warn("BFD packets are not received any more, which is mended", "error", failure)
		r.Close()
		delete(e.receivers, is4)
	}
}

// take gives a packet to the session that it is of. bad says why it must be discarded.
func (e *Endpoint) take(from netip.Addr, one *packet, bad string, now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	p := e.peers[from]
	if p == nil {
		return
	}
	if bad == "" && !p.accepts(one) {
		bad = "they are of another session"
	}
	if p.bad, p.heard = bad, now; bad != "" {
		return
	}
	final, failed := p.packet(one, now)
	e.settle(p, failed, now)
	if final {
		e.transmit(p, p.say(false, true))
	}
	e.wake.Raise()
}

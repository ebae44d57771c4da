// Package exchange runs the streams of a gateway: it sends the gateway's own flows to each member,
// and keeps copies of each member's flows.
//
//	Dial, Accept ──► Exchange.Run ◄──► Stream    bytes come, or can be sent: Waiter.Wait returns
//	workers ── Wake ──►
//
// One goroutine, Run, owns the Ledger, the Copies, all Senders and Receivers, and the streams. It
// waits in one place only, for all of them, so copying flows needs only one thread with the
// priority of the workers. A stream has room for one frame: Run asks a Sender for the next frame
// when the previous one is written, so a member that does not read costs one frame here and the
// buffers of its connection; its lease runs out, and on its next stream all records are sent again.
package exchange

import (
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"sluice.dev/sluice/gateway/group"
	"sluice.dev/sluice/gateway/group/session"
)

// Stream is one end of a stream of frames (package gateway/peers). None of its methods waits. Only
// Run calls them, once it has the stream.
type Stream interface {
	// Receive returns the next frame, which is valid until the next call; nil if none has come.
	Receive() (frame []byte, err error)
	// Ready reports whether Send may be called: the previous frame is written.
	Ready() bool
	Send(frame []byte) error
	// End ends the stream, and sends the other gateway the reason.
	End(reason error)
}

// Waiter lets Run wait for all streams.
type Waiter interface {
	// Wait returns when a stream may have received a frame, or has written one, when Wake was
	// called since the last Wait, or after a time.
	Wait(time.Duration)
	// Wake ends Wait. Any goroutine may call it. It does not wait.
	Wake()
	// Pause waits for a time.
	Pause(time.Duration)
}

// redialInterval is the time between two attempts to open a stream to a member.
const redialInterval = 100 * time.Millisecond

// tick is the longest time until a lease that has run out is noticed, or a due beat is sent.
const tick = 5 * time.Millisecond

// handshakeTimeout is the longest time for which nothing may be received on the stream to a peer.
// It matters only during the handshake: then the stream has no lease yet.
const handshakeTimeout = 5 * time.Second

// Run may be a real-time thread, for which the kernel's receive work waits. So once it has worked
// burst longer than it has waited, as during a full resynchronisation, it pauses for a quarter of
// that time.
const (
	burst    = 500 * time.Microsecond
	maxPause = 2 * time.Millisecond
)

// turn is how long Run reads a stream, or writes to it, before it turns to the others. A frame of a
// resynchronisation takes one or two turns.
const turn = time.Millisecond

// Peer is another gateway.
type Peer struct {
	Owner  session.Owner  // this gateway's end of the stream to the peer; Lease is set by Run
	Member session.Member // this gateway's end of the stream from the peer
	// Dial opens the stream to the peer. It may block until ctx ends. Run returns only after it has
	// returned.
	Dial func(ctx context.Context) (Stream, error)
}

// Exchange is the streams of a gateway.
type Exchange struct {
	ledger *group.Ledger
	peers  [group.MaxMembers]*peer // by number; nil: none has the number
	waiter Waiter
	done   chan struct{}
	dials  sync.WaitGroup // goroutines that call Dial
	now    func() int64
	step   func()
	rest   func()
	failed func(int, error)
	left   atomic.Bool // Leave was called

	mu    sync.Mutex
	calls []func() // of Do
	ended bool     // Run has ended
}

// Config is the configuration of an Exchange.
type Config struct {
	Ledger *group.Ledger
	Peers  []Peer // by number; see Add
	Waiter Waiter
	Now    func() int64 // monotonic, in nanoseconds
	// Step is called by Run before it asks Senders for frames; it passes changes of the flow table
	// to the Ledger. It may be nil.
	Step func()
	// Failed is called by Run with the error of each stream that ends, and with that peer's number.
	Failed func(peer int, err error)
}

// peer is the two streams with another gateway. Run owns it.
type peer struct {
	Peer
	number         int
	removed        bool
	lease          group.OwnerLease
	to, from       Stream // nil: none
	sender         *session.Sender
	receiver       *session.Receiver
	lastFrameNanos int64 // when the stream to the peer was opened, or its last frame arrived
	dialing        bool
	redialAt       int64
}

var (
	errReplaced = errors.New("a later stream of the gateway has replaced this one")
	errLease    = errors.New("the lease has run out: the stream begins anew")
	errSilent   = errors.New("the gateway sends nothing")
	errRemoved  = errors.New("the gateway was removed from the group")
	// ErrStopped is the reason that Run sends to other gateways when it ends. After Leave the
	// reason is ErrLeft.
	ErrStopped = errors.New("the gateway stops, and its flows stay for its next process")
	ErrLeft    = errors.New("the gateway stops")
)

// New returns an Exchange without streams.
func New(c Config) *Exchange {
	x := &Exchange{
		ledger: c.Ledger, waiter: c.Waiter, done: make(chan struct{}),
		now: c.Now, step: c.Step, rest: func() {}, failed: c.Failed,
	}
	if x.step == nil {
		x.step = func() {}
	}
	for i := range c.Peers {
		x.Add(i, c.Peers[i])
	}
	x.Inherit()
	return x
}

// Add adds a peer with an unused number. Do must be the caller, unless Run has not begun.
func (x *Exchange) Add(i int, of Peer) {
	p := &peer{Peer: of, number: i}
	p.Owner.Lease = &p.lease
	x.peers[i] = p
}

// Remove removes the peer with a number, if there is one, and ends its streams. Do must be the
// caller.
func (x *Exchange) Remove(i int) { x.remove(i, errRemoved) }

// Replace ends the streams with a peer and begins new ones. SYN-ACKs wait for it as after Inherit.
// Do must be the caller.
func (x *Exchange) Replace(i int, of Peer) {
	x.remove(i, errReplaced)
	x.Add(i, of)
	x.peers[i].lease.Renew(x.now())
}

func (x *Exchange) remove(i int, reason error) {
	p := x.peers[i]
	if p == nil {
		return
	}
	p.removed, x.peers[i] = true, nil
	if p.receiver != nil {
		p.Member.Copies.Lost()
		p.from.End(reason)
	}
	if p.sender != nil {
		p.to.End(reason)
	}
}

// each calls do with each peer.
func (x *Exchange) each(do func(p *peer)) {
	for _, p := range x.peers {
		if p != nil {
			do(p)
		}
	}
}

// Inherit is called when another process with the same flows has sent to the peers until now: they
// may be in step with that process, so SYN-ACKs wait for them until their leases have run out. It
// must be called before Run. New calls it, for a process that ended earlier.
func (x *Exchange) Inherit() {
	x.each(func(p *peer) { p.lease.Renew(x.now()) })
}

// Do makes Run call f, and waits until f has returned. It returns false if Run has ended.
func (x *Exchange) Do(f func()) bool {
	called := make(chan struct{})
	if !x.post(func() { f(); close(called) }) {
		return false
	}
	select {
	case <-called:
		return true
	case <-x.done:
	}
	select {
	case <-called:
		return true
	default:
		return false
	}
}

// post makes Run call f, and does not wait. It returns false if Run has ended.
func (x *Exchange) post(f func()) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.ended {
		return false
	}
	x.calls = append(x.calls, f)
	x.waiter.Wake()
	return true
}

// OnRest sets a function that Run calls before it waits. It must be called before Run.
func (x *Exchange) OnRest(rest func()) { x.rest = rest }

// Wake makes Run call Step soon. It does not wait. Any goroutine may call it.
func (x *Exchange) Wake() { x.waiter.Wake() }

// InStep reports whether this gateway has copies of all flows of a peer. Run or Do must be the
// caller.
func (x *Exchange) InStep(i int) bool {
	p := x.peers[i]
	return p != nil && p.receiver != nil && p.receiver.InStep(x.now())
}

// ResetsUntil returns the time until which this gateway may answer segments of unknown connections
// with RST, or 0. It may while it has copies of all flows of all peers, and knows all of its own
// flows of which they have copies. Only Run and functions
// passed to Do may call it.
func (x *Exchange) ResetsUntil() int64 {
	if !x.ledger.Complete() {
		return 0
	}
	until := int64(math.MaxInt64)
	for _, p := range x.peers {
		if p == nil {
			continue
		}
		if p.receiver == nil {
			return 0
		}
		until = min(until, p.receiver.ResetsUntil())
	}
	return until
}

// Accept passes Run a stream from the peer with a number. It returns an error if Run has ended:
// then the caller still owns the stream.
func (x *Exchange) Accept(i int, s Stream) error {
	if !x.post(func() {
		p := x.peers[i]
		if p == nil {
			s.End(errRemoved)
			return
		}
		x.endFrom(p, errReplaced)
		p.receiver, p.from = session.NewReceiver(p.Member), s
	}) {
		return ErrStopped
	}
	return nil
}

// endFrom ends the stream from a peer: this gateway is out of step with the peer.
func (x *Exchange) endFrom(p *peer, err error) {
	if p.receiver == nil {
		return
	}
	p.Member.Copies.Lost()
	p.from.End(err)
	p.receiver, p.from = nil, nil
	x.failed(p.number, err)
}

// endTo ends the stream to a peer. SYN-ACKs wait for the peer until its lease has run out.
func (x *Exchange) endTo(p *peer, err error) {
	if p.sender == nil {
		return
	}
	p.to.End(err)
	p.sender, p.to = nil, nil
	p.redialAt = x.now() + int64(redialInterval)
	x.failed(p.number, err)
}

// Leave makes Run end its streams with ErrLeft: no flow stays for a next process. It must be called
// before the end of Run's context.
func (x *Exchange) Leave() { x.left.Store(true) }

// Run exchanges flows until ctx ends.
func (x *Exchange) Run(ctx context.Context) {
	woken := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { x.waiter.Wake(); close(woken) })
	defer func() {
		if !stop() {
			<-woken // the Waiter may be closed after Run
		}
	}()
	debt := time.Duration(0) // time worked beyond time waited
	for ctx.Err() == nil {
		began := x.now()
		x.mu.Lock()
		calls := x.calls
		x.calls = nil
		x.mu.Unlock()
		for _, f := range calls {
			f()
		}
		more := false
		x.each(func(p *peer) { more = x.receive(p) || more })
		x.step()
		x.each(func(p *peer) { more = x.serve(ctx, p, x.now()) || more })
		x.rest()
		worked := x.now()
		if debt += time.Duration(worked - began); debt > burst {
			x.waiter.Pause(min(debt/4, maxPause))
			debt = 0
		}
		if !more {
			x.waiter.Wait(tick)
			debt = max(0, debt-time.Duration(x.now()-worked))
		}
	}
	x.mu.Lock()
	x.ended = true
	calls := x.calls
	x.mu.Unlock()
	for _, f := range calls { // they may add streams, which are ended below
		f()
	}
	reason := ErrStopped
	if x.left.Load() {
		reason = ErrLeft
	}
	x.each(func(p *peer) {
		x.endFrom(p, reason)
		x.endTo(p, reason)
	})
	close(x.done)
	x.dials.Wait()
}

// receive reads the frames of a peer's streams. It returns true if there may be more.
func (x *Exchange) receive(p *peer) (more bool) {
	if p.from != nil {
		full, err := x.drain(p.from, p.receiver.Receive)
		if more = full; err != nil {
			x.endFrom(p, err)
		}
	}
	if p.to != nil {
		full, err := x.drain(p.to, func(frame []byte) error {
			p.lastFrameNanos = x.now()
			return p.sender.Receive(frame, p.lastFrameNanos)
		})
		if more = more || full; err != nil {
			x.endTo(p, err)
		}
	}
	return more
}

// drain passes the frames that have arrived on a stream to take. It returns true if there may be
// more.
func (x *Exchange) drain(s Stream, take func(frame []byte) error) (more bool, err error) {
	for end := x.now() + int64(turn); x.now() < end; {
		frame, err := s.Receive()
		if err != nil || frame == nil {
			return false, err
		}
		if err := take(frame); err != nil {
			return false, err
		}
	}
	return true, nil
}

// serve ends the streams of a peer whose time has run out, sends due frames, and dials. It returns
// true if there may be more to send.
func (x *Exchange) serve(ctx context.Context, p *peer, now int64) (more bool) {
	if p.receiver != nil && p.receiver.Lapsed(now) {
		x.endFrom(p, errLease)
	}
	if p.lease.Ended(now) {
		if p.sender != nil && p.sender.Running() {
			x.endTo(p, errLease)
		}
		if x.ledger.View(p.Owner.Member) != group.Out {
			x.ledger.Lost(p.Owner.Member)
		}
	}
	if p.sender != nil && now-p.lastFrameNanos > int64(handshakeTimeout) {
		x.endTo(p, errSilent)
	}
	if p.receiver != nil {
		full, err := x.fill(p.from, func() []byte { return p.receiver.Next(now, nil) })
		if more = full; err != nil {
			x.endFrom(p, err)
		}
	}
	if p.sender != nil {
		full, err := x.fill(p.to, func() []byte { return p.sender.Next(now, nil) })
		if more = more || full; err != nil {
			x.endTo(p, err)
		}
	} else if !p.dialing && now >= p.redialAt {
		p.dialing = true
		x.dials.Go(func() { x.dial(ctx, p) })
	}
	return more
}

// fill sends the next frames of a stream while it has room. It returns true if there may be more.
func (x *Exchange) fill(s Stream, next func() []byte) (more bool, err error) {
	for end := x.now() + int64(turn); x.now() < end; {
		if !s.Ready() {
			return false, nil
		}
		frame := next()
		if len(frame) == 0 {
			return false, nil
		}
		if err := s.Send(frame); err != nil {
			return false, err
		}
	}
	return true, nil
}

// dial opens the stream to a peer.
func (x *Exchange) dial(ctx context.Context, p *peer) {
	s, err := p.Dial(ctx)
	if !x.post(func() {
		p.dialing = false
		switch {
		case p.removed && err == nil:
			s.End(errRemoved)
			return
		case p.removed:
			return
		case err != nil:
			p.redialAt = x.now() + int64(redialInterval)
			x.failed(p.number, err)
			return
		}
		p.sender, p.to, p.lastFrameNanos = session.NewSender(p.Owner), s, x.now()
	}) && err == nil {
		s.End(ErrStopped)
	}
}

// Package exchange runs the streams of a gateway: it sends its own flows to each member, and keeps
// the copies of each member's flows.
//
//	Dial, Accept ──► reader ── event ──► Exchange.Run ── one frame ──► writer ──► Stream.Send
//
// One goroutine, Run, owns the Ledger, the Copies, and all Senders and Receivers. Each stream has a
// reader, which waits until Run has taken its frame, and a writer with room for one frame. Run asks
// a Sender for a frame only if the writer has room, so a member that does not read costs one frame
// here and the window of the transport; its lease runs out, and its next stream begins with
// everything anew. Run itself waits for no stream.
package exchange

import (
	"context"
	"errors"
	"math"
	"time"

	"sluice.dev/sluice/gateway/group"
	"sluice.dev/sluice/gateway/group/session"
)

// Stream is one end of a stream of frames (package gateway/peers).
type Stream interface {
	Send(frame []byte) error
	Receive() (frame []byte, err error)
}

// redialInterval is the time between two attempts to open a stream to a member.
const redialInterval = 100 * time.Millisecond

// tick is the longest time until a lease that has run out is noticed, or a due beat is sent.
const tick = 5 * time.Millisecond

// patience is the longest time that a stream may bring nothing, before it has a lease.
const patience = 5 * time.Second

// Peer is another gateway.
type Peer struct {
	Owner  session.Owner  // this gateway's end of the stream to the peer; Lease is set by Run
	Member session.Member // this gateway's end of the stream from the peer
	// Dial opens the stream to the peer. The stream ends with ctx.
	Dial func(ctx context.Context) (Stream, error)
}

// Exchange is the streams of a gateway.
type Exchange struct {
	ledger *group.Ledger
	peers  []*peer
	events chan func()   // run by Run
	wake   chan struct{} // a writer has room, or Wake was called
	done   chan struct{}
	now    func() int64
	step   func()
	rest   func()
	failed func(int, error)
}

// Config is the configuration of an Exchange.
type Config struct {
	Ledger *group.Ledger
	Peers  []Peer
	Now    func() int64 // monotonic, in nanoseconds
	// Step is called by Run before it asks Senders for frames: for changes of the flow table. It
	// may be nil.
	Step func()
	// Failed is called by Run with the error of each stream that ends, and with that peer's index.
	Failed func(peer int, err error)
}

// peer is the two streams with another gateway. Run owns it.
type peer struct {
	Peer
	index    int
	lease    group.OwnerLease
	to, from line
	sender   *session.Sender
	receiver *session.Receiver
	heard    int64 // when the stream to the peer was opened, or has brought a frame
	dialing  bool
	redialAt int64
}

// line is a stream's connection to its goroutines. The zero value is closed.
type line struct {
	end   func(error) // ends the stream
	write chan []byte
}

var (
	errReplaced = errors.New("a later stream of the gateway has replaced this one")
	errLease    = errors.New("the lease has run out: the stream begins anew")
	errSilent   = errors.New("the gateway sends nothing")
	errStopped  = errors.New("the gateway stops")
)

// New returns an Exchange without streams.
func New(c Config) *Exchange {
	x := &Exchange{
		ledger: c.Ledger, events: make(chan func()), wake: make(chan struct{}, 1), done: make(chan struct{}),
		now: c.Now, step: c.Step, rest: func() {}, failed: c.Failed,
	}
	if x.step == nil {
		x.step = func() {}
	}
	for i := range c.Peers {
		p := &peer{Peer: c.Peers[i], index: i}
		p.Owner.Lease = &p.lease
		x.peers = append(x.peers, p)
	}
	x.Inherit()
	return x
}

// Inherit notes that a process with the same flows has sent to the peers until now: they may be in
// step with it, so SYN-ACKs wait for them until their leases have run out. It must be called before
// Run. New notes the same for a process that ended before.
func (x *Exchange) Inherit() {
	for _, p := range x.peers {
		p.lease.Heard(x.now())
	}
}

// Do has Run call f, and waits until it has. It returns false if Run has ended.
func (x *Exchange) Do(f func()) bool {
	called := make(chan struct{})
	select {
	case x.events <- func() { f(); close(called) }:
		<-called
		return true
	case <-x.done:
		return false
	}
}

// OnRest sets a function that Run calls before it waits. It must be called before Run.
func (x *Exchange) OnRest(rest func()) { x.rest = rest }

// Wake makes Run call Step soon. It does not wait. Any goroutine may call it.
func (x *Exchange) Wake() {
	select {
	case x.wake <- struct{}{}:
	default:
	}
}

// InStep reports whether this gateway has all that a peer sent. Run or Do must be the caller.
func (x *Exchange) InStep(i int) bool {
	r := x.peers[i].receiver
	return r != nil && r.InStep(x.now())
}

// ResetsUntil returns the time until which this gateway may answer segments of unknown connections
// with RST, or 0: it has all flows of all peers, and knows all flows of its own that they have. Run
// or Do must be the caller.
func (x *Exchange) ResetsUntil() int64 {
	if !x.ledger.Complete() {
		return 0
	}
	until := int64(math.MaxInt64)
	for _, p := range x.peers {
		if p.receiver == nil {
			return 0
		}
		until = min(until, p.receiver.ResetsUntil())
	}
	return until
}

// Accept handles a stream from a peer, by its index in Config. It returns when the stream ends,
// with the reason.
func (x *Exchange) Accept(i int, s Stream) error {
	ended := make(chan error, 1)
	open := func() {
		p := x.peers[i]
		x.endFrom(p, errReplaced)
		p.receiver = session.NewReceiver(p.Member)
		p.from = x.start(s, ended, func(err error) { x.endFrom(p, err) }, func(frame []byte) error {
			return p.receiver.Receive(frame)
		})
	}
	if !x.Do(open) {
		return errStopped
	}
	return <-ended
}

// start starts the goroutines of a stream. lost is called by Run if the stream fails, receive with
// each frame, unless the stream was ended before. The reason of the end is sent to ended.
func (x *Exchange) start(s Stream, ended chan<- error, lost func(error), receive func([]byte) error) line {
	stop, open := make(chan struct{}), true
	l := line{write: make(chan []byte, 1), end: func(err error) {
		open = false
		close(stop)
		ended <- err
	}}
	fail := func(err error) {
		x.Do(func() {
			if open {
				lost(err)
			}
		})
	}
	go func() {
		for {
			frame, err := s.Receive()
			if err != nil {
				fail(err)
				return
			}
			x.Do(func() {
				if !open {
					return
				}
				if err = receive(frame); err != nil {
					lost(err)
				}
			})
			if err != nil {
				return
			}
		}
	}()
	go func() {
		for {
			select {
			case frame := <-l.write:
				x.Wake()
				if err := s.Send(frame); err != nil {
					fail(err)
					return
				}
			case <-stop:
				return
			}
		}
	}()
	return l
}

// endFrom ends the stream from a peer: this gateway is out of step with the peer.
func (x *Exchange) endFrom(p *peer, err error) {
	if p.receiver == nil {
		return
	}
	p.Member.Copies.Lost()
	p.from.end(err)
	p.receiver, p.from = nil, line{}
	x.failed(p.index, err)
}

// endTo ends the stream to a peer. SYN-ACKs wait for the peer until its lease has run out.
func (x *Exchange) endTo(p *peer, err error) {
	if p.sender == nil {
		return
	}
	p.to.end(err)
	p.sender, p.to = nil, line{}
	p.redialAt = x.now() + int64(redialInterval)
	x.failed(p.index, err)
}

// Run exchanges flows until ctx ends.
func (x *Exchange) Run(ctx context.Context) {
	t := time.NewTicker(tick)
	defer t.Stop()
	defer close(x.done)
	for {
		x.step()
		for _, p := range x.peers {
			x.serve(ctx, p, x.now())
		}
		x.rest()
		select {
		case f := <-x.events:
			f()
		case <-t.C:
		case <-x.wake:
		case <-ctx.Done():
			for _, p := range x.peers {
				x.endFrom(p, errStopped)
				x.endTo(p, errStopped)
			}
			return
		}
	}
}

// serve does for a peer whatever is due.
func (x *Exchange) serve(ctx context.Context, p *peer, now int64) {
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
	if p.sender != nil && now-p.heard > int64(patience) {
		x.endTo(p, errSilent)
	}
	if p.receiver != nil {
		fill(p.from.write, func() []byte { return p.receiver.Next(now, nil) })
	}
	if p.sender != nil {
		fill(p.to.write, func() []byte { return p.sender.Next(now, nil) })
	} else if !p.dialing && now >= p.redialAt {
		p.dialing = true
		go x.dial(ctx, p)
	}
}

// fill gives a writer its next frame if it has room.
func fill(write chan []byte, next func() []byte) {
	if len(write) > 0 {
		return
	}
	if frame := next(); len(frame) > 0 {
		write <- frame // Run alone writes, so there is room still
	}
}

// dial opens the stream to a peer.
func (x *Exchange) dial(ctx context.Context, p *peer) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := p.Dial(ctx)
	ended := make(chan error, 1)
	if !x.Do(func() {
		p.dialing = false
		if err != nil {
			p.redialAt = x.now() + int64(redialInterval)
			x.failed(p.index, err)
			return
		}
		p.sender, p.heard = session.NewSender(p.Owner), x.now()
		p.to = x.start(s, ended, func(err error) { x.endTo(p, err) }, func(frame []byte) error {
			p.heard = x.now()
			return p.sender.Receive(frame, p.heard)
		})
	}) || err != nil {
		return
	}
	<-ended
}

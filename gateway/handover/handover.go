// Package handover is the protocol by which a running process gives what it has to the next one, so
// that no packet is lost. It decides who owns it at each moment; what is given is the caller's.
//
//	next process (Take)                    running process (Give)
//
//	            ── hello, facts ─────────►  compares facts
//	            ◄─ accepted, or reasons ──
//	 Lay: loads what takes long
//	            ── ask ──────────────────►  Offer: changes nothing more but flows
//	            ◄─ offer, files ──────────
//	 Prepare: maps all, is ready to run
//	            ── ready ────────────────►  Stop: no worker runs; packets wait in the rings
//	            ◄─ state ─────────────────
//	 Assume: checks it, changes
//	  only what is its own
//	            ── taken ────────────────►  touches nothing any more
//	 takes what both have; workers run
//	            ── running ──────────────►  ends
//
// The commit point is the sending of taken: until then all is the running process's, from then on
// the next one's. The kernel makes that one moment for both. A running process that has waited too
// long shuts down its side of the connection for reading; after that the other one's taken fails
// (EPIPE, unix_stream_sendmsg in net/unix/af_unix.c), and one that was sent before is still read.
// So each side knows, also where the other one was stopped for an hour at any message.
//
// If either process dies before the commit point the running one goes on, or, if it is the one that
// died, the other one ends and starts as after a crash. If the next one dies after it the running
// one has ended: the next start is one as after a crash.
package handover

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Protocol is the version of the messages, and of what the caller puts into them.
const Protocol = 2

// Fact is something that both processes must have alike, such as the size of frames.
type Fact struct{ What, Is string }

// Hello is what the next process says first.
type Hello struct {
	Protocol int
	Version  string
	// Identity is empty, or a name that a process has in common with those that were started in
	// its place, such as the UID of its pod.
	Identity string
	Facts    []Fact
}

// answer is what the running process says to Hello, and to ask.
type answer struct {
	Version string
	Refused []string // why it does not give; empty if it does
	Barred  bool     // it is refused for what its version did
	Offer   []byte
	Files   int // that follow
}

// Giver is the running process.
type Giver interface {
	// Facts returns the facts of this process, or an error if it cannot give now to the process
	// that says hello: a BarredError if that is because of that one.
	Facts(h *Hello) ([]Fact, error)
	// Offer makes sure that nothing but flows and packets changes until Continue, and describes
	// what is given. The files stay the giver's.
	Offer(ctx context.Context) (offer []byte, files []int, err error)
	// Stop stops the workers, and returns their state, which is not empty. The ctx has the deadline
	// for all that packets wait for.
	Stop(ctx context.Context) (state []byte, err error)
	// Continue undoes Offer and Stop, whichever were called.
	Continue()
}

// Taker is the next process.
type Taker interface {
	// Facts returns the facts of this process, and its identity.
	Facts() (facts []Fact, identity string, err error)
	// Lay does what takes long and changes nothing. A RefusedError says that the two processes
	// differ in what both must have alike; another error is of this one.
	Lay(ctx context.Context) error
	// Prepare maps what is offered. The files are the taker's from then on.
	Prepare(ctx context.Context, offer []byte, files []int) error
	// Assume checks the state and makes the workers ready to run. It must change nothing that the
	// giver can see, who may go on yet. Workers must not run before Take has returned.
	Assume(state []byte) error
}

// Times bound how long each side waits for the other.
type Times struct {
	Answer  time.Duration // for a message that takes no work
	Lay     time.Duration // the giver: for ask, while it works as always
	Prepare time.Duration // the giver: for ready, while its control loop stands still
	Assume  time.Duration // the giver: from Stop until taken is here, while packets wait
	Run     time.Duration // the giver: for running, when it has given all
}

// DefaultTimes are those of processes that work. Where nothing is taken, packets wait for Assume,
// and until the giver's workers go on.
var DefaultTimes = Times{Answer: 5 * time.Second, Lay: time.Minute, Prepare: 10 * time.Second, Assume: time.Second,
	Run: 100 * time.Millisecond}

// RefusedError says why the running process does not give. Nothing has been changed. The next one
// can start once that one has ended, unless it is Barred.
type RefusedError struct {
	Reasons []string
	Barred  bool // for what its version did
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("the running process does not hand over: %s", e.Reasons)
}

// UnableError says what the next process itself cannot do. Nothing has been changed. It could not
// start either if the running one had ended.
type UnableError struct{ Err error }

func (e *UnableError) Error() string { return "this process cannot take over: " + e.Err.Error() }

// Unwrap returns what it cannot do.
func (e *UnableError) Unwrap() error { return e.Err }

// BarredError is why the running process gives nothing to one that says hello, whatever it has.
type BarredError struct{ Reason string }

func (e *BarredError) Error() string { return e.Reason }

// PeerError says that the next process had the offer, and died, or did not go on in time.
type PeerError struct{ Err error }

func (e *PeerError) Error() string { return e.Err.Error() }

// Unwrap returns what did not come.
func (e *PeerError) Unwrap() error { return e.Err }

// Give gives what the process has to the one at the other end. It reports whether that has it now:
// then this process must end without touching anything. Otherwise it goes on as before, and the
// error says why nothing was given.
func Give(ctx context.Context, c *Conn, g Giver, version string, t Times) (gave bool, err error) {
	var h Hello
	if err := c.receive(&h, t.Answer); err != nil {
		return false, fmt.Errorf("hello: %w", err)
	}
	facts, err := g.Facts(&h)
	reasons := compare(&h, facts)
	if err != nil {
		reasons = []string{err.Error()}
	}
	var barred *BarredError
	isBarred := errors.As(err, &barred)
	if err := c.send(&answer{Version: version, Refused: reasons, Barred: isBarred}, t.Answer); err != nil {
		return false, fmt.Errorf("answer to hello: %w", err)
	}
	if len(reasons) > 0 {
		return false, &RefusedError{reasons, isBarred}
	}
	if err := c.receiveByte(ask, t.Lay); err != nil {
		return false, err
	}
	defer func() {
		if !gave {
			g.Continue()
		}
	}()
	offer, files, err := g.Offer(ctx)
	if err != nil {
		return false, errors.Join(err, c.send(&answer{Refused: []string{err.Error()}}, t.Answer))
	}
	if err := c.send(&answer{Offer: offer, Files: len(files)}, t.Answer); err != nil {
		return false, fmt.Errorf("offer: %w", err)
	}
	if err := c.sendFiles(files, t.Answer); err != nil {
		return false, fmt.Errorf("files: %w", err)
	}
	if err := c.receiveByte(ready, t.Prepare); err != nil {
		return false, &PeerError{err}
	}
	deadline := time.Now().Add(t.Assume)
	until, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	state, err := g.Stop(until)
	if err != nil {
		return false, errors.Join(err, c.send(&[]byte{}, t.Answer),
			c.send(&answer{Refused: []string{err.Error()}}, t.Answer))
	}
	left := time.Until(deadline)
	if gave, err = finish(c, state, deadline, t); gave {
		_ = c.receiveByte(running, t.Run) // see the package comment: a version before does not send it
	} else if left > t.Assume/2 { // or its time was this one's
		err = &PeerError{err}
	}
	return gave, err
}

// finish sends the state and waits for taken. After the deadline it makes sure that taken cannot be
// sent any more, and sees whether it was.
func finish(c *Conn, state []byte, deadline time.Time, t Times) (gave bool, err error) {
	if err = c.send(&state, time.Until(deadline)); err != nil {
		err = fmt.Errorf("state: %w", err)
	} else if err = c.receiveByte(taken, time.Until(deadline)); err == nil {
		return true, nil
	}
	if e := c.refuseMore(); e != nil {
		return false, errors.Join(err, e)
	}
	if c.receiveByte(taken, t.Answer) == nil {
		return true, nil
	}
	return false, err
}

// compare returns what keeps the two processes from having the same.
func compare(h *Hello, ours []Fact) (reasons []string) {
	if h.Protocol != Protocol {
		return []string{fmt.Sprintf("hand-over: the running process has version %d of it, the next one %d", Protocol,
			h.Protocol)}
	}
	theirs := slices.Clone(h.Facts)
	for _, f := range ours {
		at := slices.IndexFunc(theirs, func(o Fact) bool { return o.What == f.What })
		switch {
		case at < 0:
			reasons = append(reasons, fmt.Sprintf("%s: the next process does not know it", f.What))
			continue
		case theirs[at].Is != f.Is:
			reasons = append(reasons, fmt.Sprintf("%s: the running process has %s, the next one %s", f.What, f.Is,
				theirs[at].Is))
		}
		theirs = slices.Delete(theirs, at, at+1)
	}
	for _, f := range theirs {
		reasons = append(reasons, fmt.Sprintf("%s: the running process does not know it", f.What))
	}
	return reasons
}

// Take takes what the process at the other end has, and returns that one's version. After a
// RefusedError or an UnableError nothing has been changed. After another error Prepare may have
// been called: then the other process has all or has died, and this one must end. Without an error
// the workers must run at once, and then Running be called. It takes nothing once ctx is done.
func Take(ctx context.Context, c *Conn, k Taker, version string, t Times) (from string, err error) {
	facts, identity, err := k.Facts()
	if err != nil {
		return "", &UnableError{err}
	}
	a, err := question(c, &Hello{Protocol, version, identity, facts}, t)
	if err != nil {
		return "", err
	}
	from = a.Version
	if err := k.Lay(ctx); err != nil {
		var differs *RefusedError
		if errors.As(err, &differs) {
			return from, differs
		}
		return from, &UnableError{err}
	}
	if err := c.sendByte(ask, t.Answer); err != nil {
		return from, refusal(fmt.Errorf("ask: %w", err))
	}
	if a, err = answered(c, t.Prepare); err != nil {
		return from, err
	}
	files, err := c.receiveFiles(a.Files, t.Answer)
	if errors.Is(err, errNoFiles) {
		return from, &UnableError{err}
	}
	if err != nil {
		return from, refusal(fmt.Errorf("files: %w", err))
	}
	if err := k.Prepare(ctx, a.Offer, files); err != nil {
		return from, err
	}
	if err := ctx.Err(); err != nil {
		return from, err // this process is to end
	}
	if err := c.sendByte(ready, t.Answer); err != nil {
		return from, fmt.Errorf("ready: %w", err)
	}
	var state []byte
	if err := c.receive(&state, t.Answer); err != nil {
		return from, fmt.Errorf("state: %w", err)
	}
	if len(state) == 0 {
		return from, fmt.Errorf("state: %w", whyNone(c, t))
	}
	if err := k.Assume(state); err != nil {
		return from, err
	}
	if err := ctx.Err(); err != nil {
		return from, err
	}
	if err := c.sendByte(taken, t.Answer); err != nil {
		return from, fmt.Errorf("the running process has gone on itself, or died: %w", err)
	}
	return from, nil
}

// Running lets the process at the other end of a Take end, as the workers of this one run.
func Running(c *Conn, t Times) error { return c.sendByte(running, t.Answer) }

func question(c *Conn, h *Hello, t Times) (answer, error) {
	if err := c.send(h, t.Answer); err != nil {
		return answer{}, refusal(fmt.Errorf("hello: %w", err))
	}
	return answered(c, t.Answer)
}

// answered receives an answer. Up to the offer nothing has been changed, whatever happens.
func answered(c *Conn, within time.Duration) (a answer, err error) {
	if err := c.receive(&a, within); err != nil {
		return a, refusal(fmt.Errorf("no answer: %w", err))
	}
	if len(a.Refused) > 0 {
		return a, &RefusedError{a.Refused, a.Barred}
	}
	return a, nil
}

// whyNone receives why the running process has no state to give. This one has prepared, so it is no
// RefusedError.
func whyNone(c *Conn, t Times) error {
	var a answer
	if err := c.receive(&a, t.Answer); err != nil {
		return err
	}
	return fmt.Errorf("the running process has none: %s", strings.Join(a.Refused, "; "))
}

func refusal(err error) error { return &RefusedError{Reasons: []string{err.Error()}} }

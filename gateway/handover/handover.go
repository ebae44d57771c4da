// Package handover is the protocol by which a running process hands its sockets, memory and state
// to the next one without losing a packet. The protocol decides which process owns them at each
// moment; the caller defines what they are.
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
// The commit point is the sending of taken: until then the running process owns everything, from
// then on the next one. The kernel makes that the same moment for both. A running process that has
// waited too long shuts down its side of the connection for reading; after that the next process's
// taken fails (EPIPE, unix_stream_sendmsg in net/unix/af_unix.c), and one that was sent before can
// still be read. So each side knows the owner, even if the other one was stopped for an hour at any
// message.
//
// If the next process dies before the commit point, the running one continues; if the running one
// dies, the next one ends, and starts as after a crash. If the next process dies after the commit
// point, the running one has ended, and the next start is like one after a crash.
package handover

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Protocol is the version of the messages and of their content.
const Protocol = 3

// Fact is a property that must be the same in both processes, such as the size of frames.
type Fact struct{ What, Is string }

// Hello is the first message, from the next process.
type Hello struct {
	Protocol int
	Version  string
	// Identity is empty, or a name that a process shares with the processes started in its place,
	// such as the UID of its pod.
	Identity string
	Facts    []Fact
}

// answer is the running process's answer to Hello and to ask.
type answer struct {
	Version string
	Refused []string // why it does not hand over; empty if it does
	Barred  bool     // refused because of what a process of that version did before
	Offer   []byte
	Files   int // number of files that follow
}

// Giver is the running process.
type Giver interface {
	// Facts returns the facts of this process, or an error if it cannot hand over now to the
	// process that sent h: a BarredError if that process is the reason.
	Facts(h *Hello) ([]Fact, error)
	// Offer ensures that only flows and packets change until Continue, and describes what is handed
	// over. The giver keeps the files.
	Offer(ctx context.Context) (offer []byte, files []int, err error)
	// Stop stops the workers, and returns their state, which is not empty. The deadline of ctx
	// bounds the time that packets wait.
	Stop(ctx context.Context) (state []byte, err error)
	// Continue undoes Offer and Stop, if they were called.
	Continue()
}

// Taker is the next process.
type Taker interface {
	// Facts returns the facts of this process, and its identity.
	Facts() (facts []Fact, identity string, err error)
	// Lay does the work that takes long and changes nothing. A RefusedError reports a difference in
	// facts that must be the same in both processes; any other error is about this process.
	Lay(ctx context.Context) error
	// Prepare maps the memory and sockets that are offered. From then on the taker owns the files.
	Prepare(ctx context.Context, offer []byte, files []int) error
	// Assume checks the state and makes the workers ready to run. It must change nothing that the
	// giver can see, because the giver may still continue. Workers must not run before Take has
	// returned.
	Assume(state []byte) error
}

// Times bounds how long each side waits for the other.
type Times struct {
	Answer  time.Duration // for a message that takes no work
	Lay     time.Duration // the giver: for ask, during normal work
	Prepare time.Duration // the giver: for ready, while its control loop waits
	Assume  time.Duration // the giver: from Stop until taken arrives, while packets wait
	Run     time.Duration // the giver: for running, after it handed over
}

// DefaultTimes are the times of real processes. If the hand-over fails, packets wait for Assume,
// and until the giver's workers continue.
var DefaultTimes = Times{Answer: 5 * time.Second, Lay: time.Minute, Prepare: 10 * time.Second, Assume: time.Second,
	Run: 100 * time.Millisecond}

// RefusedError is why the running process does not hand over. Nothing has changed. The next process
// can start when the running one has ended, unless it is Barred.
type RefusedError struct {
	Reasons []string
	Barred  bool // because of what a process of its version did before
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("the running process does not hand over: %s", e.Reasons)
}

// UnableError is why the next process itself cannot take over. Nothing has changed. It could not
// start even if the running process had ended.
type UnableError struct{ Err error }

func (e *UnableError) Error() string { return "this process cannot take over: " + e.Err.Error() }

// Unwrap returns the cause.
func (e *UnableError) Unwrap() error { return e.Err }

// BarredError is why the running process hands nothing to the process that said hello, whatever its
// facts.
type BarredError struct{ Reason string }

func (e *BarredError) Error() string { return e.Reason }

// PeerError means that the next process had the offer, and died or did not continue in time.
type PeerError struct{ Err error }

func (e *PeerError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *PeerError) Unwrap() error { return e.Err }

// Give hands everything over to the process at the other end. It reports whether that process owns
// it now: then this process must end without touching anything. Otherwise this process continues,
// and the error is why nothing was handed over.
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
		_ = c.receiveByte(running, t.Run) // see the package comment; an older version does not send it
	} else if left > t.Assume/2 { // or its time was this one's
		err = &PeerError{err}
	}
	return gave, err
}

// finish sends the state and waits for taken. After the deadline it makes sure that taken can no
// longer be sent, and checks whether it was.
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

// compare returns the differences that prevent a hand-over.
func compare(h *Hello, ours []Fact) (reasons []string) {
	if h.Protocol != Protocol {
		return []string{fmt.Sprintf("hand-over protocol: the running process has version %d, the next one %d", Protocol,
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

// Take takes over from the process at the other end, and returns its version. After a RefusedError
// or an UnableError nothing has changed. After another error Prepare may have been called: then the
// other process owns everything or has died, and this one must end. Without an error the caller
// must start the workers at once, and then call Running. Once ctx is done, Take takes nothing over.
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
		return from, err // this process must end
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
		if gone := c.mayBeTaken(); gone != nil { // then the state is not what the sockets have
			return from, errors.Join(continued(gone, t), err)
		}
		return from, err
	}
	if err := ctx.Err(); err != nil {
		return from, err
	}
	if err := c.sendByte(taken, t.Answer); err != nil {
		return from, continued(err, t)
	}
	return from, nil
}

// continued is the error of a taker whose giver does not wait any more.
func continued(err error, t Times) error {
	return fmt.Errorf("the running process has died, or has continued, because this one took longer than %v after "+
		"its workers had stopped: try again when the machine is less busy (%w)", t.Assume, err)
}

// Running tells the process at the other end of a Take that it may end, because this one's workers
// run.
func Running(c *Conn, t Times) error { return c.sendByte(running, t.Answer) }

func question(c *Conn, h *Hello, t Times) (answer, error) {
	if err := c.send(h, t.Answer); err != nil {
		return answer{}, refusal(fmt.Errorf("hello: %w", err))
	}
	return answered(c, t.Answer)
}

// answered receives an answer. Until the offer nothing has changed, whatever happens.
func answered(c *Conn, within time.Duration) (a answer, err error) {
	if err := c.receive(&a, within); err != nil {
		return a, refusal(fmt.Errorf("no answer: %w", err))
	}
	if len(a.Refused) > 0 {
		return a, &RefusedError{a.Refused, a.Barred}
	}
	return a, nil
}

// whyNone receives why the running process has no state to hand over. This process has prepared, so
// the error is no RefusedError.
func whyNone(c *Conn, t Times) error {
	var a answer
	if err := c.receive(&a, t.Answer); err != nil {
		return err
	}
	return fmt.Errorf("the running process has none: %s", strings.Join(a.Refused, "; "))
}

func refusal(err error) error { return &RefusedError{Reasons: []string{err.Error()}} }

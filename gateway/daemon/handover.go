package daemon

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/control/endpointhealth"
	"sluice.dev/sluice/gateway/handover"
	"sluice.dev/sluice/gateway/owners"
	"sluice.dev/sluice/internal/wake"
	"sluice.dev/sluice/serve/status"
)

// phase is the stage of a process between its predecessor and its successor.
//
//	starting ──────────────────────────► owning ◄──► offering ──► handedOver
//	   │                                   ▲  │          │            ▲
//	   └──► waiting ──► preparing ─────────┘  ▼          ▼            │
//	            └─────► starting            ending ◄── offeringLast ──┘
//
// A process may come to ending from every phase before owning, too.
type phase int

const (
	starting     phase = iota // no other process has the flow table, as far as is known
	waiting                   // another process has the flow table
	preparing                 // the predecessor's files are mapped, and must not be changed
	owning                    // this process alone changes flows, sockets and programs
	offering                  // a successor has the offer: only flows and packets may change
	offeringLast              // offering, and this process ends if the successor fails
	ending                    // nothing is offered any more
	handedOver                // all is the successor's, and must not be changed
)

// handOver owns the hand-over of this process: from its predecessor to it, and from it to its
// successor.
type handOver struct {
	request bool         // ask the predecessor to hand over, rather than wait for its end
	socket  net.Listener // on which a successor asks; nil if it could not be made
	log     *slog.Logger

	requests requests // to the predecessor
	waited   bool     // for a predecessor, which may still be ending
	// predecessors are the identities of all earlier processes. They get nothing back.
	predecessors []string

	accepted chan struct{} // closed when the successor has everything
	saving   chan struct{} // has an element while a file that a successor reads is written

	answering sync.Mutex // held while a successor is answered; guards the next two
	refused   []string   // the reasons of the last refusal that was logged
	attempts  attempts

	mu       sync.Mutex // guards the fields below
	phase    phase
	received *offer        // the predecessor's; nil without one
	conn     *net.UnixConn // of the successor that is being answered
}

// errHandedOver ends a daemon whose successor has its sockets, tables and locks. It must not change
// them on its way out.
var errHandedOver = errors.New("handed over")

// errNotReceived ends a daemon that has prepared for a hand-over that failed. Its files are the
// running process's, and it must not change them. The next start is one as after a crash, or waits.
var errNotReceived = errors.New("not taken over")

func newHandOver(request bool, log *slog.Logger) handOver {
	return handOver{request: request, log: log, accepted: make(chan struct{}), saving: make(chan struct{}, 1)}
}

// in reports whether the process is in a phase.
func (h *handOver) in(p phase) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.phase == p
}

// enter changes the phase, unless the process is ending already.
func (h *handOver) enter(p phase) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.phase < ending {
		h.phase = p
	}
}

// receive enters preparing with the predecessor's offer.
func (h *handOver) receive(o *offer) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.phase, h.received, h.predecessors = preparing, o, o.Predecessors
}

// succeeded reports whether the predecessor has handed over.
func (h *handOver) succeeded() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.received != nil && h.phase >= owning
}

// receivedChecks returns the results of the predecessor's checks of endpoints.
func (h *handOver) receivedChecks() []endpointhealth.Known {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.received == nil {
		return nil
	}
	return h.received.Checks
}

// begin records the connection of a successor that is answered. It is false if this process is
// ending.
func (h *handOver) begin(u *net.UnixConn) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.conn = u
	return h.phase < offeringLast
}

// ends reports whether nothing is offered any more.
func (h *handOver) ends() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.phase >= offeringLast
}

// offer enters offering, when no file is being written any more. It returns an error if ctx ends
// before, or if this process is ending.
func (h *handOver) offer(ctx context.Context) error {
	select {
	case h.saving <- struct{}{}:
		defer func() { <-h.saving }()
	case <-ctx.Done():
		return errSlowDisk
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.phase != owning {
		return errors.New("it is ending")
	}
	h.phase = offering
	return nil
}

// withdraw ends offering: the successor has failed.
func (h *handOver) withdraw() {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch h.phase {
	case offering:
		h.phase = owning
	case offeringLast:
		h.phase = ending
	}
}

// accept enters handedOver.
func (h *handOver) accept() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.phase = handedOver
	close(h.accepted)
}

// end makes sure that nothing is offered from now on, and waits for an offer that a successor has.
// It reports whether that successor has accepted: then this process must not stop anything.
func (h *handOver) end() (accepted bool) {
	h.mu.Lock()
	switch h.phase {
	case offering:
		h.phase = offeringLast
	case offeringLast, handedOver:
	default:
		h.phase = ending
		if h.conn != nil { // a successor that has no offer yet may be slow to ask for one
			h.conn.Close()
		}
	}
	h.mu.Unlock()
	h.answering.Lock()
	defer h.answering.Unlock()
	return h.in(handedOver)
}

// errOffering is returned for changes that a successor would not see.
var errOffering = errors.New("the next process is taking over: ask that one")

// saveTime bounds the wait for a file that a successor reads: the control loop waits for it, and so
// does the end of the process.
const saveTime = 5 * time.Second

// errSlowDisk is returned when a file is not written in time. It may be written later.
var errSlowDisk = errors.New("a file of stateDir is still being written: the disk is slow")

// unlessOffering runs save, which writes a file that a successor reads, unless a successor may have
// read the file already. If the disk hangs, it returns errSlowDisk after saveTime; until save has
// ended, other saves and offers fail with the same error.
func (h *handOver) unlessOffering(save func() error) error {
	late := time.After(saveTime)
	select {
	case h.saving <- struct{}{}:
	case <-late:
		return errSlowDisk
	}
	saved := make(chan error, 1)
	go func() {
		defer func() { <-h.saving }()
		if h.offers() {
			saved <- errOffering
			return
		}
		saved <- save()
	}()
	select {
	case err := <-saved:
		return err
	case <-late:
		return errSlowDisk
	}
}

// offers reports whether a successor has the offer, or everything.
func (h *handOver) offers() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.phase == offering || h.phase == offeringLast || h.phase == handedOver
}

// serve passes each connection of a successor to answer, one after the other, until ctx is done or
// answer reports that it was the last. Without the socket a successor waits for the end of this
// process.
func (h *handOver) serve(ctx context.Context, path string, answer func(*net.UnixConn) (last bool)) {
	if h.socket == nil {
		l, err := status.Listen(path)
		if err != nil {
			h.log.Warn("no next process can take over while this one runs", "error", err)
			return
		}
		h.socket = l
	}
	l := h.socket
	stop := context.AfterFunc(ctx, func() { l.Close() })
	logged := ""
	for ctx.Err() == nil {
		c, err := l.Accept()
		switch {
		case err == nil:
			if answer(c.(*net.UnixConn)) {
				stop() // the socket is the successor's now
				return
			}
		case ctx.Err() == nil: // EMFILE or ENFILE, which pass; the successor waits
			if why := err.Error(); why != logged {
				logged = why
				h.log.Warn("a next process that asks for a hand-over has to wait", "error", err)
			}
			wake.After(ctx, retryEvery)
		}
	}
	l.Close() // AfterFunc may not have run yet, and the socket must be removed
}

// answer runs give for one successor, and reports whether that was the last. refuse is run instead
// if this process is ending. ctx must not end before end has returned.
func (h *handOver) answer(ctx context.Context, u *net.UnixConn, give func() bool, refuse func()) (last bool) {
	defer context.AfterFunc(ctx, func() { u.Close() })()
	h.answering.Lock()
	if !h.begin(u) {
		h.answering.Unlock()
		refuse()
		return false
	}
	defer h.answering.Unlock()
	if give() {
		h.accept()
		return true
	}
	return false
}

// close closes the socket. One that was received may not be served yet.
func (h *handOver) close() {
	if h.socket != nil {
		_ = h.socket.Close()
	}
}

// checkIdentity returns an error if the process that asks is a predecessor.
func (h *handOver) checkIdentity(id string) error {
	if id != "" && slices.Contains(h.predecessors, id) {
		// No BarredError: it could start after the end of this process, as in a rollback.
		return errors.New("the running process has already replaced the pod that asks, which is being deleted")
	}
	return nil
}

// identity identifies this process in hand-overs (handover.Hello): the UID of its pod, or empty.
func identity() string { return os.Getenv("POD_UID") }

// follow records the pods of all earlier processes, which get nothing back from this one. It saves
// them for a successor that receives no offer, as after a crash. unread is the error of reading
// before. follow must be called before anything is offered.
func (h *handOver) follow(stateDir string, before []string, unread error) {
	id := identity()
	if id == "" {
		return
	}
	list := owners.Add(before, id)
	h.predecessors = list[:len(list)-1]
	if err := errors.Join(unread, owners.Save(stateDir, list)); err != nil {
		h.log.Warn("the earlier pods of this gateway may not be known, and one of them may take everything back: "+
			"delete it if a rolling update stops", "error", err)
	}
}

// followLast is follow for a process that has started after its predecessor's end.
func (h *handOver) followLast(c *config.Configuration) {
	before, err := owners.Load(c.StateDir)
	h.follow(c.StateDir, before, err)
}

// noteFailure logs and counts a hand-over to a successor that failed with err.
func (h *handOver) noteFailure(version string, err error) {
	var refused *handover.RefusedError
	if errors.As(err, &refused) {
		if !slices.Equal(h.refused, refused.Reasons) { // the successor asks again and again
			h.log.Warn("a next process waits for the end of this one, because it cannot take over", "why",
				refused.Reasons)
		}
		h.refused = refused.Reasons
	} else {
		h.log.Warn("a next process did not take over; this one goes on", "error", err)
	}
	h.attempts.note(version, err, time.Now())
}

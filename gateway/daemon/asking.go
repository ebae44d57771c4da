package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync/atomic"

	"sluice.dev/sluice/gateway/handover"
	"sluice.dev/sluice/serve/status"
)

// errNotTaken ends a daemon that was to take over and has prepared for it: what it has opened is
// the running process's, and must not be touched. The next start is one as after a crash, or waits.
var errNotTaken = errors.New("not taken over")

// tryTake asks the running process to hand over. It reports whether that did. If it refuses, or
// this one cannot take over, this one goes on waiting.
func (d *Daemon) tryTake(ctx context.Context, s *standby) (took bool, err error) {
	k := &taker{d: d, s: s}
	c, from, err := d.ask(ctx, k)
	if err == nil {
		if err = d.begin(c, from, k); err != nil {
			d.steer.Resume() // Prepare has paused it, and stop waits for it
		}
		return true, err
	}
	if k.prepared {
		return false, fmt.Errorf("%w from the process that runs: %w", errNotTaken, err)
	}
	d.noteVain(err, func() error { return k.able(ctx) })
	k.undo()
	return false, nil
}

// begin begins as the owner of all.
func (d *Daemon) begin(c *handover.Conn, from string, k *taker) error {
	if err := k.own(); err != nil { // first of all: packets wait
		return err
	}
	if err := handover.Running(c, handover.DefaultTimes); err != nil {
		d.log.Debug("the process before ended at once", "error", err)
	}
	d.took.Store(true)
	d.noteTakeOver(from, k)
	return d.afterTake(c, k)
}

// ask asks once. Without an error the connection is open, and all is this process's.
func (d *Daemon) ask(ctx context.Context, k *taker) (c *handover.Conn, from string, err error) {
	u, err := net.DialTimeout("unix", d.config.HandOverSocket(), handover.DefaultTimes.Answer)
	if err != nil {
		return nil, "", &handover.RefusedError{
			Reasons: []string{"it has no socket for that, as one that starts, or of a version before: " + err.Error()},
		}
	}
	if c, err = handover.NewConn(u.(*net.UnixConn)); err != nil {
		u.Close()
		return nil, "", &handover.RefusedError{Reasons: []string{err.Error()}}
	}
	if from, err = handover.Take(ctx, c, k, status.ThisBuild().String(), handover.DefaultTimes); err != nil {
		c.Close()
	}
	return c, from, err
}

// able returns what keeps this process from starting, also when the running one has ended, as far
// as that can be told beside it.
func (k *taker) able(ctx context.Context) error {
	if k.program != nil {
		return nil
	}
	_, _, err := k.Facts()
	if err == nil {
		err = k.Lay(ctx)
	}
	var differs *handover.RefusedError
	if errors.As(err, &differs) {
		return nil
	}
	return err
}

// readyWhenRefused is how often in a row the running process must have refused to hand over, a
// quarter of a minute after the first time, for the waiting one to be ready.
const readyWhenRefused = 5

// asked is what came of this process's requests for a hand-over. The goroutine that asks writes it.
type asked struct {
	refusals int  // in a row, which pass with the running process's end
	able     bool // nothing is known that would keep this process from starting then
	// ready: whoever waits for this process is to end the running one.
	ready atomic.Bool
}

// note notes a request that came to nothing. able says what this process itself cannot do; it is
// called where that is not known. It is ready only where the running process's end would help:
// neither where it could not start then, nor where its version has failed to take over.
func (a *asked) note(err error, able func() error) (refused []string, unable error) {
	var itself *handover.UnableError
	var refusal *handover.RefusedError
	switch {
	case errors.As(err, &itself):
		unable, a.able = itself.Err, false
	case errors.As(err, &refusal):
		refused = refusal.Reasons
	default:
		refused = []string{err.Error()}
	}
	if refusal != nil && refusal.Barred {
		a.refusals = 0
	} else if unable == nil {
		a.refusals++
		if !a.able {
			unable = able()
			a.able = unable == nil
		}
	}
	a.ready.Store(unable == nil && a.refusals >= readyWhenRefused)
	return refused, unable
}

// noteVain notes why nothing was handed over, for the log and the status.
func (d *Daemon) noteVain(err error, able func() error) {
	before := d.takenOver.Load()
	if before == nil {
		before = &status.TakeOverView{}
	}
	refused, unable := d.asked.note(err, able)
	v := &status.TakeOverView{Refused: refused, Asked: before.Asked + 1}
	if len(refused) > 0 && !slices.Equal(before.Refused, refused) {
		d.log.Warn("the running process does not hand over: it is asked again, and this one takes over when that has "+
			"ended", "why", refused)
	}
	if unable != nil {
		if v.Unable = unable.Error(); v.Unable != before.Unable {
			d.log.Error("this process cannot take over, nor start when the running one has ended: it tries again",
				"error", unable)
		}
	}
	d.takenOver.Store(v)
}

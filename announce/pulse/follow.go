package pulse

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"sluice.dev/sluice/internal/heartbeat"
	"sluice.dev/sluice/internal/wake"
)

// Sight is a reader's view of a gateway at a time.
type Sight struct {
	// State is the last state that the gateway sent; nil: none yet.
	State *State
	// Lost is why State may be out of date: no lines arrive. Empty: they do.
	Lost string
	At   time.Time // when State or Lost changed last
	// Since, unless nil, is an earlier State whose VIPs differ from State's only in Changed.
	Since   *State
	Changed []netip.Addr
}

const (
	// redial is the pause after a failed attempt to connect.
	redial = 50 * time.Millisecond
	// dialTimeout bounds an attempt. A Unix socket answers at once, unless its queue is full.
	dialTimeout = time.Second
	// lookAgain is the timeout of a second read after a deadline has passed: if this process was
	// not scheduled for a while, the deadline hides lines that have arrived.
	lookAgain = 10 * time.Millisecond
	// maxLine is room for a state with 100,000 VIPs.
	maxLine = 64 << 20
)

// Follow calls see whenever its view of the gateway behind a socket changes, until ctx is done. It
// calls see from one goroutine; see must not block for long. beat, unless nil, is the heartbeat of
// Follow, which beats at least once in dialTimeout.
func Follow(ctx context.Context, path string, see func(Sight), beat *heartbeat.Beat) {
	f := follower{see: see, last: Sight{Lost: "no pulse of the gateway was read yet"}, beat: beat}
	defer beat.Rest()
	var end error // end of a connection that had sent a state; nil if another attempt failed since
	for ctx.Err() == nil {
		beat.Beat()
		received, err := f.readConnection(ctx, path)
		if ctx.Err() != nil {
			return
		}
		if received && ended(err) {
			end = err // a next process may have taken over the socket, and then answers at once
			continue
		}
		if end != nil {
			err, end = end, nil
		}
		f.lost(why(err, path))
		if !wake.After(ctx, redial) {
			return
		}
	}
}

// why returns the meaning of a connection error.
func why(err error, path string) string {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "no gateway has run here: there is no socket " + path
	case errors.Is(err, syscall.ECONNREFUSED):
		return "the gateway's process has ended: no process answers on " + path
	case ended(err):
		return "the gateway's process has ended"
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Sprintf("the gateway's process has sent nothing for %v: it hangs", Silence)
	}
	return "cannot connect to the gateway: " + err.Error()
}

// ended reports whether an error means that the process at the other end has ended.
func ended(err error) bool { return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) }

type follower struct {
	see  func(Sight)
	last Sight
	beat *heartbeat.Beat
}

// lost reports that no lines arrive. Sight.At keeps the time of the first such report.
func (f *follower) lost(why string) {
	if f.last.Lost == "" || f.last.At.IsZero() {
		f.last.At = time.Now()
	}
	if f.last.Lost != why {
		f.last.Lost = why
		f.see(f.last)
	}
}

func (f *follower) receive(m *message) {
	if m == nil && f.last.Lost == "" {
		return // nothing new
	}
	if m != nil {
		next := m.State
		if f.last.Since, f.last.Changed = nil, nil; m.Changes != nil {
			next.VIPs = m.Changes.apply(f.last.State.VIPs)
			f.last.Since, f.last.Changed = f.last.State, m.Changes.addresses()
		}
		f.last.State = &next
	}
	f.last.Lost, f.last.At = "", time.Now()
	f.see(f.last)
}

// readConnection reads lines until the connection ends or no line arrives for Silence: another
// process may have the socket by then. received reports whether a state arrived.
func (f *follower) readConnection(ctx context.Context, path string) (received bool, err error) {
	d := net.Dialer{Timeout: dialTimeout}
	conn, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	_, _ = conn.Write([]byte(askChanges)) // after an error, the next read fails, too
	lines := bufio.NewReader(conn)
	var line []byte
	for wait := Silence; ; {
		f.beat.Beat()
		if err := conn.SetReadDeadline(time.Now().Add(wait)); err != nil {
			return received, err
		}
		part, err := lines.ReadSlice('\n')
		line = append(line, part...)
		if errors.Is(err, os.ErrDeadlineExceeded) && wait == Silence {
			wait = lookAgain
			continue
		}
		wait = Silence
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			if len(line) > maxLine {
				return received, fmt.Errorf("%s: a line of more than %d bytes", path, maxLine)
			}
			continue
		case err != nil:
			return received, err
		}
		state, err := decode(line)
		if err != nil {
			return received, fmt.Errorf("%s: %w", path, err)
		}
		line = line[:0]
		if !received && (state == nil || state.Changes != nil) {
			continue // the first used line must have a state with all VIPs
		}
		received = true
		f.receive(state)
	}
}

// decode parses a line. nil: an empty one, so nothing has changed.
func decode(line []byte) (*message, error) {
	if len(line) <= 1 {
		return nil, nil
	}
	var s message
	if err := json.Unmarshal(line, &s); err != nil {
		return nil, fmt.Errorf("the gateway's line cannot be parsed; do both programs have the same version? %w", err)
	}
	return &s, nil
}

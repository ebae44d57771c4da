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
)

// Sight is what a reader sees of a gateway at a time.
type Sight struct {
	// State is what the gateway said last; nil before it said anything.
	State *State
	// Lost is why it may have changed since: nothing is heard of the gateway. Empty: it is heard.
	Lost string
	At   time.Time // since when this is so
	// Since is a State before, unless nil, that State differs from in the VIPs of Changed alone, as
	// far as VIPs go.
	Since   *State
	Changed []netip.Addr
}

const (
	// redial is how long after a failed attempt the next one is made.
	redial = 50 * time.Millisecond
	// dialTimeout bounds an attempt. A Unix socket answers at once, or its queue is full.
	dialTimeout = time.Second
	// lookAgain is for what came while this process itself was not run: a deadline that has passed
	// by then hides it.
	lookAgain = 10 * time.Millisecond
	// maxLine is room for a state with 100,000 VIPs.
	maxLine = 64 << 20
)

// Follow tells see what is seen of the gateway behind a socket, each time that it changes, until
// ctx is done. see is called by one goroutine, and must not block for long. beat, unless nil, is
// the heartbeat of Follow, which beats once in dialTimeout at least.
func Follow(ctx context.Context, path string, see func(Sight), beat *heartbeat.Beat) {
	f := follower{see: see, last: Sight{Lost: "the gateway was not asked yet"}, beat: beat}
	defer beat.Rest()
	var end error // of a connection on which the gateway was heard; nil if another attempt failed since
	for ctx.Err() == nil {
		beat.Beat()
		said, err := f.connected(ctx, path)
		if ctx.Err() != nil {
			return
		}
		if said && ended(err) {
			end = err // a next process may have taken the socket over, and answers at once
			continue
		}
		if end != nil {
			err, end = end, nil
		}
		f.lost(why(err, path))
		select {
		case <-ctx.Done():
			return
		case <-time.After(redial):
		}
	}
}

// why says what an error of the connection means.
func why(err error, path string) string {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "no gateway has run here: there is no socket " + path
	case errors.Is(err, syscall.ECONNREFUSED):
		return "the gateway's process has ended: nobody answers on " + path
	case ended(err):
		return "the gateway's process has ended"
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Sprintf("the gateway's process has said nothing for %v: it stands still", Silence)
	}
	return "the gateway cannot be asked: " + err.Error()
}

// ended reports whether an error is the end of the process at the other end of a connection.
func ended(err error) bool { return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) }

type follower struct {
	see  func(Sight)
	last Sight
	beat *heartbeat.Beat
}

// lost tells that nothing is heard. The time is that of the first word about it.
func (f *follower) lost(why string) {
	if f.last.Lost == "" || f.last.At.IsZero() {
		f.last.At = time.Now()
	}
	if f.last.Lost != why {
		f.last.Lost = why
		f.see(f.last)
	}
}

func (f *follower) heard(m *message) {
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

// connected reads lines until the connection ends, or nothing comes: then there may be another
// process by now that has the socket. said reports whether a state was read.
func (f *follower) connected(ctx context.Context, path string) (said bool, err error) {
	d := net.Dialer{Timeout: dialTimeout}
	conn, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	_, _ = conn.Write([]byte(askChanges)) // if it has ended, the next read says so
	lines := bufio.NewReader(conn)
	var line []byte
	for wait := Silence; ; {
		f.beat.Beat()
		if err := conn.SetReadDeadline(time.Now().Add(wait)); err != nil {
			return said, err
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
				return said, fmt.Errorf("%s: a line of more than %d bytes", path, maxLine)
			}
			continue
		case err != nil:
			return said, err
		}
		state, err := decode(line)
		if err != nil {
			return said, fmt.Errorf("%s: %w", path, err)
		}
		line = line[:0]
		if !said && (state == nil || state.Changes != nil) {
			continue // the first line has a state with all VIPs
		}
		said = true
		f.heard(state)
	}
}

// decode returns nil for an empty line: nothing has changed.
func decode(line []byte) (*message, error) {
	if len(line) <= 1 {
		return nil, nil
	}
	var s message
	if err := json.Unmarshal(line, &s); err != nil {
		return nil, fmt.Errorf("what the gateway says cannot be read; are both of the same version? %w", err)
	}
	return &s, nil
}

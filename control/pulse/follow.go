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
	"os"
	"syscall"
	"time"
)

// Sight is what a reader sees of a gateway at a time.
type Sight struct {
	// State is what the gateway said last; nil before it said anything.
	State *State
	// Lost is why it may have changed since: nothing is heard of the gateway. Empty: it is heard.
	Lost string
	At   time.Time // since when this is so
}

const (
	// redial is how long after a failed attempt the next one is made.
	redial = 50 * time.Millisecond
	// dialTimeout bounds an attempt. A Unix socket answers at once, or its queue is full.
	dialTimeout = time.Second
	// maxLine is room for a state with 100,000 VIPs.
	maxLine = 64 << 20
)

// Follow tells see what is seen of the gateway behind a socket, each time that it changes, until
// ctx is done. see is called by one goroutine, and must not block for long.
func Follow(ctx context.Context, path string, see func(Sight)) {
	f := follower{see: see, last: Sight{Lost: "not asked yet"}}
	for ctx.Err() == nil {
		err := f.connected(ctx, path)
		if ctx.Err() != nil {
			return
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
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET):
		return "the gateway's process has ended"
	}
	return err.Error()
}

type follower struct {
	see  func(Sight)
	last Sight
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

func (f *follower) heard(s *State) {
	if s == nil && f.last.Lost == "" {
		return // nothing new
	}
	if s != nil {
		f.last.State = s
	}
	f.last.Lost, f.last.At = "", time.Now()
	f.see(f.last)
}

// connected reads lines until the connection ends.
func (f *follower) connected(ctx context.Context, path string) error {
	d := net.Dialer{Timeout: dialTimeout}
	conn, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	lines := bufio.NewReader(conn)
	var line []byte
	for said := false; ; {
		if err := conn.SetReadDeadline(time.Now().Add(Silence)); err != nil {
			return err
		}
		part, err := lines.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			f.lost(fmt.Sprintf("the gateway's process has said nothing for %v: it stands still", Silence))
			continue
		case errors.Is(err, bufio.ErrBufferFull):
			if len(line) > maxLine {
				return fmt.Errorf("%s: a line of more than %d bytes", path, maxLine)
			}
			continue
		case err != nil:
			return err
		}
		state, err := decode(line)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		line = line[:0]
		if state == nil && !said {
			continue // the first line has a state
		}
		said = true
		f.heard(state)
	}
}

// decode returns nil for an empty line: nothing has changed.
func decode(line []byte) (*State, error) {
	if len(line) <= 1 {
		return nil, nil
	}
	var s State
	if err := json.Unmarshal(line, &s); err != nil {
		return nil, fmt.Errorf("what the gateway says cannot be read; are both of the same version? %w", err)
	}
	return &s, nil
}

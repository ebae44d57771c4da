package peers

import (
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/gateway/group/wire"
)

// A frame is its length in four bytes, big-endian, and its bytes. Length 0 ends the stream, with
// the length of a text in two bytes, and the text: why the other gateway ends it.
const (
	lengthBytes = 4
	maxReason   = 1 << 10
)

// Stream is one end of a stream: a TLS connection whose socket never blocks. One goroutine at a
// time may call its methods.
type Stream struct {
	name   string // of the other gateway
	socket *socket
	tls    *tls.Conn
	in     []byte // of lengthBytes+wire.MaxFrame; in[from:to] has come and is not a frame yet
	from   int
	to     int
	out    []byte // a frame with its length
}

// Receive returns the next frame; nil if none has come as a whole.
func (s *Stream) Receive() (frame []byte, err error) {
	for {
		frame, err := s.next()
		if frame != nil || err != nil {
			return frame, err
		}
		if s.from > 0 {
			s.to = copy(s.in, s.in[s.from:s.to])
			s.from = 0
		}
		n, err := s.tls.Read(s.in[s.to:])
		switch s.to += n; {
		case n > 0:
		case err == nil || errors.Is(err, errAgain):
			return nil, nil
		case errors.Is(err, io.EOF):
			return nil, fmt.Errorf("%s has ended the stream", s.name)
		default:
			return nil, fmt.Errorf("stream with %s: %w", s.name, err)
		}
	}
}

// next returns the frame at the start of what has come; nil if it is not complete.
func (s *Stream) next() ([]byte, error) {
	b := s.in[s.from:s.to]
	if len(b) < lengthBytes {
		return nil, nil
	}
	n := int(binary.BigEndian.Uint32(b))
	switch b = b[lengthBytes:]; {
	case n > wire.MaxFrame:
		return nil, fmt.Errorf("stream with %s: a frame of %d bytes: %d are allowed", s.name, n, wire.MaxFrame)
	case n > 0 && len(b) < n, n == 0 && len(b) < 2:
		return nil, nil
	case n > 0:
		s.from += lengthBytes + n
		return b[:n], nil
	}
	n = int(binary.BigEndian.Uint16(b))
	switch b = b[2:]; {
	case n > maxReason:
		return nil, fmt.Errorf("stream with %s: a reason of %d bytes: %d are allowed", s.name, n, maxReason)
	case len(b) < n:
		return nil, nil
	}
	return nil, &RefusedError{Name: s.name, Reason: string(b[:n])}
}

// RefusedError is the error of a stream that the other gateway has ended with a reason.
type RefusedError struct{ Name, Reason string }

// Error has the other gateway's name and its reason.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("%s refuses the stream: %s", e.Name, e.Reason)
}

// Ready writes the rest of the frame before, and reports whether nothing is left of it.
func (s *Stream) Ready() bool {
	s.socket.flush()
	return len(s.socket.out) == 0
}

// Send sends a frame of 1 to wire.MaxFrame bytes. Ready must have returned true.
func (s *Stream) Send(frame []byte) error {
	s.out = binary.BigEndian.AppendUint32(s.out[:0], uint32(len(frame)))
	s.out = append(s.out, frame...)
	if _, err := s.tls.Write(s.out); err != nil {
		return fmt.Errorf("stream with %s: %w", s.name, err)
	}
	return nil
}

// End ends the stream. The other gateway is told the reason if it has read all frames so far.
func (s *Stream) End(reason error) {
	if reason != nil && s.Ready() {
		text := reason.Error()
		text = text[:min(len(text), maxReason)]
		s.out = binary.BigEndian.AppendUint32(s.out[:0], 0)
		s.out = binary.BigEndian.AppendUint16(s.out, uint16(len(text)))
		_, _ = s.tls.Write(append(s.out, text...))
	}
	_ = s.tls.Close()
}

// socket is the connection below TLS. During the handshake it is a net.Conn, whose calls wait.
// After detach none of its calls waits.
type socket struct {
	net.Conn
	fd   int // -1 before detach
	out  []byte
	err  error // of a write
	done func()
}

// errAgain is the error of a Read for which nothing has come. TLS reads again after a temporary
// error (crypto/tls, Conn.readRecordOrCCS).
var errAgain net.Error = again{}

type again struct{}

func (again) Error() string   { return "nothing to read" }
func (again) Timeout() bool   { return true }
func (again) Temporary() bool { return true }

// detach takes the socket from Go's network poller. done is called when it is closed.
func (s *socket) detach(tcp *net.TCPConn, done func()) error {
	raw, err := tcp.SyscallConn()
	if err != nil {
		return err
	}
	fd := -1
	if e := raw.Control(func(n uintptr) { fd, err = unix.FcntlInt(n, unix.F_DUPFD_CLOEXEC, 0) }); e != nil {
		err = e
	}
	if err != nil {
		return err
	}
	s.fd, s.done = fd, done
	return tcp.Close() // the other descriptor keeps the connection open
}

func (s *socket) Read(b []byte) (int, error) {
	if s.fd < 0 {
		return s.Conn.Read(b)
	}
	for {
		n, err := unix.Read(s.fd, b)
		switch {
		case err == unix.EINTR:
		case err == unix.EAGAIN:
			return 0, errAgain
		case err != nil:
			return 0, err
		case n == 0:
			return 0, io.EOF
		default:
			return n, nil
		}
	}
}

// Write takes all bytes after detach, and writes as many as the socket has room for. flush writes
// the rest.
func (s *socket) Write(b []byte) (int, error) {
	if s.fd < 0 {
		return s.Conn.Write(b)
	}
	s.out = append(s.out, b...)
	s.flush()
	return len(b), s.err
}

func (s *socket) flush() {
	rest := s.out
	for len(rest) > 0 && s.err == nil {
		n, err := unix.SendmsgN(s.fd, rest, nil, nil, unix.MSG_NOSIGNAL)
		switch {
		case err == unix.EINTR:
		case err == unix.EAGAIN:
			s.out = s.out[:copy(s.out, rest)]
			return
		case err != nil:
			s.err = err
		default:
			rest = rest[n:]
		}
	}
	s.out = s.out[:0]
}

// SetWriteDeadline does nothing after detach: no write waits.
func (s *socket) SetWriteDeadline(t time.Time) error {
	if s.fd < 0 {
		return s.Conn.SetWriteDeadline(t)
	}
	return nil
}

// Close closes the socket.
func (s *socket) Close() error {
	if s.fd < 0 {
		return s.Conn.Close()
	}
	fd := s.fd
	s.fd = -1 // calls reach Conn, which is closed
	defer s.done()
	return unix.Close(fd)
}

package handover

import (
	"bytes"
	"encoding/binary"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/unixsocket"
)

// Messages of one byte.
const (
	ask     = 'a'
	ready   = 'r'
	taken   = 't'
	running = 'w'
	carry   = 'f' // has files
)

const (
	// maxMessage bounds a message: a byte for each frame of all workers, and packets that wait.
	maxMessage = 256 << 20
	// filesAtOnce is below what one message may carry (SCM_MAX_FD, include/net/scm.h, is 253).
	filesAtOnce = 200
	maxFiles    = 1 << 16
)

// Conn is one end of the connection of two processes.
type Conn struct {
	c *net.UnixConn
	// PID is the process at the other end; 0 if it has no number here, as in another container.
	PID int
}

// NewConn uses a connection whose other end is a process of the same user.
func NewConn(c *net.UnixConn) (*Conn, error) {
	peer, err := unixsocket.Peer(c)
	if err != nil {
		return nil, fmt.Errorf("who is at the other end: %w", err)
	}
	if int(peer.Uid) != os.Geteuid() {
		return nil, fmt.Errorf("user %d is at the other end, this process is of user %d", peer.Uid, os.Geteuid())
	}
	return &Conn{c, int(peer.Pid)}, nil
}

// Close closes the connection.
func (c *Conn) Close() error { return c.c.Close() }

// AwaitEnd waits until the other end is closed, which is what the end of its process does. It is
// false if that takes too long.
func (c *Conn) AwaitEnd(within time.Duration) bool {
	err := c.within(within)
	if err == nil {
		_, err = io.Copy(io.Discard, c.c)
	}
	return !errors.Is(err, os.ErrDeadlineExceeded)
}

func (c *Conn) within(d time.Duration) error { return c.c.SetDeadline(time.Now().Add(d)) }

// send sends a value: its length in four bytes, and its gob.
func (c *Conn) send(v any, within time.Duration) error {
	var b bytes.Buffer
	b.Write(make([]byte, 4))
	if err := gob.NewEncoder(&b).Encode(v); err != nil {
		return err
	}
	if b.Len()-4 > maxMessage {
		return fmt.Errorf("a message of %d bytes", b.Len())
	}
	binary.BigEndian.PutUint32(b.Bytes(), uint32(b.Len()-4))
	if err := c.within(within); err != nil {
		return err
	}
	_, err := c.c.Write(b.Bytes())
	return err
}

func (c *Conn) receive(v any, within time.Duration) error {
	if err := c.within(within); err != nil {
		return err
	}
	var size [4]byte
	if _, err := io.ReadFull(c.c, size[:]); err != nil {
		return err
	}
	n := binary.BigEndian.Uint32(size[:])
	if n > maxMessage {
		return fmt.Errorf("a message of %d bytes", n)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(c.c, b); err != nil {
		return err
	}
	return gob.NewDecoder(bytes.NewReader(b)).Decode(v)
}

func (c *Conn) sendByte(m byte, within time.Duration) error {
	if err := c.within(within); err != nil {
		return err
	}
	_, err := c.c.Write([]byte{m})
	return err
}

func (c *Conn) receiveByte(want byte, within time.Duration) error {
	if err := c.within(within); err != nil {
		return err
	}
	var m [1]byte
	if _, err := io.ReadFull(c.c, m[:]); err != nil {
		return fmt.Errorf("waiting for message %q: %w", want, err)
	}
	if m[0] != want {
		return fmt.Errorf("message %q, want %q", m[0], want)
	}
	return nil
}

// refuseMore makes the other end's next message fail. What it has sent can still be received.
func (c *Conn) refuseMore() error { return c.c.CloseRead() }

// sendFiles sends descriptors, which stay the caller's.
func (c *Conn) sendFiles(files []int, within time.Duration) error {
	if err := c.within(within); err != nil {
		return err
	}
	for len(files) > 0 {
		n := min(len(files), filesAtOnce)
		if _, _, err := c.c.WriteMsgUnix([]byte{carry}, unix.UnixRights(files[:n]...), nil); err != nil {
			return err
		}
		files = files[n:]
	}
	return nil
}

// errNoFiles is returned by receiveFiles if the kernel gave this process not all that was sent.
var errNoFiles = errors.New("a message without its files: may this process have so many open (ulimit -n)?")

// receiveFiles receives n descriptors. They are closed with the next program (close-on-exec).
func (c *Conn) receiveFiles(n int, within time.Duration) (files []int, err error) {
	if n < 0 || n > maxFiles {
		return nil, fmt.Errorf("%d files", n)
	}
	if err := c.within(within); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			for _, fd := range files {
				unix.Close(fd)
			}
			files = nil
		}
	}()
	rights := make([]byte, unix.CmsgSpace(4*filesAtOnce))
	for len(files) < n {
		var m [1]byte
		_, got, flags, _, err := c.c.ReadMsgUnix(m[:], rights)
		if err != nil {
			return files, err
		}
		messages, err := unix.ParseSocketControlMessage(rights[:got])
		if err != nil {
			return files, err
		}
		for i := range messages {
			more, err := unix.ParseUnixRights(&messages[i])
			if err != nil {
				return files, err
			}
			files = append(files, more...)
		}
		if m[0] != carry || len(messages) == 0 || flags&unix.MSG_CTRUNC != 0 {
			return files, errNoFiles
		}
	}
	if len(files) != n {
		return files, fmt.Errorf("%d files, want %d", len(files), n)
	}
	return files, nil
}

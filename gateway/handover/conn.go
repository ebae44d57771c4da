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
	carry   = 'f' // comes with files
)

const (
	// maxMessage bounds a message, which has a byte for each frame of all workers, and waiting
	// packets.
	maxMessage = 256 << 20
	// filesAtOnce is less than one message may carry (SCM_MAX_FD, include/net/scm.h, is 253).
	filesAtOnce = 200
	maxFiles    = 1 << 16
)

// Conn is one end of the connection between two processes.
type Conn struct {
	c *net.UnixConn
	// PID is the process at the other end; 0 if it has no PID here, as in another container.
	PID int
}

// NewConn uses a connection whose other end is a process of the same user.
func NewConn(c *net.UnixConn) (*Conn, error) {
	peer, err := unixsocket.Peer(c)
	if err != nil {
		return nil, fmt.Errorf("read the credentials of the process at the other end: %w", err)
	}
	if int(peer.Uid) != os.Geteuid() {
		return nil, fmt.Errorf("the process at the other end is of user %d, this one of %d", peer.Uid, os.Geteuid())
	}
	return &Conn{c, int(peer.Pid)}, nil
}

// Close closes the connection.
func (c *Conn) Close() error { return c.c.Close() }

// AwaitEnd waits until the other end is closed, as when its process ends. It returns false if that
// takes too long.
func (c *Conn) AwaitEnd(within time.Duration) bool {
	err := c.within(within)
	if err == nil {
		_, err = io.Copy(io.Discard, c.c)
	}
	return !errors.Is(err, os.ErrDeadlineExceeded)
}

func (c *Conn) within(d time.Duration) error { return c.c.SetDeadline(time.Now().Add(d)) }

// send sends a value: the length of its gob in four bytes, and the gob.
func (c *Conn) send(v any, within time.Duration) error {
	var b bytes.Buffer
	b.Write(make([]byte, 4))
	if err := gob.NewEncoder(&b).Encode(v); err != nil {
		return err
	}
	if b.Len()-4 > maxMessage {
		return fmt.Errorf("message of %d bytes is too long", b.Len())
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
		return fmt.Errorf("message of %d bytes is too long", n)
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

// refuseMore makes the other end's next message fail. Messages that it has sent can still be
// received.
func (c *Conn) refuseMore() error { return c.c.CloseRead() }

// mayBeTaken returns an error if the other end has called refuseMore, or has ended. It sends
// nothing: the kernel checks the socket before it looks at the length (unix_stream_sendmsg,
// net/unix/af_unix.c).
func (c *Conn) mayBeTaken() error {
	_, _, err := c.c.WriteMsgUnix(nil, nil, nil)
	return err
}

// sendFiles sends descriptors, which the caller keeps.
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

// errNoFiles is returned by receiveFiles if the kernel did not deliver all files.
var errNoFiles = errors.New("a message lost its files: check that the limit of open files (ulimit -n) is large enough")

// receiveFiles receives n descriptors, with close-on-exec set.
func (c *Conn) receiveFiles(n int, within time.Duration) (files []int, err error) {
	if n < 0 || n > maxFiles {
		return nil, fmt.Errorf("%d files are too many", n)
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
		return files, fmt.Errorf("received %d files, want %d", len(files), n)
	}
	return files, nil
}

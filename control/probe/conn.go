package probe

import (
	"context"
	"errors"
	"net"
	"os"
	"sync/atomic"
	"time"
)

// Bounds of what an endpoint may make a check read.
const (
	// maxBytes is what may be read of a connection; maxReads is the number of reads, as each costs
	// a system call and a wake-up however few bytes it brings.
	maxBytes, maxReads = 64 << 10, 64
	// maxHandshake is the bytes that a server may send in a TLS handshake. Chains of certificates
	// have some 2 to 6 KiB, and reading one costs processor time by its length.
	maxHandshake = 16 << 10
	// maxGRPC is the bytes that a gRPC server may send: its answer has some 100.
	maxGRPC = 16 << 10
	// readBuffer is the kernel's receive buffer of a connection, in bytes (socket(7), SO_RCVBUF).
	readBuffer = 32 << 10
)

// errTooMuch is the error of a connection that brought more than a check reads.
var errTooMuch = errors.New("more bytes, or smaller pieces, than a check reads")

// bounded is the connection of a check. It ends reading at maxBytes and maxReads, and counts bytes
// and reads.
type bounded struct {
	net.Conn
	// bytes and reads count the input; most is the bound of bytes. They are atomic: a goroutine of
	// net/http reads an HTTP/2 connection, and may end after the answer.
	bytes, reads, most atomic.Int64
}

func (b *bounded) Read(p []byte) (int, error) {
	left := b.most.Load() - b.bytes.Load()
	if left <= 0 || b.reads.Add(1) > maxReads {
		return 0, errTooMuch
	}
	n, err := b.Conn.Read(p[:min(int64(len(p)), left)])
	b.bytes.Add(int64(n))
	return n, err
}

// connection makes a net.Conn of a connected socket. It takes the descriptor. The connection is
// reset when it is closed, and is closed when ctx is done.
func connection(ctx context.Context, fd int, deadline time.Time) (c *bounded, release func(), err error) {
	f := os.NewFile(uintptr(fd), "check")
	plain, err := net.FileConn(f)
	_ = f.Close()
	if err != nil {
		return nil, nil, errors.Join(errLocal, err)
	}
	if t, ok := plain.(*net.TCPConn); ok {
		_ = t.SetReadBuffer(readBuffer)
	}
	_ = plain.SetDeadline(deadline)
	stop := context.AfterFunc(ctx, func() { _ = plain.Close() })
	c = &bounded{Conn: plain}
	c.most.Store(maxBytes)
	return c, func() { stop(); _ = plain.Close() }, nil
}

package pulse

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"sluice.dev/sluice/internal/wake"
)

const (
	// maxReaders is enough for an announcer, its successor, and a person who looks at the socket.
	maxReaders = 8
	// writeTimeout is how long a reader may take no bytes before it is dropped.
	writeTimeout = time.Second
)

// Server sends a gateway's states to readers.
type Server struct {
	source func() *State
	log    *slog.Logger
}

// NewServer returns a server. For each reader it calls source once per Every, from several
// goroutines. source must return the same pointer while nothing has changed, and must not modify
// returned states.
func NewServer(source func() *State, log *slog.Logger) *Server {
	return &Server{source: source, log: log}
}

// Serve serves a listener, which it closes, until ctx is done and all readers have got the last
// line.
func (s *Server) Serve(ctx context.Context, l net.Listener) {
	defer context.AfterFunc(ctx, func() { l.Close() })()
	var readers sync.WaitGroup
	defer readers.Wait()
	places := make(chan struct{}, maxReaders)
	for {
		conn, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			s.log.Warn("pulse socket", "error", err)
			if !wake.After(ctx, Every) { // out of file descriptors, for instance
				l.Close()
				return
			}
			continue
		}
		select {
		case places <- struct{}{}:
		default:
			conn.Close()
			continue
		}
		readers.Go(func() {
			defer func() { conn.Close(); <-places }()
			if err := s.write(ctx, conn); err != nil {
				s.log.Debug("a reader of the pulse is gone", "error", err)
			}
		})
	}
}

// write writes lines to one reader. The last line comes after ctx is done, so that it has the final
// phase of the gateway.
func (s *Server) write(ctx context.Context, conn net.Conn) error {
	tick := time.NewTicker(Every)
	defer tick.Stop()
	var wantsChanges atomic.Bool
	go func() { // ends with the connection
		ask := make([]byte, len(askChanges))
		if _, err := io.ReadFull(conn, ask); err == nil && string(ask) == askChanges {
			wantsChanges.Store(true)
		}
	}()
	var last *State
	for end := false; ; {
		state, text := s.source(), []byte("\n")
		if state != last {
			before := last
			if !wantsChanges.Load() {
				before = nil
			}
			var err error
			if text, err = encode(before, state); err != nil {
				return err
			}
			last = state
		}
		if err := conn.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
			return err
		}
		if _, err := conn.Write(text); err != nil || end {
			return err
		}
		select {
		case <-ctx.Done():
			end = true
		case <-tick.C:
		}
	}
}

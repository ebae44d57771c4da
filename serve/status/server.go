package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"
)

// flowsPerPage bounds the memory of a listing of flows.
const flowsPerPage = 512

// A reader must accept each pieceBytes of an answer within writeTimeout, and the whole of one that
// is in memory (answer.go) within answerTimeout, or its connection is closed. So a capture without
// a reader ends: workers would copy packets for it.
const (
	writeTimeout  = 30 * time.Second
	answerTimeout = time.Minute
	pieceBytes    = 64 << 10
)

// Server answers on the status socket.
type Server struct {
	gateway Gateway
	log     *slog.Logger
	http    http.Server

	// Every request holds it for reading; Shutdown locks it to wait for all of them.
	requests sync.RWMutex
	closed   bool

	writeTimeout, answerTimeout, slotTimeout time.Duration
}

// NewServer returns a server for a gateway that answers every request.
func NewServer(g Gateway, log *slog.Logger) *Server {
	return newServer(g, log, func(_ *Server, r *route) http.HandlerFunc { return r.handle })
}

// NewReadServer returns a server for a gateway that refuses requests that change something, or that
// return packets of clients. full is the path of the socket that answers them.
func NewReadServer(g Gateway, log *slog.Logger, full string) *Server {
	refusal := fmt.Errorf("this socket is for reading only: it answers no request that changes the gateway or returns "+
		"packets; use --socket %s, as the user the daemon runs as (root)", full)
	return newServer(g, log, func(s *Server, r *route) http.HandlerFunc {
		if r.access == reads {
			return r.handle
		}
		return func(w http.ResponseWriter, _ *http.Request) { s.fail(w, http.StatusForbidden, refusal) }
	})
}

// newServer returns a server that answers each route by the handler that choose returns.
func newServer(g Gateway, log *slog.Logger, choose func(*Server, *route) http.HandlerFunc) *Server {
	s := &Server{gateway: g, log: log,
		writeTimeout: writeTimeout, answerTimeout: answerTimeout, slotTimeout: slotTimeout}
	mux := http.NewServeMux()
	for _, r := range s.routes() {
		mux.HandleFunc(r.method+" "+root+r.path, choose(s, &r))
	}
	s.http = http.Server{
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.serve(mux, w, r) }),
		ReadHeaderTimeout: 5 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    1 << 16,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, c)
		},
	}
	return s
}

// Serve answers until Shutdown; it then returns nil.
func (s *Server) Serve(l net.Listener) error {
	if err := s.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("status socket: %w", err)
	}
	return nil
}

// OnConnState sets a function that gets each change of a connection's state, as by
// http.Server.ConnState. It must be called before Serve.
func (s *Server) OnConnState(f func(net.Conn, http.ConnState)) { s.http.ConnState = f }

// serve answers one request, unless the server is closed.
func (s *Server) serve(h http.Handler, w http.ResponseWriter, r *http.Request) {
	s.requests.RLock()
	defer s.requests.RUnlock()
	if s.closed {
		panic(http.ErrAbortHandler)
	}
	t := &timedWriter{ResponseWriter: w, control: http.NewResponseController(w), timeout: s.writeTimeout}
	t.extend()
	h.ServeHTTP(t, r)
	t.extend() // the handler may have waited since its last write
}

// timedWriter gives each piece of an answer a deadline of its own. After the handler has returned,
// net/http writes the rest of its buffer by the last deadline.
type timedWriter struct {
	http.ResponseWriter
	control *http.ResponseController
	timeout time.Duration
	until   time.Time // no deadline is later; zero: any may be
}

// Unwrap is for http.ResponseController.
func (w *timedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// extend begins the time of the next write. Each connection of the sockets takes a deadline.
func (w *timedWriter) extend() {
	deadline := time.Now().Add(w.timeout)
	if !w.until.IsZero() && w.until.Before(deadline) {
		deadline = w.until
	}
	_ = w.control.SetWriteDeadline(deadline)
}

// FlushError is for http.ResponseController.
func (w *timedWriter) FlushError() error {
	w.extend()
	return w.control.Flush()
}

// Write implements http.ResponseWriter.
func (w *timedWriter) Write(b []byte) (n int, err error) {
	for piece := range slices.Chunk(b, pieceBytes) {
		w.extend()
		wrote, err := w.ResponseWriter.Write(piece)
		if n += wrote; err != nil {
			return n, err
		}
	}
	return n, nil
}

// Shutdown closes the listener (which removes the socket), lets requests finish until ctx ends, and
// then closes their connections, which is an error. After it returns the server no longer calls the
// Gateway.
func (s *Server) Shutdown(ctx context.Context) error {
	err := s.http.Shutdown(ctx)
	if err != nil {
		err = errors.Join(fmt.Errorf("status requests cut off: %w", err), s.http.Close())
	}
	// A handler notices only at its next write that its connection is closed.
	s.requests.Lock()
	defer s.requests.Unlock()
	s.closed = true
	return err
}

// status answers by answer at once, or with ?wait=true when everything is applied.
func (s *Server) status(answer http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if wait, _ := strconv.ParseBool(r.URL.Query().Get("wait")); wait {
			if err := s.gateway.WaitApplied(r.Context()); err != nil {
				s.fail(w, http.StatusServiceUnavailable, err)
				return
			}
		}
		answer(w, r)
	}
}

// flows streams one JSON object per line. An incomplete listing ends without the final chunk, which
// is an error for the client.
func (s *Server) flows(w http.ResponseWriter, r *http.Request) {
	filter, _, err := ParseFlowFilter(r.URL.Query())
	if err != nil {
		s.fail(w, http.StatusBadRequest, err)
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	control := http.NewResponseController(w)
	encoder := json.NewEncoder(w)
	page := make([]FlowView, 0, flowsPerPage)
	for cursor := uint64(0); ; {
		page, cursor = s.gateway.Flows(&filter, cursor, flowsPerPage, page[:0])
		for i := range page {
			if err := encoder.Encode(&page[i]); err != nil {
				panic(http.ErrAbortHandler) // net/http's way to end a reply without its last chunk
			}
		}
		if cursor == 0 {
			return
		}
		if r.Context().Err() != nil {
			panic(http.ErrAbortHandler)
		}
		if err := control.Flush(); err != nil {
			panic(http.ErrAbortHandler)
		}
	}
}

// Count is the answer to a request that changes several objects.
type Count struct {
	Count int `json:"count"`
}

func (s *Server) deleteFlows(w http.ResponseWriter, r *http.Request) {
	filter, all, err := ParseFlowFilter(r.URL.Query())
	if err == nil && filter.IsZero() != all {
		err = errors.New("give a filter, or all=true without one to delete every flow")
	}
	if err != nil {
		s.fail(w, http.StatusBadRequest, err)
		return
	}
	n, err := s.gateway.DeleteFlows(r.Context(), &filter)
	if err != nil {
		s.fail(w, http.StatusInternalServerError, err)
		return
	}
	s.log.Info("flows deleted by the operator", append(asker(r), "count", n, "filter", filter.String())...)
	s.reply(w, Count{n})
}

func (s *Server) drain(w http.ResponseWriter, r *http.Request)   { s.setDrain(w, r, true) }
func (s *Server) undrain(w http.ResponseWriter, r *http.Request) { s.setDrain(w, r, false) }

func (s *Server) setDrain(w http.ResponseWriter, r *http.Request, on bool) {
	e, err := ParseEndpoint(r.PathValue("backend"))
	if err != nil {
		s.fail(w, http.StatusBadRequest, err)
		return
	}
	n, err := s.gateway.Drain(e, on)
	switch {
	case err != nil:
		s.fail(w, http.StatusInternalServerError, err)
	case n == 0:
		s.fail(w, http.StatusNotFound, fmt.Errorf("no backend %s, see `sluice backends`", e))
	default:
		text := "backend drained by the operator"
		if !on {
			text = "backend undrained by the operator: it gets new flows again"
		}
		s.log.Info(text, append(asker(r), "backend", e.String(), "count", n)...)
		s.reply(w, Count{n})
	}
}

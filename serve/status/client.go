package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"syscall"
	"time"

	"sluice.dev/sluice/internal/unixsocket"
)

const dialTimeout = 2 * time.Second

// The longest time until a daemon's answer begins. During a hand-over the control loop may be busy
// for 11.1 s. A deletion of flows first scans the whole table.
const (
	readTimeout   = 15 * time.Second
	changeTimeout = time.Minute
)

// Errors that a Client's errors wrap.
var (
	// ErrNotRunning means that no process listens on the socket.
	ErrNotRunning = errors.New("the sluice daemon is not running")
	// ErrNoAnswer means that the daemon listens on the socket but has not answered in time.
	ErrNoAnswer = errors.New("the sluice daemon does not answer")
)

// Client sends requests to a running daemon.
type Client struct {
	socket             string
	root               string // of the paths
	read, change, wait http.Client
	stall              time.Duration // in which the daemon must be able to write a piece of a capture
}

// NewClient returns a client for the daemon that listens on a socket. It connects for each request.
func NewClient(socket string) *Client {
	return &Client{socket: socket, root: root, read: answersWithin(socket, readTimeout),
		change: answersWithin(socket, changeTimeout), wait: answersWithin(socket, 0), stall: writeTimeout}
}

// SetRevision makes the client ask a daemon of another revision, before its first request. Fields
// that this daemon does not have are zero in its answers.
func (c *Client) SetRevision(revision string) { c.root = "/" + revision }

// answersWithin returns an HTTP client whose answers must begin within timeout; 0: no timeout.
func answersWithin(socket string, timeout time.Duration) http.Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		d := net.Dialer{Timeout: dialTimeout}
		return d.DialContext(ctx, "unix", socket)
	}
	// Each request has its own connection: an idle one may lead to a process that has handed over,
	// and that does not answer if it is stopped.
	return http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true,
		ResponseHeaderTimeout: timeout}}
}

// Services lists the service ports.
func (c *Client) Services(ctx context.Context) ([]ServiceView, error) {
	return ask[[]ServiceView](ctx, c, http.MethodGet, c.root+"/services", nil)
}

// Backends lists the endpoints.
func (c *Client) Backends(ctx context.Context) ([]BackendView, error) {
	return ask[[]BackendView](ctx, c, http.MethodGet, c.root+"/backends", nil)
}

// Times lists how long endpoints took to answer.
func (c *Client) Times(ctx context.Context) (AllTimesView, error) {
	return ask[AllTimesView](ctx, c, http.MethodGet, c.root+"/times", nil)
}

// Stats reads all counters.
func (c *Client) Stats(ctx context.Context) (StatsView, error) {
	return ask[StatsView](ctx, c, http.MethodGet, c.root+"/stats", nil)
}

// SourcePorts reads the use of the source ports towards one backend.
func (c *Client) SourcePorts(ctx context.Context) ([]SourcePortsView, error) {
	return ask[[]SourcePortsView](ctx, c, http.MethodGet, c.root+"/source-ports", nil)
}

// Status returns the status. With wait it returns once everything read so far is applied, and has
// no timeout other than that of ctx.
func (c *Client) Status(ctx context.Context, wait bool) (StatusView, error) {
	q := url.Values{}
	if wait {
		q.Set("wait", "true")
	}
	return ask[StatusView](ctx, c, http.MethodGet, c.root+"/status", q)
}

// DeleteFlows ends the flows that match, and returns their number. A filter that selects everything
// is an error unless all is set.
func (c *Client) DeleteFlows(ctx context.Context, f FlowFilter, all bool) (int, error) {
	q := f.query()
	if all {
		q.Set("all", "true")
	}
	n, err := ask[Count](ctx, c, http.MethodDelete, c.root+"/flows", q)
	return n.Count, err
}

// Drain stops new flows to the backends that e selects (on), or allows them again, and returns the
// number of these backends.
func (c *Client) Drain(ctx context.Context, e Endpoint, on bool) (int, error) {
	method := http.MethodPut
	if !on {
		method = http.MethodDelete
	}
	n, err := ask[Count](ctx, c, method, c.root+"/drains/"+url.PathEscape(e.String()), nil)
	return n.Count, err
}

// Flows calls each for every flow that matches, until each returns an error. A listing that the
// daemon could not finish is an error.
func (c *Client) Flows(ctx context.Context, f FlowFilter, each func(*FlowView) error) error {
	body, err := c.do(ctx, http.MethodGet, c.root+"/flows", f.query())
	if err != nil {
		return err
	}
	defer body.Close()
	decoder := json.NewDecoder(body)
	for {
		var v FlowView
		if err := decoder.Decode(&v); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("the listing of flows broke off: %w", err)
		}
		if err := each(&v); err != nil {
			return err
		}
	}
}

func ask[T any](ctx context.Context, c *Client, method, path string, q url.Values) (v T, err error) {
	body, err := c.do(ctx, method, path, q)
	if err != nil {
		return v, err
	}
	defer body.Close()
	if err := json.NewDecoder(body).Decode(&v); err != nil {
		return v, fmt.Errorf("the daemon's answer to %s %s cannot be read: %w", method, path, err)
	}
	return v, nil
}

// do sends a request and returns the body of a good answer.
func (c *Client) do(ctx context.Context, method, path string, q url.Values) (io.ReadCloser, error) {
	request, err := http.NewRequestWithContext(ctx, method, "http://sluice"+path+"?"+q.Encode(), nil)
	if err != nil {
		return nil, err
	}
	client := &c.read
	switch {
	case method != http.MethodGet:
		client = &c.change
	case q.Has("wait"):
		client = &c.wait
	}
	sent := time.Now()
	response, err := client.Do(request)
	if method == http.MethodGet && cut(ctx, err) { // the next process has the socket, and answers
		response, err = client.Do(request)
	}
	if err != nil {
		return nil, c.explain(err, time.Since(sent))
	}
	if response.StatusCode == http.StatusOK {
		return response.Body, nil
	}
	defer response.Body.Close()
	return nil, problemOf(response, request)
}

// problemOf returns the error that a response describes.
func problemOf(response *http.Response, request *http.Request) error {
	var problem errorBody
	if err := json.NewDecoder(io.LimitReader(response.Body, 1<<16)).Decode(&problem); err != nil ||
		problem.Error == "" {
		return fmt.Errorf("the daemon answered %s to %s %s; are the command and the daemon of the same version?",
			response.Status, request.Method, request.URL.Path)
	}
	return errors.New(problem.Error)
}

// cut reports whether a connection was made and then ended before the answer, because its process
// ended: net/http has several errors for that, and does not export all.
func cut(ctx context.Context, err error) bool {
	var op *net.OpError
	return err != nil && ctx.Err() == nil && !late(err) && !(errors.As(err, &op) && op.Op == "dial")
}

// late reports whether an error is a timeout of the request or of its context, or a full backlog of
// a daemon that accepts no connections.
func late(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.As(err, &timeout) && timeout.Timeout() || errors.Is(err, syscall.EAGAIN)
}

// explain adds the cause of a connection error and what to do.
func (c *Client) explain(err error, after time.Duration) error {
	switch {
	case late(err):
		return &noAnswerError{fmt.Sprintf("%v on %s within %v: %s", ErrNoAnswer, c.socket,
			after.Round(100*time.Millisecond), unixsocket.WhySilent(c.socket)), err}
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%w: no process answers on %s; start it with `sluice run --config FILE`, or give its socket "+
			"with --socket", ErrNotRunning, c.socket)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("no permission to open %s: run as the user the daemon runs as (root), or, to read only, as "+
			"a user of the group in readers.group of its configuration", c.socket)
	}
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	return fmt.Errorf("ask the daemon on %s: %w", c.socket, err)
}

// noAnswerError is ErrNoAnswer with advice, and the timeout that caused it.
type noAnswerError struct {
	text  string
	cause error
}

// Error describes the process that does not answer, and what to do.
func (e *noAnswerError) Error() string { return e.text }

// Unwrap returns ErrNoAnswer and the timeout's own error.
func (e *noAnswerError) Unwrap() []error { return []error{ErrNoAnswer, e.cause} }

package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// CaptureQuery selects the packets of a capture; a field that is not set selects all.
type CaptureQuery struct {
	Client, VIP, Backend Endpoint
	Service              string // namespace/name or namespace/name:port
	// Drops are names of drop reasons, or CaptureAll: only packets that are dropped, where they are
	// dropped.
	Drops []string
	// Program is a filter as `tcpdump -ddd` prints it: a number of instructions, then the four
	// numbers of each.
	Program []uint32
	Snap    int // bytes of each packet; 0: all
	Rate    int // records a second, at most; 0: no bound
}

// CaptureAll stands for all drop reasons.
const CaptureAll = "all"

// DefaultCaptureRate is the bound of a capture's records in a second.
const DefaultCaptureRate = 10_000

// CaptureView is the result of a capture.
type CaptureView struct {
	Records uint64 `json:"records"`
	// OverRate counts records that the rate did not allow, Lost records that the reader was too
	// slow for.
	OverRate uint64 `json:"overRate"`
	Lost     uint64 `json:"lost"`
	// Ended is why the gateway ended the capture; empty if the client did.
	Ended string `json:"ended,omitempty"`
}

// CaptureWriter takes a capture in the form pcapng. Flush sends the written bytes.
type CaptureWriter interface {
	io.Writer
	Flush() error
}

// captureTrailer is the HTTP trailer with a CaptureView.
const captureTrailer = "Sluice-Capture"

// query returns the parameters of a request.
func (q *CaptureQuery) query() url.Values {
	v := FlowFilter{Client: q.Client, VIP: q.VIP, Backend: q.Backend, Service: q.Service}.query()
	for _, d := range q.Drops {
		v.Add("drop", d)
	}
	if len(q.Program) > 0 {
		v.Set("program", strings.Trim(fmt.Sprint(q.Program), "[]"))
	}
	v.Set("snap", strconv.Itoa(q.Snap))
	v.Set("rate", strconv.Itoa(q.Rate))
	return v
}

// String returns the filter for a log: plain text, so that an archive for support can replace its
// addresses. Of a program, which has addresses as numbers, it has the length.
func (q *CaptureQuery) String() string {
	parts := []string{FlowFilter{Client: q.Client, VIP: q.VIP, Backend: q.Backend, Service: q.Service}.String()}
	if len(q.Drops) > 0 {
		parts = append(parts, "dropped by "+strings.Join(q.Drops, " or "))
	}
	if len(q.Program) > 0 {
		parts = append(parts, fmt.Sprintf("a program of %d instructions", q.Program[0]))
	}
	return strings.Join(append(parts, fmt.Sprintf("snap %d, rate %d", q.Snap, q.Rate)), ", ")
}

// captureFrom parses the parameters of a request.
func captureFrom(v url.Values) (q CaptureQuery, err error) {
	q.Rate = DefaultCaptureRate
	rest := url.Values{}
	for name, values := range v {
		switch name {
		case "drop":
			q.Drops = values
		case "snap":
			q.Snap, err = strconv.Atoi(values[0])
		case "rate":
			q.Rate, err = strconv.Atoi(values[0])
		case "program":
			q.Program, err = ParseProgram(values[0])
		case "client", "vip", "backend", "service":
			rest[name] = values
		default:
			err = errors.New("is unknown; the parameters are client, vip, backend, service, drop, program, snap, rate")
		}
		if err != nil {
			return q, fmt.Errorf("parameter %s: %w", name, err)
		}
	}
	f, _, err := ParseFlowFilter(rest)
	q.Client, q.VIP, q.Backend, q.Service = f.Client, f.VIP, f.Backend, f.Service
	return q, err
}

// ParseProgram parses the numbers that `tcpdump -ddd` prints.
func ParseProgram(text string) (list []uint32, err error) {
	for _, word := range strings.Fields(text) {
		n, err := strconv.ParseUint(word, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("%q is no number of a filter that tcpdump -ddd printed", word)
		}
		list = append(list, uint32(n))
	}
	return list, nil
}

// responseWriter sends a capture as an HTTP response.
type responseWriter struct {
	http.ResponseWriter
	control *http.ResponseController
}

// Flush implements CaptureWriter.
func (w responseWriter) Flush() error { return w.control.Flush() }

// capture streams a capture. It ends when the request's body does, or the connection.
func (s *Server) capture(w http.ResponseWriter, r *http.Request) {
	q, err := captureFrom(r.URL.Query())
	if err != nil {
		s.fail(w, http.StatusBadRequest, err)
		return
	}
	control := http.NewResponseController(w)
	if err := control.EnableFullDuplex(); err != nil {
		s.fail(w, http.StatusInternalServerError, err)
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, r.Body)
		cancel()
	}()
	w.Header().Set("Content-Type", "application/x-pcapng")
	w.Header().Set("Trailer", captureTrailer)
	began := append(asker(r), "filter", q.String())
	out := &countingWriter{CaptureWriter: responseWriter{w, control}, began: func() {
		s.log.Info("capture began", began...)
	}}
	view, err := s.gateway.Capture(ctx, &q, out)
	switch {
	case !out.used && err != nil:
		w.Header().Del("Trailer")
		s.fail(w, http.StatusServiceUnavailable, err)
		return
	case err != nil && ctx.Err() == nil:
		view.Ended = err.Error()
	}
	s.log.Info("capture ended", append(asker(r), "records", view.Records, "overRate", view.OverRate, "lost",
		view.Lost, "why", view.Ended)...)
	text, err := json.Marshal(view)
	if err == nil {
		w.Header().Set(captureTrailer, string(text))
	}
}

// countingWriter notes whether anything was written.
type countingWriter struct {
	CaptureWriter
	used  bool
	began func()
}

// Write implements io.Writer.
func (w *countingWriter) Write(b []byte) (int, error) {
	if !w.used {
		w.used = true
		w.began()
	}
	return w.CaptureWriter.Write(b)
}

// Capture has the daemon capture packets, and copies the capture, in the form pcapng, to out until
// stop is done, out returns an error or the daemon ends the capture.
func (c *Client) Capture(stop context.Context, q CaptureQuery, out io.Writer) (v CaptureView, err error) {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(stop))
	defer cancel(nil)
	body, end := io.Pipe() // open while the capture goes on
	defer end.Close()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost,
		"http://sluice"+root+"/captures?"+q.query().Encode(), body)
	if err != nil {
		return v, err
	}
	begins := time.AfterFunc(readTimeout, func() { cancel(ErrNoAnswer) })
	sent := time.Now()
	response, err := c.wait.Do(request)
	begins.Stop()
	if err != nil {
		if errors.Is(context.Cause(ctx), ErrNoAnswer) {
			err = context.DeadlineExceeded
		}
		return v, c.explain(err, time.Since(sent))
	}
	defer response.Body.Close()
	defer end.Close() // before the response's body, whose end waits for the request's
	if response.StatusCode != http.StatusOK {
		return v, problemOf(response, request)
	}
	defer context.AfterFunc(stop, func() {
		end.Close()
		time.AfterFunc(endTimeout, func() { cancel(ErrNoAnswer) })
	})()
	timed := &longestWrite{Writer: out}
	_, err = io.Copy(timed, response.Body)
	if took := timed.longest; response.Trailer.Get(captureTrailer) == "" && timed.err == nil && took >= c.stall {
		return v, fmt.Errorf("the daemon has ended the capture: its output took nothing for %v, and the daemon ends a "+
			"capture that nobody reads for %v", took.Round(time.Second), c.stall)
	}
	if err != nil {
		return v, fmt.Errorf("the capture broke off: %w", err)
	}
	if err := json.Unmarshal([]byte(response.Trailer.Get(captureTrailer)), &v); err != nil {
		return v, errors.New("the capture broke off: the daemon ended")
	}
	return v, nil
}

// longestWrite notes the longest time of a write, and its error.
type longestWrite struct {
	io.Writer
	longest time.Duration
	err     error
}

// Write implements io.Writer.
func (w *longestWrite) Write(b []byte) (n int, err error) {
	began := time.Now()
	n, err = w.Writer.Write(b)
	w.longest, w.err = max(w.longest, time.Since(began)), err
	return n, err
}

// endTimeout is how long the client waits for the end of a capture that it has ended.
const endTimeout = 5 * time.Second

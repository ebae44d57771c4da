package status

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"runtime/pprof"
	"time"

	"sluice.dev/sluice/internal/wake"
)

// The kinds of a profile: the two others than ProfileGoroutines in the form of pprof.
const (
	ProfileCPU        = "cpu"
	ProfileHeap       = "heap"
	ProfileGoroutines = "goroutines" // what each goroutine does, as text
)

// MaxProfile is the longest CPU profile.
const MaxProfile = 10 * time.Second

// profile sends a profile of the daemon's process. One CPU profile is taken at a time.
func (s *Server) profile(w http.ResponseWriter, r *http.Request) {
	var b bytes.Buffer
	var err error
	switch kind := r.PathValue("kind"); kind {
	case ProfileCPU:
		err = cpuProfile(r.Context(), r.URL.Query().Get("for"), &b)
	case ProfileHeap:
		err = pprof.Lookup("heap").WriteTo(&b, 0)
	case ProfileGoroutines:
		err = pprof.Lookup("goroutine").WriteTo(&b, 1)
	default:
		err = fmt.Errorf("profile %q is unknown: the kinds are %s, %s and %s", kind, ProfileCPU, ProfileHeap,
			ProfileGoroutines)
	}
	if err != nil {
		s.fail(w, http.StatusBadRequest, err)
		return
	}
	s.log.Info("profile taken", append(asker(r), "kind", r.PathValue("kind"))...)
	w.Header().Set("Content-Type", "application/octet-stream")
	if _, err := w.Write(b.Bytes()); err != nil {
		s.log.Debug("status client closed the connection", "error", err)
	}
}

func cpuProfile(ctx context.Context, text string, w io.Writer) error {
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 || d > MaxProfile {
		return fmt.Errorf("a CPU profile of %q: give a time up to %v", text, MaxProfile)
	}
	if err := pprof.StartCPUProfile(w); err != nil {
		return fmt.Errorf("another CPU profile is being taken: %w", err)
	}
	defer pprof.StopCPUProfile()
	if !wake.After(ctx, d) {
		return errors.New("the client ended the profile")
	}
	return nil
}

// Profile writes a profile of the daemon's process to w. d is the time of a CPU profile.
func (c *Client) Profile(ctx context.Context, kind string, d time.Duration, w io.Writer) error {
	q := url.Values{}
	if kind == ProfileCPU {
		q.Set("for", d.String())
	}
	body, err := c.do(ctx, http.MethodGet, c.root+"/profiles/"+url.PathEscape(kind), q)
	if err != nil {
		return err
	}
	defer body.Close()
	if _, err := io.Copy(w, body); err != nil {
		return fmt.Errorf("the profile broke off: %w", err)
	}
	return nil
}

package status

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"
)

// events answers GET /events?since=TIME.
func (s *Server) events(w http.ResponseWriter, r *http.Request) {
	since, err := parseSince(r)
	if err != nil {
		s.fail(w, http.StatusBadRequest, err)
		return
	}
	s.reply(w, s.gateway.Events(since))
}

// parseSince returns the parameter since of a request; the zero time without one.
func parseSince(r *http.Request) (since time.Time, err error) {
	text := r.URL.Query().Get("since")
	if text == "" {
		return since, nil
	}
	if since, err = time.Parse(time.RFC3339Nano, text); err != nil {
		return since, fmt.Errorf("since is %q: write a time such as 2026-03-01T08:00:00Z", text)
	}
	return since, nil
}

// Events lists the events after a time, oldest first; the zero time is before all.
func (c *Client) Events(ctx context.Context, since time.Time) ([]EventView, error) {
	return ask[[]EventView](ctx, c, http.MethodGet, c.root+"/events", sinceQuery(since))
}

// sinceQuery is the query that parseSince reads.
func sinceQuery(since time.Time) url.Values {
	q := url.Values{}
	if !since.IsZero() {
		q.Set("since", since.Format(time.RFC3339Nano))
	}
	return q
}

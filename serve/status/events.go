package status

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"
)

// events answers GET /events?since=TIME, or ?over=DURATION.
func (s *Server) events(r *http.Request) (any, error) {
	since, err := parseSince(r)
	if err != nil {
		return nil, badRequest{err}
	}
	return s.gateway.Events(since), nil
}

// parseSince returns the time that a request's parameter over is before now or, without it, the
// parameter since; the zero time without both.
func parseSince(r *http.Request) (since time.Time, err error) {
	if text := r.URL.Query().Get("over"); text != "" {
		over, err := time.ParseDuration(text)
		if err != nil || over <= 0 {
			return since, fmt.Errorf("over is %q: write a time such as 1m", text)
		}
		return time.Now().Add(-over), nil
	}
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

// EventsOver lists the events of a time until now, by the daemon's clock, oldest first.
func (c *Client) EventsOver(ctx context.Context, over time.Duration) ([]EventView, error) {
	return ask[[]EventView](ctx, c, http.MethodGet, c.root+"/events", overQuery(over))
}

// overQuery is the query of a time until now. An older daemon reads since alone, which depends on
// this process's clock.
func overQuery(over time.Duration) url.Values {
	q := sinceQuery(time.Now().Add(-over))
	q.Set("over", over.String())
	return q
}

// sinceQuery is the query that parseSince reads.
func sinceQuery(since time.Time) url.Values {
	q := url.Values{}
	if !since.IsZero() {
		q.Set("since", since.Format(time.RFC3339Nano))
	}
	return q
}

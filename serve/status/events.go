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
	var since time.Time
	if text := r.URL.Query().Get("since"); text != "" {
		var err error
		if since, err = time.Parse(time.RFC3339Nano, text); err != nil {
			s.fail(w, http.StatusBadRequest, fmt.Errorf("since is %q: write a time such as 2026-03-01T08:00:00Z", text))
			return
		}
	}
	s.reply(w, s.gateway.Events(since))
}

// Events lists the events after a time, oldest first; the zero time is before all.
func (c *Client) Events(ctx context.Context, since time.Time) ([]EventView, error) {
	q := url.Values{}
	if !since.IsZero() {
		q.Set("since", since.Format(time.RFC3339Nano))
	}
	return ask[[]EventView](ctx, c, http.MethodGet, c.root+"/events", q)
}

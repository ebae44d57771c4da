package ui

import (
	"fmt"
	"net/http"
	"strconv"
	"time"

	"sluice.dev/sluice/flowtable/conn"
	"sluice.dev/sluice/serve/status"
)

// answers are the requests of the page, by path. Most return what the status API returns.
func (s *Server) answers() map[string]func(*http.Request) (any, error) {
	return map[string]func(*http.Request) (any, error){
		"status":   func(r *http.Request) (any, error) { return s.client.Status(r.Context(), false) },
		"stats":    func(r *http.Request) (any, error) { return s.client.Stats(r.Context()) },
		"services": func(r *http.Request) (any, error) { return s.client.Services(r.Context()) },
		"backends": func(r *http.Request) (any, error) { return s.client.Backends(r.Context()) },
		"drops":    s.drops,
		"flows":    s.flows,
		"clients":  s.clients,
		"states":   func(*http.Request) (any, error) { return conn.StateNames(), nil },
		"events":   s.events,
		"explain":  s.explain,
		"reasons":  func(*http.Request) (any, error) { return reasons(), nil },
	}
}

// drops answers ?over=DURATION: the samples of that time until now.
func (s *Server) drops(r *http.Request) (any, error) {
	over, err := time.ParseDuration(r.URL.Query().Get("over"))
	if err != nil || over <= 0 || over > status.DropsKept {
		return nil, requestError{fmt.Errorf("over is %q: write a time such as 1m, of at most %v",
			r.URL.Query().Get("over"), status.DropsKept)}
	}
	return s.client.DropsOver(r.Context(), over)
}

// events answers ?since=TIME, or all events.
func (s *Server) events(r *http.Request) (any, error) {
	var since time.Time
	if text := r.URL.Query().Get("since"); text != "" {
		var err error
		if since, err = time.Parse(time.RFC3339Nano, text); err != nil {
			return nil, requestError{fmt.Errorf("since is %q: write a time such as 2026-03-01T08:00:00Z", text)}
		}
	}
	return s.client.Events(r.Context(), since)
}

// explain answers ?from=CLIENT&to=ADDRESS:PORT/PROTOCOL, with &established=true for a packet of an
// open connection.
func (s *Server) explain(r *http.Request) (any, error) {
	v := r.URL.Query()
	established, err := strconv.ParseBool(v.Get("established"))
	if err != nil && v.Has("established") {
		return nil, requestError{fmt.Errorf("established: %w", err)}
	}
	q, err := status.ParseExplain(v.Get("from"), v.Get("to"), established)
	if err != nil {
		return nil, requestError{err}
	}
	return s.client.Explain(r.Context(), &q)
}

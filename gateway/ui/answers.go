package ui

import (
	"fmt"
	"net/http"
	"time"
)

// longest is the time of which the gateway has samples of dropped packets.
const longest = 10 * time.Minute

// answers are the requests of the page, by path. Most return what the status API returns.
func (s *Server) answers() map[string]func(*http.Request) (any, error) {
	return map[string]func(*http.Request) (any, error){
		"status":   func(r *http.Request) (any, error) { return s.client.Status(r.Context(), false) },
		"stats":    func(r *http.Request) (any, error) { return s.client.Stats(r.Context()) },
		"services": func(r *http.Request) (any, error) { return s.client.Services(r.Context()) },
		"backends": func(r *http.Request) (any, error) { return s.client.Backends(r.Context()) },
		"drops":    s.drops,
		"reasons":  func(*http.Request) (any, error) { return reasons(), nil },
	}
}

// drops answers ?over=DURATION: the samples of that time until now.
func (s *Server) drops(r *http.Request) (any, error) {
	over, err := time.ParseDuration(r.URL.Query().Get("over"))
	if err != nil || over <= 0 || over > longest {
		return nil, requestError{fmt.Errorf("over is %q: write a time such as 1m, of at most %v",
			r.URL.Query().Get("over"), longest)}
	}
	return s.client.Drops(r.Context(), s.now().Add(-over))
}

package status

import "net/http"

// access is who may send a request. Each route has one, and none by default.
type access int

const (
	// reads: the request changes nothing, and its answer has no payload of packets.
	reads access = iota + 1
	// full: the request changes the gateway, or takes its processors' time, or its answer has
	// packets of clients.
	full
)

// route is one kind of request.
type route struct {
	method, path string // the path without the revision
	access       access
	handle       http.HandlerFunc
}

// routes lists all requests that the server knows.
func (s *Server) routes() []route {
	g := s.gateway
	// view is a request whose answer is a value, values one with parameters.
	values := func(path string, value func(*http.Request) (any, error)) route {
		return route{http.MethodGet, path, reads, s.answers(value)}
	}
	view := func(path string, value func() any) route {
		return values(path, func(*http.Request) (any, error) { return value(), nil })
	}
	status := view("/status", func() any { return g.Status() })
	status.handle = s.status(status.handle)
	return []route{
		status,
		view("/services", func() any { return g.Services() }),
		view("/backends", func() any { return g.Backends() }),
		view("/times", func() any { return g.Times() }),
		view("/stats", func() any { return g.Stats() }),
		view("/source-ports", func() any { return g.SourcePorts() }),
		values("/explain", s.explain),
		values("/denials", func(*http.Request) (any, error) { return g.Denials() }),
		values("/events", s.events),
		values("/drops", s.drops),
		{http.MethodGet, "/flows", reads, s.flows},
		{http.MethodDelete, "/flows", full, s.deleteFlows},
		{http.MethodGet, "/profiles/{kind}", full, s.profile},
		{http.MethodPost, "/captures", full, s.capture},
		{http.MethodPut, "/drains/{backend...}", full, s.drain},
		{http.MethodDelete, "/drains/{backend...}", full, s.undrain},
		{http.MethodPut, "/denials/{client...}", full, s.deny},
		{http.MethodDelete, "/denials/{client...}", full, s.allow},
	}
}

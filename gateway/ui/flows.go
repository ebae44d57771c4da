package ui

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"sluice.dev/sluice/flowtable/conn"
	"sluice.dev/sluice/gateway/clients"
	"sluice.dev/sluice/serve/status"
)

// mostRows is the number of flows, and of clients, that an answer has at most.
const mostRows = 500

// flowsView has the first flows that match, in the order of the table.
type flowsView struct {
	Flows []status.FlowView `json:"flows"`
	More  bool              `json:"more"`
}

// errEnough ends a listing.
var errEnough = errors.New("enough flows were listed")

// flows answers with the first flows that match the filters of a query.
func (s *Server) flows(r *http.Request) (any, error) {
	f, err := flowFilter(r.URL.Query())
	if err != nil {
		return nil, requestError{err}
	}
	v := flowsView{Flows: []status.FlowView{}}
	err = s.client.Flows(r.Context(), f, func(flow *status.FlowView) error {
		if v.More = len(v.Flows) == mostRows; v.More {
			return errEnough
		}
		v.Flows = append(v.Flows, *flow)
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) {
		return nil, err
	}
	return v, nil
}

// filters are the parameters of flows.
var filters = []string{"client", "vip", "backend", "service", "state", "protocol"}

// flowFilter parses the filters of a query. An unknown state would look like a table without flows.
func flowFilter(q url.Values) (f status.FlowFilter, err error) {
	for name := range q {
		if !slices.Contains(filters, name) {
			return f, fmt.Errorf("%s: is no filter: %s are", name, strings.Join(filters, ", "))
		}
	}
	if f, _, err = status.ParseFlowFilter(q); err != nil {
		return f, err
	}
	if f.State != "" && !slices.Contains(conn.StateNames(), strings.ToLower(f.State)) {
		return f, fmt.Errorf("state: %q is none of %s", f.State, strings.Join(conn.StateNames(), ", "))
	}
	return f, nil
}

// clientsView has the clients with most bytes or, if they are not counted, most flows.
type clientsView struct {
	Clients []clients.Client `json:"clients"`
	More    int              `json:"more"` // others
	Note    string           `json:"note,omitempty"`
}

// sums are the clients' sums for all tabs of the browser. A rate is over the time since the answer
// before, whichever tab it was for.
type sums struct {
	mu     sync.Mutex // for the time of a request; guards the fields below
	of     *clients.Sums
	last   clientsView
	at     time.Time // of last
	worked time.Duration
}

// A rate is over at least shortestRate: within it, another tab gets the last answer. It is over at
// most longestRate and ten times the work for an answer: after a longer pause, the next answer has
// no rates, because they would be averages over the pause.
const (
	shortestRate = 900 * time.Millisecond // a tab asks each second
	longestRate  = 10 * time.Second
)

func (s *Server) clients(r *http.Request) (any, error) {
	c := &s.summed
	c.mu.Lock()
	defer c.mu.Unlock()
	began := s.now()
	age := began.Sub(c.at)
	if age >= 0 && age < shortestRate {
		return c.last, nil
	}
	if c.of == nil || age < 0 || age > longestRate+10*c.worked {
		c.of = clients.New(s.client, s.now)
	}
	list, note, err := c.of.Ask(r.Context())
	if err != nil {
		return nil, err
	}
	shown := list[:min(len(list), mostRows)]
	c.last = clientsView{append([]clients.Client{}, shown...), len(list) - len(shown), note}
	c.at = s.now()
	c.worked = c.at.Sub(began)
	return c.last, nil
}

package health

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/serve/web"
)

// Failure is a reason why the data path does not forward.
type Failure struct {
	Reason string
	// Restart: a restart of the process may solve it.
	Restart bool
}

// Config configures a Proxy. Its functions are called from any goroutine, at every request, so they
// must be cheap.
type Config struct {
	// Address is the address of /healthz and /livez; empty: neither is served.
	Address string
	// Reached is loop.Loop.Reached.
	Reached func() (read, applied uint64, at time.Time)
	// DataPath returns why the data path does not forward; empty if it does.
	DataPath func() []Failure
	// Node returns the Node object of this gateway, from any source; nil: there is none.
	Node func() objects.NodeInfo
	// NodeOptional: the Node object may be missing, because all objects come from manifests. If
	// there is one it is checked.
	NodeOptional bool
	// Answered, if not nil, is called with every answer.
	Answered func(path string, code int)
	Log      *slog.Logger
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// Retry is the interval of attempts to open a port that is in use; 0: web.DefaultRetry.
	Retry time.Duration
}

// Late is the longest time that an update may wait: twice kube-proxy's default syncPeriod of 30 s
// (pkg/proxy/healthcheck, cmd/kube-proxy/app/server.go).
const Late = time.Minute

// lookEvery is the precision of the time since which an update waits.
const lookEvery = time.Second

// Proxy serves the gateway's health on one address.
type Proxy struct {
	config Config
	server *web.Server // nil without an address

	mu      sync.Mutex // guards waiting
	waiting waiting
}

// NewProxy returns a Proxy, which Run starts.
func NewProxy(c Config) *Proxy {
	if c.Now == nil {
		c.Now = time.Now
	}
	p := &Proxy{config: c}
	if c.Address == "" {
		return p
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { p.answer(w, healthz) })
	mux.HandleFunc("/livez", func(w http.ResponseWriter, _ *http.Request) { p.answer(w, livez) })
	p.server = web.New(web.Config{
		Name: "health-listener", Purpose: "answers to load balancers", Field: "health.address",
		Address: c.Address, Handler: mux, Log: c.Log, Retry: c.Retry, Once: true,
	})
	return p
}

// Run watches the control loop, and serves, until ctx ends.
func (p *Proxy) Run(ctx context.Context) {
	var group sync.WaitGroup
	defer group.Wait()
	if p.server != nil {
		group.Go(func() { p.server.Run(ctx) })
	}
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			p.look()
		}
	}
}

// waiting is the oldest update that is not applied.
type waiting struct {
	is     bool
	since  time.Time
	target uint64 // revision whose application ends the wait
}

// look returns since when an update waits, and when one was last applied. While updates keep
// arriving, some always wait; each is late on its own.
func (p *Proxy) look() (w waiting, now, applied time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now = p.config.Now()
	read, done, at := p.config.Reached()
	switch w := &p.waiting; {
	case done >= read:
		*w = waiting{}
	case !w.is || done >= w.target:
		*w = waiting{is: true, since: now, target: read}
	}
	return p.waiting, now, at
}

// Queued returns since when an update waits to be applied; the zero time if none waits.
func (p *Proxy) Queued() time.Time {
	w, _, _ := p.look()
	return w.since
}

// state has the facts that an answer is built from.
type state struct {
	now, updated time.Time
	synced       bool // no update is late
	failures     []Failure
}

func (p *Proxy) state() (s state) {
	var w waiting
	w, s.now, s.updated = p.look()
	// Before the first table the data path is not ready; a restart would only read the same objects
	// again.
	s.synced = s.updated.IsZero() || !w.is || s.now.Sub(w.since) < Late
	s.failures = p.config.DataPath()
	return s
}

// Serving reports whether an up-to-date table forwards traffic: the serviceProxyHealthy of the
// Services' own ports. It does not depend on the Node (KEP-3836): a node that is being drained
// serves its pods to the end.
func (p *Proxy) Serving() bool {
	s := p.state()
	return s.synced && len(s.failures) == 0
}

// eligible reports whether the node may get traffic for other nodes' pods, and why not.
func (p *Proxy) eligible() (ok bool, why string) {
	if p.config.Node == nil {
		return true, ""
	}
	n := p.config.Node()
	switch {
	case !n.Known && p.config.NodeOptional:
	case !n.Known:
		return false, "the Node object of this gateway does not exist: nodeName must be its name"
	case n.DrainReason != "":
		return false, n.DrainReason
	}
	return true, ""
}

// The paths of the requests.
const (
	healthz = "/healthz"
	livez   = "/livez"
)

// reply is the body of an answer, with kube-proxy's fields in kube-proxy's order; DataPath is an
// addition.
type reply struct {
	LastUpdated  time.Time         `json:"lastUpdated"`
	CurrentTime  time.Time         `json:"currentTime"`
	NodeEligible *bool             `json:"nodeEligible,omitempty"` // only in /healthz
	Healthy      bool              `json:"healthy"`                // without regard to the Node
	Status       map[string]family `json:"status,omitempty"`       // empty before the first table
	DataPath     []string          `json:"dataPath,omitempty"`     // why it does not forward
}

type family struct {
	LastUpdated time.Time `json:"lastUpdated"`
	Healthy     bool      `json:"healthy"`
}

func (p *Proxy) answer(w http.ResponseWriter, path string) {
	s := p.state()
	r := reply{LastUpdated: s.updated, CurrentTime: s.now, Healthy: s.synced}
	for _, f := range s.failures {
		if path == healthz || f.Restart {
			r.DataPath, r.Healthy = append(r.DataPath, f.Reason), false
		}
	}
	if !s.updated.IsZero() { // one pass of the loop covers both
		f := family{LastUpdated: s.updated, Healthy: s.synced}
		r.Status = map[string]family{"IPv4": f, "IPv6": f}
	}
	ok := r.Healthy
	if path == healthz {
		eligible, _ := p.eligible()
		r.NodeEligible, ok = &eligible, ok && eligible
	}
	code := http.StatusServiceUnavailable
	if ok {
		code, r.LastUpdated = http.StatusOK, s.now // like kube-proxy: recent means healthy
	}
	if p.config.Answered != nil {
		p.config.Answered(path, code)
	}
	body, err := json.Marshal(&r)
	if err != nil { // only a year beyond 9999 (time.Time.MarshalJSON)
		code, body = http.StatusServiceUnavailable, nil
	}
	writeJSON(w, code, body)
}

func writeJSON(w http.ResponseWriter, code int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = w.Write(body) // a prober that closed the connection logs that itself
}

// Conditions returns the conditions about the gateway's health.
func (p *Proxy) Conditions() (list []status.ConditionView) {
	if p.server != nil {
		list = append(list, p.server.Condition())
	}
	if ok, why := p.eligible(); !ok {
		list = append(list, status.ConditionView{Name: "node", Level: "warn",
			Detail: "load balancers are asked to send no new traffic to this node; packets are forwarded: " + why})
	}
	if w, now, at := p.look(); w.is && !at.IsZero() && now.Sub(w.since) >= Late {
		list = append(list, status.ConditionView{Name: "sync", Level: "fail", Since: w.since,
			Detail: "an update has not been applied since " + w.since.Format(time.RFC3339) +
				"; the table is out of date. See `sluice status` and the log, or restart the daemon"})
	}
	return list
}

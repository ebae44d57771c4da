// Package status is the operator's interface to a running gateway: HTTP with JSON over a unix
// socket that only the daemon's own user may open.
//
//	sluice services ──▶ Client ──unix socket, 0600──▶ Server ──▶ Gateway
//
// The daemon implements the Gateway interface. The views are plain values, made for each request,
// that share nothing with the data path. The Prometheus collector uses the same views, so a number
// has one origin.
//
// Lists that may be long (flows) are streamed: one JSON object per line, page by
// page, so that neither side holds a million of them.
package status

import "context"

// Gateway is the daemon as the server uses it. All methods may be called concurrently.
type Gateway interface {
	// Services lists the service ports that are served, by namespace and name.
	Services() []ServiceView
	// Backends lists the endpoints that are known, by service and address.
	Backends() []BackendView
	// Flows appends up to limit flows that match to page, from cursor on (0 is the
	// start), and returns where to go on; 0 is the end. A page may be empty before
	// the end. Flows that come and go between pages may be missed, none comes twice.
	Flows(f *FlowFilter, cursor uint64, limit int, page []FlowView) (flows []FlowView, next uint64)
	// DeleteFlows ends the flows that match and returns how many.
	DeleteFlows(ctx context.Context, f *FlowFilter) (int, error)
	// Drain makes the backends that e selects take no new flows (on) or take them again, and
	// returns how many backends it selects.
	Drain(e Endpoint, on bool) (int, error)
	// Explain returns the verdict about a packet, and why. It changes nothing.
	Explain(q *ExplainQuery) (ExplainView, error)
	Stats() StatsView
	// SourcePorts lists every family and protocol. It may count all flows, which takes some tenths
	// of a second for a million.
	SourcePorts() []SourcePortsView
	Status() StatusView
	// WaitApplied returns nil when everything that was read before the call is published, steered
	// and seen by every worker, or an error if that does not happen.
	WaitApplied(ctx context.Context) error
}

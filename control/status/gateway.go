// Package status is how an operator looks into a running gateway: HTTP with JSON
// over a unix socket that only the daemon's own user may open.
//
//	sluice services ──▶ Client ──unix socket, 0600──▶ Server ──▶ Gateway
//
// The Gateway interface is what the daemon provides; the views are plain values,
// made when asked for, that share nothing with the data path. The same views feed
// the Prometheus collector, so a number has one origin.
//
// Lists that may be long (flows) are streamed: one JSON object per line, page by
// page, so that neither side holds a million of them.
package status

import "context"

// Gateway is what the server asks the daemon. All methods are called from several
// goroutines at once.
type Gateway interface {
	// Services lists the service ports that are served, by namespace and name.
	Services() []ServiceView
	// Backends lists the endpoints that are known, by service and address.
	Backends() []BackendView
	// Flows appends up to limit flows that match to page, from cursor on (0 is the
	// start), and returns where to go on; 0 is the end. A page may be empty before
	// the end. Flows that come and go between pages may be missed, none comes twice.
	Flows(f *FlowFilter, cursor uint64, limit int, page []FlowView) (flows []FlowView, next uint64)
	// DeleteFlows ends the flows that match and says how many.
	DeleteFlows(ctx context.Context, f *FlowFilter) (int, error)
	// Drain keeps new flows from the backends that e selects (on) or lets them come
	// again, and says how many backends it selects.
	Drain(e Endpoint, on bool) (int, error)
	// Explain says what would become of a packet. It changes nothing.
	Explain(q *ExplainQuery) (ExplainView, error)
	Stats() StatsView
	Status() StatusView
	// WaitApplied returns when everything that was read before the call is published,
	// steered and seen by every worker, or with the reason why it will not be.
	WaitApplied(ctx context.Context) error
}

// Package status is the operator's interface to a running gateway: HTTP with JSON over a Unix
// socket that only the daemon's own user may open.
//
//	sluice services ──▶ Client ──unix socket, 0600──▶ Server ──▶ Gateway
//
// The daemon implements the Gateway interface. The views are plain values, made for each request,
// that share nothing with the data path. The Prometheus collector uses the same views, so each
// number has one origin.
//
// Lists that may be long (flows) are streamed: one JSON object per line, page by
// page, so that neither side holds a million of them.
package status

import (
	"context"
	"net/netip"
	"time"
)

// Gateway is the part of the daemon that the server calls. All methods may be called concurrently.
type Gateway interface {
	// Services lists the served service ports, by namespace and name.
	Services() []ServiceView
	// Backends lists the known endpoints, by service and address.
	Backends() []BackendView
	// Times lists how long endpoints took to answer, by service and address.
	Times() AllTimesView
	// ServiceTimes has the services of Times.
	ServiceTimes() []ServiceTimesView
	// Flows appends up to limit flows that match to page, from cursor on (0 is the start), and
	// returns the next cursor; 0 is the end. A page may be empty before the end. Flows that begin
	// or end between pages may be missed; none appears twice.
	Flows(f *FlowFilter, cursor uint64, limit int, page []FlowView) (flows []FlowView, next uint64)
	// DeleteFlows ends the flows that match and returns their number.
	DeleteFlows(ctx context.Context, f *FlowFilter) (int, error)
	// Drain stops new flows to the backends that e selects (on), or allows them again, and returns
	// the number of these backends.
	Drain(e Endpoint, on bool) (int, error)
	// Deny drops the packets of clients, for a time or, if that is 0, without an end.
	Deny(ctx context.Context, client netip.Prefix, after time.Duration) (DeniedView, error)
	// Allow ends a denial that Deny began.
	Allow(ctx context.Context, client netip.Prefix) error
	// Denials lists the denied clients by address.
	Denials() ([]DenialView, error)
	// Drops sums the packets dropped after a time by reason and Service. It has ten minutes.
	Drops(since time.Time) DropsView
	// Events lists the events that came after the one with a time, in their order, or all with a
	// later time.
	Events(since time.Time) []EventView
	// Explain returns the verdict on a packet, and why. It changes nothing.
	Explain(q *ExplainQuery) (ExplainView, error)
	// Capture writes the packets that q selects, in the form pcapng, until ctx ends or the gateway
	// ends the capture. After an error before the first write nothing was captured.
	Capture(ctx context.Context, q *CaptureQuery, out CaptureWriter) (CaptureView, error)
	Stats() StatsView
	// SourcePorts lists every family and protocol. It may count all flows, which takes some tenths
	// of a second for a million.
	SourcePorts() []SourcePortsView
	Status() StatusView
	// WaitApplied returns nil when the configuration file of the time of the call is loaded or
	// refused, and everything that the sources had then is published, steered and seen by every
	// worker, or an error if that fails.
	WaitApplied(ctx context.Context) error
}

package control

import (
	"net/netip"
	"time"
)

// Sync is one pass of the loop that took changes in.
type Sync struct {
	// Queued is when the first of its changes was read, Started when they were compiled.
	Queued, Started time.Time
	// Took is the time from Started until the table was published and steered by.
	Took time.Duration
	// Services and EndpointSlices count the objects that changed.
	Services, EndpointSlices int
	// Triggers are when the causes of its slices happened, as the annotation
	// endpoints.kubernetes.io/last-change-trigger-time says.
	Triggers []time.Time
	// Full: the first table, or a new configuration for all of it.
	Full bool
}

// Observer hears of every Sync, on the loop's goroutine: it must not block.
type Observer interface{ Synced(*Sync) }

// HealthCheck is what the health check node port of one Service answers
// (spec.healthCheckNodePort; type LoadBalancer with external traffic policy Local).
type HealthCheck struct {
	Namespace, Name string
	Port            uint16
	// V4 and V6 are the families that the Service is served in.
	V4, V6 bool
	// Local4 and Local6 count distinct addresses of ready endpoints on this node,
	// all ports together.
	Local4, Local6 int
}

// HealthChecks hears of the health check node ports, all of them whenever one
// changes, in order of port. It is called on the loop's goroutine: it must not block.
type HealthChecks interface{ SetHealthChecks([]HealthCheck) }

// NodeInfo is what is known of a Node object.
type NodeInfo struct {
	Known bool
	// Zone is the label topology.kubernetes.io/zone; empty if there is none.
	Zone string
	// Addresses are status.addresses of type InternalIP, then ExternalIP, in their order.
	Addresses []netip.Addr
	// Leaving says why the node takes no new traffic; empty if it does:
	// a deletionTimestamp, or the taint ToBeDeletedByClusterAutoscaler (KEP-3836).
	Leaving string
}

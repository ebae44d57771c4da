package loop

import (
	"time"

	"sluice.dev/sluice/control/compiler"
)

// Sync describes one pass of the loop over changes.
type Sync struct {
	// Queued is when the first of its changes was read, Started when they were compiled.
	Queued, Started time.Time
	// Took is the time from Started until the table was published and steered.
	Took time.Duration
	// Services and EndpointSlices count the objects that changed.
	Services, EndpointSlices int
	// Triggers are the times of the annotation endpoints.kubernetes.io/last-change-trigger-time of
	// its slices.
	Triggers []time.Time
	// Full: the pass compiled all objects, for the first table or a new configuration.
	Full bool
}

// Observer is called with every Sync, on the loop's goroutine: it must not block.
type Observer interface{ Synced(*Sync) }

// HealthChecks is called with all health check node ports, in order of port, whenever one changes.
// It is called on the loop's goroutine: it must not block.
type HealthChecks interface{ SetHealthChecks([]compiler.HealthCheck) }

// EndpointChecks is called with all service ports that have a check, ports of the oldest Service
// first, whenever one changes. It is called on the loop's goroutine: it must not block, and must
// not call methods of the Loop that send it a request.
type EndpointChecks interface{ SetCheckedPorts([]*compiler.CheckedPort) }

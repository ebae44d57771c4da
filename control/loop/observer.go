package loop

import (
	"time"

	"sluice.dev/sluice/control/compiler"
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

// HealthChecks hears of the health check node ports, all of them whenever one
// changes, in order of port. It is called on the loop's goroutine: it must not block.
type HealthChecks interface{ SetHealthChecks([]compiler.HealthCheck) }

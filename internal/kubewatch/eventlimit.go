package kubewatch

import (
	"time"

	"k8s.io/client-go/util/flowcontrol"
)

// Limits of the Events that one process writes to an API server. Gateway, controller and announcer
// use the same.
const (
	eventsPerSecond = 1
	eventsAtOnce    = 25
	// EventMemory is the time after its end in which a problem that returns counts as the same
	// problem.
	EventMemory = 30 * time.Minute
	// MostEvents is the number of problems that are remembered.
	MostEvents = 4096
	// MostEventsOfNamespace is the number of them in one namespace, whose users can cause any number.
	MostEventsOfNamespace = MostEvents / 8
	// MinEventInterval is the first interval between two Events about one problem. It doubles with
	// each Event, up to MaxEventInterval: a problem that comes and goes all day costs six requests
	// an hour.
	MinEventInterval = 2 * time.Second
	MaxEventInterval = 10 * time.Minute
	// EventRetry is the first interval after which a rejected Event is tried again. It doubles, too.
	EventRetry = 30 * time.Second
)

// NewEventLimit returns a limiter of the Events of a process: 25 at once, then one a second.
func NewEventLimit() flowcontrol.RateLimiter {
	return flowcontrol.NewTokenBucketRateLimiter(eventsPerSecond, eventsAtOnce)
}

// NextEventInterval returns the interval that follows wait; the first interval is least.
func NextEventInterval(wait, least time.Duration) time.Duration {
	return min(max(2*wait, least), MaxEventInterval)
}

// Package eventlimit has the limits of the Events that one process writes to an API server.
// Gateway, controller and announcer use the same.
package eventlimit

import (
	"time"

	"k8s.io/client-go/util/flowcontrol"
)

const (
	perSecond = 1
	atOnce    = 25
	// Memory is the time after its end in which a problem that returns counts as the same problem.
	Memory = 30 * time.Minute
	// Most is the number of problems that are remembered.
	Most = 4096
	// MostOfNamespace is the number of them in one namespace, whose users can cause any number.
	MostOfNamespace = Most / 8
	// MinInterval is the first interval between two Events about one problem. It doubles with each
	// Event, up to MaxInterval: a problem that comes and goes all day costs six requests an hour.
	MinInterval = 2 * time.Second
	MaxInterval = 10 * time.Minute
	// Retry is the first interval after which a rejected Event is tried again. It doubles, too.
	Retry = 30 * time.Second
)

// New returns a limiter of the Events of a process: 25 at once, then one a second.
func New() flowcontrol.RateLimiter { return flowcontrol.NewTokenBucketRateLimiter(perSecond, atOnce) }

// Next returns the interval that follows wait; the first interval is least.
func Next(wait, least time.Duration) time.Duration { return min(max(2*wait, least), MaxInterval) }

// Package eventlimit has the bounds of the load that the Events of one process put on an API
// server. Gateway, controller and announcer have the same.
package eventlimit

import (
	"time"

	"k8s.io/client-go/util/flowcontrol"
)

const (
	perSecond = 1
	atOnce    = 25
	// Memory is how long after its end something that comes back is still the same.
	Memory = 30 * time.Minute
	// Most bounds how many things are remembered.
	Most = 4096
	// MostOfNamespace bounds those of one namespace, whose author may bring about any number.
	MostOfNamespace = Most / 8
	// MinInterval is the first interval between two Events about one thing. It doubles with each,
	// up to MaxInterval: what appears and ends all day costs six requests an hour.
	MinInterval = 2 * time.Second
	MaxInterval = 10 * time.Minute
	// Retry is the first interval after which a refused Event is tried again; it doubles, too.
	Retry = 30 * time.Second
)

// New returns a limiter of the Events of a process: 25 at once, then one a second.
func New() flowcontrol.RateLimiter { return flowcontrol.NewTokenBucketRateLimiter(perSecond, atOnce) }

// Next returns the interval after one of wait, the first of which is least.
func Next(wait, least time.Duration) time.Duration { return min(max(2*wait, least), MaxInterval) }

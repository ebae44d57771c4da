package tracker

import (
	"context"

	"sluice.dev/sluice/control/objects"
)

// Feed is a source as the control loop sees it.
type Feed interface {
	// Source returns where the feed reads.
	Source() objects.Source
	// Sync returns nil once everything that the source had before the call is in the Tracker, or an
	// error if the source cannot be read.
	Sync(ctx context.Context) error
}

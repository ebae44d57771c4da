package tracker

import (
	"context"

	"sluice.dev/sluice/control/objects"
)

// Feed is a source as the control loop sees it.
type Feed interface {
	// Source names it.
	Source() objects.Source
	// Sync returns when everything that the source said before the call is in the
	// Tracker, or why it cannot say.
	Sync(ctx context.Context) error
}

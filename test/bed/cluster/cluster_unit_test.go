package cluster

import (
	"context"
	"testing"
	"time"

	"sluice.dev/sluice/test/bed/machine"
)

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), machine.Slower(3*time.Minute))
	t.Cleanup(cancel)
	return ctx
}

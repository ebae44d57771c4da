//go:build root

package soak

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"sluice.dev/sluice/test/bed/launch"
)

// TestSoak: a short one. `make -C test soak` takes an hour.
func TestSoak(t *testing.T) {
	binary, err := launch.Build(t.TempDir(), false)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	c := Defaults()
	c.Sluice, c.Duration, c.Connections, c.Out, c.Progress = binary, 15*time.Second, 200, &out, t.Output()
	err = Run(t.Context(), c)
	t.Log("\n" + out.String())
	if err != nil {
		t.Errorf("found something: %v; %v", errors.Is(err, ErrFailed), err)
	}
}

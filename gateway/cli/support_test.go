package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sluice.dev/sluice/serve/status/statustest"
)

// TestSupport: an archive without an answer of the gateway is written, and is a failure.
func TestSupport(t *testing.T) {
	for _, c := range []struct {
		name, socket, says string
		code               int
	}{
		{"no gateway", filepath.Join(t.TempDir(), "none"), "nothing of the gateway itself", exitFailure},
		{"a gateway", daemon(t, statustest.New()), "without announcer.json", exitOK},
	} {
		file := filepath.Join(t.TempDir(), "x.tar.gz")
		code, out, errs := sluice(t, "support", "--socket", c.socket, "--file", file, "--profile", "0s",
			"--announcer", filepath.Join(t.TempDir(), "none"))
		if _, err := os.Stat(file); err != nil || code != c.code || !strings.Contains(errs, c.says) ||
			!strings.Contains(out, "parts\n") {
			t.Errorf("%s: exit %d, %v\n%s%s", c.name, code, err, out, errs)
		}
	}
}

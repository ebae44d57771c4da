package cli

import (
	"encoding/json"
	"strings"
	"testing"

	"sluice.dev/sluice/control/status"
	"sluice.dev/sluice/control/status/statustest"
)

// TestServiceFlag: services and backends of one service alone, by name and port; what is
// no name of a service is refused, and not taken for one without backends.
func TestServiceFlag(t *testing.T) {
	socket := daemon(t, statustest.New())
	for _, c := range []struct {
		filter             string
		services, backends int
		code               int
	}{
		{"default/web", 1, 3, exitOK},
		{"default/web:http", 1, 3, exitOK},
		{"default/web:https", 0, 0, exitFailure},
		{"default/we", 0, 0, exitFailure},
		{"other/web", 0, 0, exitFailure},
		{"kube-system/dns", 1, 0, exitOK},
		{"kube-system/dns:", 0, 0, exitFailure},
		{"web", 0, 0, exitUsage},
		{"default/", 0, 0, exitUsage},
		{"a/b/c", 0, 0, exitUsage},
	} {
		var s []status.ServiceView
		var b []status.BackendView
		for command, into := range map[string]any{"services": &s, "backends": &b} {
			code, out, errs := sluice(t, command, "--service", c.filter, "-o", "json", "--socket", socket)
			if code != c.code {
				t.Errorf("%s --service %s: exit %d, want %d: %s", command, c.filter, code, c.code, errs)
			} else if code == exitOK {
				if err := json.Unmarshal([]byte(out), into); err != nil {
					t.Error(err)
				}
			}
		}
		if len(s) != c.services || len(b) != c.backends {
			t.Errorf("--service %s: %d services and %d backends, want %d and %d", c.filter, len(s), len(b), c.services,
				c.backends)
		}
	}
}

// TestServiceFlagOfNoService: every command with --service fails for a service that is not served,
// prints no empty result, and names the nearest one.
func TestServiceFlagOfNoService(t *testing.T) {
	socket := daemon(t, statustest.New())
	for _, command := range []string{"services", "backends", "flows", "flows --count", "flows delete"} {
		code, out, errs := sluice(t, append(strings.Fields(command), "--service", "default/wbe", "--socket", socket)...)
		if code != exitFailure || out != "" || !strings.Contains(errs, "no service default/wbe") ||
			!strings.Contains(errs, "did you mean default/web?") {
			t.Errorf("%s: exit %d\n%s%s", command, code, errs, out)
		}
	}
}

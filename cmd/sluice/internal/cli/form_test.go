package cli

import (
	"testing"

	"sluice.dev/sluice/cmd/sluice/internal/doctor"
	"sluice.dev/sluice/control/config/kubeproxy"
	"sluice.dev/sluice/control/config/metallb"
	"sluice.dev/sluice/control/status"
	"sluice.dev/sluice/internal/pinned"
)

// TestOutputHasARevision: readers of the JSON output detect a change by the revision,
// and so does a daemon that a command of another version asks. The configuration has its
// apiVersion.
func TestOutputHasARevision(t *testing.T) {
	form := ""
	for _, c := range []struct {
		command string
		printed any
	}{
		{"services", []status.ServiceView{}},
		{"backends", []status.BackendView{}},
		{"flows", status.FlowView{}},
		{"flows delete, drain", status.Count{}},
		{"explain", status.ExplainView{}},
		{"stats", status.StatsView{}},
		{"status", status.StatusView{}},
		{"doctor", []doctor.Finding{}},
		{"version", status.Build{}},
		{"cleanup", cleanupView{}},
		{"config from-kube-proxy", kubeproxy.Result{}},
		{"config from-metallb", metallb.Result{}},
	} {
		form += pinned.Form(c.command+": ", c.printed)
	}
	pinned.Same(t, "testdata/form.golden", status.Revision, form)
}

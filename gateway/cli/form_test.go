package cli

import (
	"testing"

	"sluice.dev/sluice/config/kubeproxy"
	"sluice.dev/sluice/config/metallb"
	"sluice.dev/sluice/gateway/doctor"
	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/test/bed/pinned"
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
		{"services --time", []status.ServiceTimesView{}},
		{"backends --time", []status.BackendTimesView{}},
		{"flows", status.FlowView{}},
		{"flows delete, drain, deny remove", status.Count{}},
		{"deny", status.DeniedView{}},
		{"deny list", []status.DenialView{}},
		{"drops", status.DropsView{}},
		{"events", []status.EventView{}},
		{"explain", status.ExplainView{}},
		{"simulate", status.SimulateView{}},
		{"stats", status.StatsView{}},
		{"status", status.StatusView{}},
		{"doctor", []doctor.Finding{}},
		{"who", whoView{}},
		{"version", status.Build{}},
		{"cleanup", cleanupView{}},
		{"node apply, node remove", nodeView{}},
		{"config from-kube-proxy", kubeproxy.Result{}},
		{"config from-metallb", metallb.Result{}},
	} {
		form += pinned.Form(c.command+": ", c.printed)
	}
	pinned.Same(t, "testdata/form.golden", status.Revision, form)
}

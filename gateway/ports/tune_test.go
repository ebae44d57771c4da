//go:build root

package ports

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/fastpath/xsk/napi"
	"sluice.dev/sluice/fastpath/xsk/xsktest"
	"sluice.dev/sluice/host/nic/devices"
)

// TestTuning: what the configuration says of sockets and device is what the kernel has
// while the port is open, the status shows it, and the device's own settings come back.
func TestTuning(t *testing.T) {
	xsktest.EnterNamespace(t)
	addNIC(t, 1)
	dev, err := devices.Read(nic)
	must(t, err)
	before, err := napi.Read(nic, dev.Index)
	must(t, err)
	c := smallConfig()
	c.StateDir = t.TempDir()
	c.Sockets.BusyPoll = config.Duration(30 * time.Microsecond)
	c.Interfaces[0].NAPI = config.NAPI{DeferHardIRQs: 2, GROFlushTimeout: config.Duration(50 * time.Microsecond),
		Threaded: config.ThreadedOn}
	l := newPortLab(t, c)
	want := map[string]string{"napi_defer_hard_irqs": "2", "gro_flush_timeout": "50000", "threaded": "1"}
	for range 2 { // the device is deleted, and tuned again when it is back
		now, err := napi.Read(nic, l.p.index())
		must(t, err)
		v := l.p.view()
		if !maps.Equal(now, want) || !maps.Equal(v.Settings, want) || len(v.Refused) != 0 {
			t.Errorf("the device has %v, the status says %v, refused %q; want %v", now, v.Settings, v.Refused, want)
		}
		if q := v.Queues[0]; q.TxBudget != c.Tuning.RingSize && len(q.Refused) < 2 || q.BusyPollMicros != 30 ||
			q.BusyPollBudget != 64 {
			t.Errorf("the status says %+v", q)
		}
		deleteNIC(t)
		addNIC(t, 1)
		l.want("created again", 1, "")
	}
	must(t, l.s.closePort(t.Context(), l.p))
	if after, err := napi.Read(nic, l.p.index()); err != nil || !maps.Equal(after, before) {
		t.Errorf("the device had %v and has %v, %v", before, after, err)
	}
	if _, err := os.Stat(filepath.Join(c.StateDir, "napi.json")); !os.IsNotExist(err) {
		t.Errorf("a file is left: %v", err)
	}
}

// TestNoSettingsChangeNothing: a configuration without such settings changes nothing of the device.
func TestNoSettingsChangeNothing(t *testing.T) {
	xsktest.EnterNamespace(t)
	addNIC(t, 1)
	dev, err := devices.Read(nic)
	must(t, err)
	before, err := napi.Read(nic, dev.Index)
	must(t, err)
	l := newPortLab(t, smallConfig())
	if now, err := napi.Read(nic, l.p.index()); err != nil || !maps.Equal(now, before) ||
		len(l.p.view().Settings) != 0 {
		t.Errorf("the device had %v and has %v, %v; the status says %v", before, now, err, l.p.view().Settings)
	}
}

// TestTuningRefused: generic XDP needs no NAPI, so veth has none to run in threads. The port
// forwards all the same, and reports it.
func TestTuningRefused(t *testing.T) {
	xsktest.EnterNamespace(t)
	addNIC(t, 1)
	c := smallConfig()
	c.StateDir = t.TempDir()
	c.Interfaces[0].Mode = config.ModeGeneric
	c.Interfaces[0].NAPI.Threaded = config.ThreadedOn
	l := newPortLab(t, c)
	l.want("without NAPI", 1, "")
	if refused := strings.Join(l.p.view().Refused, "\n"); !strings.Contains(refused,
		"threaded of nic0 cannot be set to 1: the driver has no NAPI") {
		t.Errorf("refused %q", refused)
	}
}

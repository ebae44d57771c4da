package daemon

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/control/compiler"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/gateway/drains"
)

// TestLostDrains: the status says that drains of the predecessor cannot be read, until the operator
// drains again.
func TestLostDrains(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, drains.Name), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := &config.Configuration{StateDir: dir}
	d := &Daemon{settings: &settings{atStart: c}, flows: flowState{file: &flowtable.File{}},
		handOver: newHandOver(false, slog.New(slog.DiscardHandler))}
	d.flows.loadDrains(c, slog.New(slog.DiscardHandler), compiler.New(compiler.Config{}))
	if list := d.flows.conditions(); len(list) != 1 || list[0].Name != "drains" || list[0].Level != "fail" {
		t.Errorf("conditions %v", list)
	}
	if err := d.saveDrains(nil); err != nil {
		t.Fatal(err)
	}
	if list := d.flows.conditions(); len(list) != 0 {
		t.Errorf("conditions after a change %v", list)
	}
}

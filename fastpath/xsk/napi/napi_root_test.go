//go:build root

package napi

import (
	"maps"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"sluice.dev/sluice/fastpath/xsk/xsktest"
)

// TestApplyAndRestore reads the kernel's values back, in a namespace that /sys does not show.
func TestApplyAndRestore(t *testing.T) {
	xsktest.EnterNamespace(t)
	xsktest.NewWire(t, "sl0", "sl0p")
	index := indexOf(t, "sl0")
	before := values(t, "sl0", index)
	memory := filepath.Join(t.TempDir(), "napi.json")
	d, err := Apply("sl0", index, all, open(t, memory))
	must(t, err)
	want := map[string]string{attrDefer: "3", attrTimeout: "50000", attrThreaded: "1"}
	if got := values(t, "sl0", index); !maps.Equal(got, want) || !maps.Equal(d.Values(), want) ||
		len(d.Refused()) != 0 {
		t.Errorf("the device has %v, we say %v, refused %q; want %v", got, d.Values(), d.Refused(), want)
	}
	must(t, d.Restore())
	if got := values(t, "sl0", index); !maps.Equal(got, before) {
		t.Errorf("after Restore %v, before %v", got, before)
	}
	if _, err := os.Stat(memory); !os.IsNotExist(err) {
		t.Errorf("the file is still there: %v", err)
	}
}

// TestAfterCrash: the successor of a crashed process restores the operator's values.
func TestAfterCrash(t *testing.T) {
	for name, next := range map[string]Settings{"same": all, "less": {FlushTimeout: time.Millisecond}, "nothing": {}} {
		t.Run(name, func(t *testing.T) {
			xsktest.EnterNamespace(t)
			xsktest.NewWire(t, "sl0", "sl0p")
			index := indexOf(t, "sl0")
			dir, err := openDevice("sl0", index)
			must(t, err)
			must(t, dir.write(attrDefer, "7")) // the operator's
			must(t, dir.close())
			before := values(t, "sl0", index)
			memory := filepath.Join(t.TempDir(), "napi.json")
			_, err = Apply("sl0", index, all, open(t, memory)) // and no Restore
			must(t, err)
			d, err := Apply("sl0", index, next, open(t, memory))
			must(t, err)
			if got := values(t, "sl0", index); len(next.wanted()) < 3 && got[attrDefer] != "7" {
				t.Errorf("no longer configured, and still %v", got)
			}
			must(t, d.Restore())
			if got := values(t, "sl0", index); !maps.Equal(got, before) {
				t.Errorf("after Restore %v, before %v", got, before)
			}
		})
	}
}

func TestOtherDevice(t *testing.T) {
	xsktest.EnterNamespace(t)
	xsktest.NewWire(t, "sl0", "sl0p")
	if _, err := Apply("sl0", indexOf(t, "sl0")+100, all, nil); err == nil {
		t.Error("settings of a device with another index were changed")
	} else {
		t.Log(err)
	}
	if _, err := Apply("nowhere", 1, all, nil); err == nil {
		t.Error("no error for a device that does not exist")
	}
}

func indexOf(t *testing.T, name string) int {
	t.Helper()
	ifi, err := net.InterfaceByName(name)
	must(t, err)
	return ifi.Index
}

// values reads the three settings from the kernel.
func values(t *testing.T, name string, index int) map[string]string {
	t.Helper()
	v, err := Read(name, index)
	must(t, err)
	return v
}

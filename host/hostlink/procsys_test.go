//go:build root

package hostlink

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestReadOnlySysctls: in a container /proc/sys is read-only. The error has the remedy; with the
// host's /proc/sys/net mounted elsewhere the pair is created.
func TestReadOnlySysctls(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		elsewhere := t.TempDir()
		if err := os.Mkdir(filepath.Join(elsewhere, "net"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			t.Fatal(err)
		}
		for _, m := range []struct {
			source, target string
			flags          uintptr
		}{
			{"", "/", unix.MS_REC | unix.MS_PRIVATE},
			{"/proc/sys/net", filepath.Join(elsewhere, "net"), unix.MS_BIND},
			{"/proc/sys", "/proc/sys", unix.MS_BIND},
			{"/proc/sys", "/proc/sys", unix.MS_BIND | unix.MS_REMOUNT | unix.MS_RDONLY},
		} {
			if err := unix.Mount(m.source, m.target, "", m.flags, ""); err != nil {
				t.Fatalf("mount %s at %s: %v", m.source, m.target, err)
			}
		}
		c := Config{Name: "sluice0", KernelName: "sluice1", Queues: 1, MTU: 1500, HostProcSys: elsewhere + "/none"}
		if h, err := Ensure(c); err == nil || !strings.Contains(err.Error(), "writable at "+elsewhere+"/none/net") {
			t.Errorf("with /proc/sys alone: %+v, %v; want where to mount the host's", h, err)
		}
		c.HostProcSys = elsewhere
		h, err := Ensure(c)
		if err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile("/proc/sys/net/ipv4/conf/sluice1/accept_local"); err != nil || string(b) != "1\n" {
			t.Errorf("accept_local of sluice1 is %q, %v; want 1", b, err)
		}
		if err := h.Remove(); err != nil {
			t.Error(err)
		}
		if err := unix.Unmount(filepath.Join(elsewhere, "net"), unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

//go:build root

package daemon

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/internal/trusted"
	"sluice.dev/sluice/xdpprog"
)

// TestAble: a successor that is refused can start only if the kernel accepts its programs and if it
// recognises the programs on its interfaces. The check changes nothing.
func TestAble(t *testing.T) {
	runtime.LockOSThread() // never unlocked: the thread ends with the test, and its namespaces with it
	must(t, unix.Unshare(unix.CLONE_NEWNET|unix.CLONE_NEWNS))
	must(t, unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "nic"}, PeerName: "peer"}))
	nic, err := netlink.LinkByName("nic")
	must(t, err)
	must(t, netlink.LinkSetUp(nic))
	c := config.Default()
	c.Interfaces = []config.Interface{{Name: "nic", Mode: config.ModeAuto, ZeroCopy: config.ZeroCopyAuto}}
	c.StateDir, c.BPFFS = t.TempDir(), filepath.Join(t.TempDir(), "bpf")
	able := func(bpfFS string) error {
		next := *c
		next.BPFFS = bpfFS
		s := &successor{d: &Daemon{settings: &settings{inForce: &next}, log: slog.New(slog.DiscardHandler)}}
		defer s.discard()
		return s.able(t.Context())
	}
	none := func(dir string) {
		t.Helper()
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s was made: %v", dir, err)
		}
	}
	if err := able(c.BPFFS); err != nil {
		t.Errorf("beside a process without a BPF file system: %v", err)
	}
	none(c.BPFFS)

	_, err = xdpprog.EnsureBPFFS(c.BPFFS)
	must(t, err)
	defer func() { must(t, xdpprog.UnmountBPFFS(c.BPFFS)) }()
	mark := filepath.Join(c.StateDir, "bpffs")
	must(t, trusted.WriteState(mark, []byte(c.BPFFS+"\n")))
	for name, size := range map[string]uint32{"alike": 0, "whose maps have other sizes": 1000} {
		running, err := xdpprog.Load(xdpprog.Config{PinDir: filepath.Join(c.BPFFS, "sluice"), MaxFrontends: size})
		must(t, err)
		port, err := running.Attach(nic.Attrs().Index, "nic", xdpprog.Auto)
		must(t, err)
		if err := able(c.BPFFS); err != nil {
			t.Errorf("beside one %s: %v", name, err)
		}
		with(t, unix.CAP_BPF, func() { // maps, but no program
			if err := able(c.BPFFS); err == nil || !strings.Contains(err.Error(), "lacks CAP_NET_ADMIN") {
				t.Errorf("beside one %s, the kernel refuses the programs: %v", name, err)
			}
		})
		other := filepath.Join(t.TempDir(), "bpf")
		if err := able(other); !errors.Is(err, xdpprog.ErrForeign) || !strings.Contains(err.Error(), "bpfFS") {
			t.Errorf("beside one %s, with another bpfFS: %v", name, err)
		}
		none(other)
		if text, err := os.ReadFile(mark); err != nil || string(text) != c.BPFFS+"\n" {
			t.Errorf("the running process's mark is %q, %v", text, err)
		}
		must(t, port.Check())
		must(t, running.Close(true))
	}
}

// with runs do with one capability of the thread, and with CAP_DAC_OVERRIDE.
func with(t *testing.T, capability uint, do func()) {
	t.Helper()
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var has [2]unix.CapUserData
	must(t, unix.Capget(&head, &has[0]))
	rest := has
	rest[0].Effective, rest[1].Effective = 1<<unix.CAP_DAC_OVERRIDE, 0
	rest[capability/32].Effective |= 1 << (capability % 32)
	must(t, unix.Capset(&head, &rest[0]))
	defer func() { must(t, unix.Capset(&head, &has[0])) }()
	do()
}

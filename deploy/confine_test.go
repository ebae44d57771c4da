package deploy

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/host/hostlink"
)

// Environment of a process that will execute the daemon, confined as a pod is.
const (
	daemonVariable       = "SLUICE_DEPLOY_DAEMON"       // path of the binary
	capabilitiesVariable = "SLUICE_DEPLOY_CAPABILITIES" // comma-separated, without CAP_
	rootVariable         = "SLUICE_DEPLOY_ROOT"         // an empty directory in which its root directory is assembled
)

// TestMain is also the daemon's launcher: test/bed/launch starts this program, which drops the
// privileges that a container runtime drops and then executes the daemon.
func TestMain(m *testing.M) {
	if path := os.Getenv(daemonVariable); path != "" {
		runtime.LockOSThread() // capabilities and mounts belong to the thread that executes
		err := confine(strings.Split(os.Getenv(capabilitiesVariable), ","), os.Getenv(rootVariable))
		if err == nil {
			err = unix.Exec(path, append([]string{"sluice"}, os.Args[1:]...), os.Environ())
		}
		fmt.Fprintln(os.Stderr, "confined:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// capabilityBits are the numbers of linux/capability.h.
var capabilityBits = map[string]uint{
	"NET_ADMIN": unix.CAP_NET_ADMIN, "NET_RAW": unix.CAP_NET_RAW, "BPF": unix.CAP_BPF,
	"PERFMON": unix.CAP_PERFMON, "IPC_LOCK": unix.CAP_IPC_LOCK, "SYS_NICE": unix.CAP_SYS_NICE,
}

// containerMemlock is the kernel's default limit of a process, in bytes.
const containerMemlock = 8 << 20

// confine applies to this thread the confinement of unprivileged containers (OCI runtime
// specification, config-linux.md): a read-only root directory and /proc/sys, only the given
// capabilities, and no way to gain more.
func confine(capabilities []string, root string) error {
	if err := mounts(root); err != nil {
		return err
	}
	limit := unix.Rlimit{Cur: containerMemlock, Max: containerMemlock}
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil {
		return fmt.Errorf("limit locked memory: %w", err)
	}
	var keep uint64
	for _, name := range capabilities {
		bit, known := capabilityBits[name]
		if !known {
			return fmt.Errorf("no capability %q is known here", name)
		}
		keep |= 1 << bit
	}
	for bit := uintptr(0); bit <= unix.CAP_LAST_CAP; bit++ {
		if keep&(1<<bit) == 0 {
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, bit, 0, 0, 0); err != nil {
				return fmt.Errorf("drop capability %d: %w", bit, err)
			}
		}
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	low, high := uint32(keep), uint32(keep>>32)
	sets := [2]unix.CapUserData{{Effective: low, Permitted: low}, {Effective: high, Permitted: high}}
	if err := unix.Capset(&header, &sets[0]); err != nil {
		return fmt.Errorf("set capabilities: %w", err)
	}
	return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
}

// mounts gives this thread its own root directory, assembled at root: the host's directories,
// unchanged, and hostlink.HostProcSys, as the chart mounts it.
func mounts(root string) error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("unshare mounts: %w", err)
	}
	const readOnly = unix.MS_BIND | unix.MS_REMOUNT | unix.MS_RDONLY
	list := []mountCall{{"", "/", "", unix.MS_REC | unix.MS_PRIVATE}, {"", "/", "", readOnly},
		{"tmpfs", root, "tmpfs", 0}}
	entries, err := os.ReadDir("/")
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			list = append(list, mountCall{"/" + e.Name(), filepath.Join(root, e.Name()), "",
				unix.MS_BIND | unix.MS_REC})
		}
	}
	sysctls, procSys := filepath.Join(root, hostlink.HostProcSys, "net"), filepath.Join(root, "proc/sys")
	list = append(list, mountCall{"/proc/sys/net", sysctls, "", unix.MS_BIND},
		mountCall{procSys, procSys, "", unix.MS_BIND}, mountCall{"", procSys, "", readOnly},
		mountCall{"", root, "", readOnly})
	for _, m := range list {
		if err := m.do(); err != nil {
			return err
		}
	}
	if err := unix.Chroot(root); err != nil {
		return fmt.Errorf("change the root directory: %w", err)
	}
	return os.Chdir("/")
}

// mountCall is the arguments of mount(2).
type mountCall struct {
	source, target, kind string
	flags                uintptr
}

// do creates the target if it is missing, and mounts.
func (m *mountCall) do() error {
	if err := os.MkdirAll(m.target, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(m.source, m.target, m.kind, m.flags, ""); err != nil {
		return fmt.Errorf("mount %s at %s: %w", m.source, m.target, err)
	}
	return nil
}

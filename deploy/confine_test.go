package deploy

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Environment of a process that is to become the daemon, confined as a pod is.
const (
	daemonVariable       = "SLUICE_DEPLOY_DAEMON"       // path of the binary
	capabilitiesVariable = "SLUICE_DEPLOY_CAPABILITIES" // comma-separated, without CAP_
	procSysVariable      = "SLUICE_DEPLOY_PROC_SYS"     // where the host's /proc/sys/net is to be mounted, in net
)

// TestMain is also what the daemon is started through: bench/launch starts this program,
// which gives up what a container runtime takes and then executes the daemon.
func TestMain(m *testing.M) {
	if path := os.Getenv(daemonVariable); path != "" {
		runtime.LockOSThread() // capabilities and mounts are of the thread that executes
		err := confine(strings.Split(os.Getenv(capabilitiesVariable), ","), os.Getenv(procSysVariable))
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
	"PERFMON": unix.CAP_PERFMON, "IPC_LOCK": unix.CAP_IPC_LOCK,
}

// containerMemlock is the limit that the kernel gives a process by default, in bytes.
const containerMemlock = 8 << 20

// confine does to this thread what runtimes do to a container that is not privileged
// (OCI runtime specification, config-linux.md): a root directory and a /proc/sys to read
// only, no capability but the named, and none to be gained.
func confine(capabilities []string, procSys string) error {
	if err := mounts(procSys); err != nil {
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

func mounts(procSys string) error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("unshare mounts: %w", err)
	}
	readOnly := uintptr(unix.MS_BIND | unix.MS_REMOUNT | unix.MS_RDONLY)
	for _, m := range []struct {
		source, target string
		flags          uintptr
	}{
		{"", "/", unix.MS_REC | unix.MS_PRIVATE},
		{"/proc/sys/net", procSys + "/net", unix.MS_BIND},
		{"/proc/sys", "/proc/sys", unix.MS_BIND},
		{"", "/proc/sys", readOnly},
		{"", "/", readOnly},
	} {
		if err := unix.Mount(m.source, m.target, "", m.flags, ""); err != nil {
			return fmt.Errorf("mount %s at %s: %w", m.source, m.target, err)
		}
	}
	return nil
}

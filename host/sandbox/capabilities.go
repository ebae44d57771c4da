package sandbox

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/psx"
)

// Capability is one of capabilities(7).
type Capability struct {
	Bit  uint
	Name string // without CAP_
	Why  string // the daemon's use of it
}

// Kept are the capabilities that a running gateway needs, each for what happens again and again.
var Kept = []Capability{
	{unix.CAP_NET_ADMIN, "NET_ADMIN", "programs on devices, host link, routes, neighbours"},
	{unix.CAP_NET_RAW, "NET_RAW", "AF_XDP sockets of a device that comes back"},
	{unix.CAP_BPF, "BPF", "maps and programs"},
	{unix.CAP_PERFMON, "PERFMON", "programs with arithmetic on packet pointers"},
	{unix.CAP_IPC_LOCK, "IPC_LOCK", "packet memory of a device that comes back"},
	{unix.CAP_SYS_NICE, "SYS_NICE", "workers that go before others of the machine"},
}

var sysAdmin = Capability{unix.CAP_SYS_ADMIN, "SYS_ADMIN", "mounts of its own: bpfFS, or a sysfs for interfaces[].napi"}

func needed(c *Config) []Capability {
	list := append([]Capability(nil), Kept...)
	if c.Mounts {
		list = append(list, sysAdmin)
	}
	return list
}

// keepCapabilities removes all capabilities but these from all threads. It adds none.
func keepCapabilities(list []Capability) error {
	var keep uint64
	for _, c := range list {
		keep |= 1 << c.Bit
	}
	for bit := range uintptr(64) {
		if keep&(1<<bit) != 0 {
			continue
		}
		_, _, errno := psx.Syscall6(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, bit, 0, 0, 0, 0)
		if errno == unix.EINVAL || errno == unix.EPERM { // beyond the last, or without CAP_SETPCAP, as in a pod
			break
		}
		if errno != 0 {
			return fmt.Errorf("drop capability %d from the bounding set: %w", bit, errno)
		}
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return fmt.Errorf("read capabilities: %w", err)
	}
	for i := range sets {
		word := uint32(keep >> (32 * i))
		sets[i] = unix.CapUserData{Effective: sets[i].Permitted & word, Permitted: sets[i].Permitted & word}
	}
	// Capget stored this thread's id as none: 0 is each thread that makes the call.
	header = unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	// Safety: both live until the call of all threads returns; the kernel only reads them.
	_, _, errno := psx.Syscall3(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&sets[0])), 0)
	if errno != 0 {
		return errors.Join(errors.New("give up capabilities"), errno)
	}
	return nil
}

//go:build root

package sandbox

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// confineVariable makes the test's program a child that is confined, with the directory that it
// may write.
const confineVariable = "SLUICE_SANDBOX_DIRECTORY"

func TestMain(m *testing.M) {
	if dir := os.Getenv(confineVariable); dir != "" {
		if err := child(dir); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// attempt is one thing that a confined process tries.
type attempt struct {
	name string
	try  func(dir string) error
	want error // nil if it must go on working
}

func call(number uintptr, args ...uintptr) error {
	var a [6]uintptr
	copy(a[:], args)
	if _, _, errno := unix.RawSyscall6(number, a[0], a[1], a[2], a[3], a[4], a[5]); errno != 0 {
		return errno
	}
	return nil
}

func socket(family, kind, protocol int) error {
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

func path(s string) uintptr {
	p, _ := unix.BytePtrFromString(s)
	return uintptr(unsafe.Pointer(p)) // Safety: s is static, and there is no stack growth between
}

var attempts = []attempt{
	{"execve", func(string) error { return unix.Exec("/bin/true", []string{"true"}, nil) }, unix.EPERM},
	{"execveat", func(string) error { return call(unix.SYS_EXECVEAT) }, unix.EPERM},
	{"a process", func(string) error {
		_, err := os.StartProcess("/bin/true", nil, &os.ProcAttr{})
		return err
	}, unix.EPERM},
	{"fork", func(string) error { return call(unix.SYS_CLONE, uintptr(unix.SIGCHLD)) }, unix.EPERM},
	{"a namespace", func(string) error { return unix.Unshare(unix.CLONE_NEWUSER) }, unix.EPERM},
	{"another namespace", func(string) error { return unix.Setns(0, 0) }, unix.EPERM},
	{"ptrace", func(string) error { return unix.PtraceAttach(os.Getppid()) }, unix.EPERM},
	{"memory of others", func(string) error { return call(unix.SYS_PROCESS_VM_READV, uintptr(os.Getppid())) },
		unix.EPERM},
	{"a signal to others", func(string) error { return unix.Kill(os.Getppid(), 0) }, unix.EPERM},
	{"mount", func(dir string) error { return unix.Mount("tmpfs", dir, "tmpfs", 0, "") }, unix.EPERM},
	{"fsopen", func(string) error { return call(unix.SYS_FSOPEN, path("tmpfs")) }, unix.EPERM},
	{"umount", func(dir string) error { return unix.Unmount(dir, 0) }, unix.EPERM},
	{"pivot_root", func(string) error { return unix.PivotRoot("/", "/") }, unix.EPERM},
	{"chroot", unix.Chroot, unix.EPERM},
	{"a module", func(string) error { return unix.FinitModule(0, "", 0) }, unix.EPERM},
	{"a module in memory", func(string) error { return unix.InitModule(nil, "") }, unix.EPERM},
	{"kexec", func(string) error { return call(unix.SYS_KEXEC_LOAD) }, unix.EPERM},
	{"reboot", func(string) error { return call(unix.SYS_REBOOT) }, unix.EPERM},
	{"the clock", func(string) error { return unix.Settimeofday(&unix.Timeval{}) }, unix.EPERM},
	{"io_uring", func(string) error { return call(unix.SYS_IO_URING_SETUP, 1) }, unix.EPERM},
	{"perf events", func(string) error { return call(unix.SYS_PERF_EVENT_OPEN) }, unix.EPERM},
	{"keys", func(string) error { return call(unix.SYS_KEYCTL) }, unix.EPERM},
	{"page faults", func(string) error { return call(unix.SYS_USERFAULTFD) }, unix.EPERM},
	{"another user", func(string) error { return call(unix.SYS_SETUID, 1) }, unix.EPERM},
	{"capabilities again", func(string) error { return call(unix.SYS_CAPSET) }, unix.EPERM},
	{"another filter", func(string) error { return call(unix.SYS_SECCOMP) }, unix.EPERM},
	{"memory that is code", func(string) error {
		_, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_ANON)
		return err
	}, unix.EPERM},
	{"a packet socket", func(string) error { return socket(unix.AF_PACKET, unix.SOCK_RAW, 0) }, unix.EPERM},
	{"a raw socket", func(string) error { return socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP) }, unix.EPERM},
	{"a raw socket of IPv6", func(string) error { return socket(unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_ICMPV6) },
		unix.EPERM},
	{"a socket of virtual machines", func(string) error { return socket(unix.AF_VSOCK, unix.SOCK_STREAM, 0) },
		unix.EPERM},
	{"a terminal's input", func(string) error { return unix.IoctlSetInt(0, unix.TIOCSTI, 0) }, unix.EPERM},
	{"a password file", func(string) error { return open("/etc/shadow", unix.O_RDONLY) }, unix.EACCES},
	{"a program", func(string) error { return open("/bin/true", unix.O_RDONLY) }, unix.EACCES},
	{"a file beside", func(dir string) error { return open(dir+"-not", unix.O_CREAT|unix.O_WRONLY) }, unix.EACCES},
	{"a setting of the kernel", func(string) error { return open("/proc/sys/kernel/core_pattern", unix.O_WRONLY) },
		unix.EACCES},

	{"TCP", func(string) error { return socket(unix.AF_INET, unix.SOCK_STREAM, 0) }, nil},
	{"UDP", func(string) error { return socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK, 0) }, nil},
	{"netlink", func(string) error {
		return socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE)
	}, nil},
	{"AF_XDP", func(string) error { return socket(unix.AF_XDP, unix.SOCK_RAW, 0) }, nil},
	{"a server", func(string) error {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		return l.Close()
	}, nil},
	{"its own files", func(dir string) error {
		file := filepath.Join(dir, "new")
		return errors.Join(os.WriteFile(file, []byte("x"), 0o600), os.Rename(file, file+"er"), os.Remove(file+"er"))
	}, nil},
	{"the kernel's files", func(string) error { return open("/proc/self/status", unix.O_RDONLY) }, nil},
	{"threads", newThreads, nil},
	{"exact naps", func(string) error { return unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0) }, nil},
	{"scheduling", func(string) error { _, err := unix.SchedGetAttr(0, 0); return err }, nil},
}

func open(name string, flags int) error {
	fd, err := unix.Open(name, flags|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// newThreads makes threads, which must be confined as well.
func newThreads(string) error {
	var group sync.WaitGroup
	started := make(chan struct{})
	for range 8 {
		group.Go(func() { runtime.LockOSThread(); <-started })
	}
	close(started)
	group.Wait()
	s, err := read()
	if err != nil {
		return err
	}
	return s.check(Kept)
}

// child enters the sandbox beside threads that run and sleep, and tries everything on a thread that
// was there before and on one that is new.
func child(dir string) error {
	stop, old := make(chan struct{}), make(chan func())
	defer close(stop)
	ready := make(chan struct{})
	go func() {
		runtime.LockOSThread()
		close(ready)
		for f := range old {
			f()
		}
	}()
	<-ready
	for range 4 {
		go func() {
			runtime.LockOSThread()
			<-stop
		}()
	}
	state, err := Enter(Config{Files: &Files{Write: []string{dir}}})
	if err != nil {
		return err
	}
	var errs []error
	if !state.Landlock {
		errs = append(errs, errors.New(state.LandlockWhy))
	}
	var names []string
	for _, c := range Kept {
		names = append(names, c.Name)
	}
	slices.Sort(names)
	slices.Sort(state.Capabilities)
	if !slices.Equal(names, state.Capabilities) {
		errs = append(errs, fmt.Errorf("capabilities are %v, want %v", state.Capabilities, names))
	}
	all := func(thread string) {
		for _, a := range attempts {
			if err := a.try(dir); !errors.Is(err, a.want) || (a.want == nil) != (err == nil) {
				errs = append(errs, fmt.Errorf("%s thread: %s: %v, want %v", thread, a.name, err, a.want))
			}
		}
	}
	done := make(chan struct{})
	old <- func() { all("old"); close(done) }
	<-done
	done = make(chan struct{})
	go func() { runtime.LockOSThread(); all("new"); close(done) }()
	<-done
	return errors.Join(errs...)
}

// TestConfined: calls that the daemon does not use fail on threads from before and after, and calls
// that it uses succeed.
func TestConfined(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(self)
	c.Env = append(os.Environ(), confineVariable+"="+t.TempDir())
	out, err := c.CombinedOutput()
	if err != nil {
		t.Errorf("%v:\n%s", err, strings.TrimSpace(string(out)))
	}
}

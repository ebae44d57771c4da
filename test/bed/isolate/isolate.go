// Package isolate runs a program in network, mount and PID namespaces of its own, so that test
// binaries that need root run at the same time (`go test -exec`). The program sees a network with
// a loopback interface only, and empty /run, /dev/shm, /sys/fs/bpf and directory for temporary
// files. The rest of the file system, control groups, users and the host name are the machine's.
package isolate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/test/bed/scratch"
)

const (
	prefix  = "sluice-isolate-"
	tempDir = "/run/tmp" // short: paths of sockets have at most 107 bytes (unix(7))
	// stage is the environment variable that makes this program the first process of the
	// namespaces. Its value is the directory that becomes tempDir.
	stage = "SLUICE_ISOLATE"
)

// Run runs a program with arguments and returns its exit status. When it ends, all processes that
// it started are killed and its temporary files are removed. It needs root.
func Run(ctx context.Context, argv []string, stdout, stderr io.Writer) (status int, err error) {
	temporary, err := scratch.Temporary(prefix)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(temporary)) }()
	c := exec.CommandContext(ctx, "/proc/self/exe", argv...)
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, stdout, stderr
	c.Env = append(os.Environ(), stage+"="+temporary)
	c.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWPID,
		Pdeathsig:  syscall.SIGKILL, // the kernel then kills all processes of the PID namespace
	}
	runtime.LockOSThread() // Pdeathsig is sent when the thread that started the process ends
	return exitStatus(c.Run())
}

// exitStatus separates the exit status of a program from errors of starting it. A program that a
// signal ended has the status that a shell gives it.
func exitStatus(err error) (int, error) {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return 0, err
	}
	if w, ok := exit.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		return 128 + int(w.Signal()), nil
	}
	return exit.ExitCode(), nil
}

// Called reports whether Run started this process. Then Main has to be called.
func Called() bool { return os.Getenv(stage) != "" && os.Getpid() == 1 }

// Main is the first process of the namespaces. It prepares them, runs the program of its arguments
// and waits for processes without a parent. It does not return.
func Main() {
	status, err := first(os.Getenv(stage), os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "isolate:", err)
		status = 1
	}
	os.Exit(status)
}

func first(temporary string, argv []string) (int, error) {
	if err := errors.Join(os.Unsetenv(stage), os.Setenv("TMPDIR", tempDir)); err != nil {
		return 0, err
	}
	if err := prepare(temporary); err != nil {
		return 0, err
	}
	program, err := exec.LookPath(argv[0])
	if err != nil {
		return 0, err
	}
	p, err := os.StartProcess(program, argv, &os.ProcAttr{Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}})
	if err != nil {
		return 0, err
	}
	for {
		var w syscall.WaitStatus
		switch pid, err := syscall.Wait4(-1, &w, 0, nil); {
		case errors.Is(err, syscall.EINTR) || err == nil && pid != p.Pid:
		case err != nil:
			return 0, fmt.Errorf("wait for %s: %w", program, err)
		case w.Signaled():
			return 128 + int(w.Signal()), nil
		default:
			return w.ExitStatus(), nil
		}
	}
}

// prepare mounts the file systems that belong to the namespaces, and sets the loopback interface
// up.
func prepare(temporary string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	files, err := os.Open(temporary) // the mount at /run may cover its path
	if err != nil {
		return fmt.Errorf("directory for temporary files: %w", err)
	}
	defer files.Close()
	if err := errors.Join(mount("proc", "/proc", ""), mountSys(temporary), mount("bpf", "/sys/fs/bpf", "mode=700"),
		mount("tmpfs", "/dev/shm", "mode=1777"), mount("tmpfs", "/run", "mode=755")); err != nil {
		return err
	}
	if err := errors.Join(os.Mkdir(tempDir, 0o700),
		unix.Mount(fmt.Sprintf("/proc/self/fd/%d", files.Fd()), tempDir, "", unix.MS_BIND, "")); err != nil {
		return fmt.Errorf("directory for temporary files: %w", err)
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("loopback interface: %w", err)
	}
	return netlink.LinkSetUp(lo)
}

func mount(kind, target, options string) error {
	if err := unix.Mount(kind, target, kind, unix.MS_NOSUID, options); err != nil {
		return fmt.Errorf("mount %s: %w", target, err)
	}
	return nil
}

// mountSys mounts a /sys that shows the interfaces of this network namespace, and moves the
// machine's control groups, which are mounted below the covered one, into it.
func mountSys(temporary string) error {
	const groups = "/sys/fs/cgroup"
	kept := filepath.Join(temporary, "cgroup")
	if err := errors.Join(os.Mkdir(kept, 0o700),
		unix.Mount(groups, kept, "", unix.MS_BIND|unix.MS_REC, "")); err != nil {
		return fmt.Errorf("keep %s: %w", groups, err)
	}
	if err := mount("sysfs", "/sys", ""); err != nil {
		return err
	}
	if err := errors.Join(unix.Mount(kept, groups, "", unix.MS_MOVE, ""), os.Remove(kept)); err != nil {
		return fmt.Errorf("move %s: %w", groups, err)
	}
	return nil
}

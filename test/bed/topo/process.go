package topo

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// environmentTag marks the processes of a network, with its ID.
const environmentTag = "SLUICE_TOPO"

// Command is a process to start on a host.
type Command struct {
	Path           string
	Args           []string // without the name of the program
	Env            []string // added to this process's environment
	Dir            string
	Stdout, Stderr io.Writer
	// OwnMounts gives the process a mount namespace of its own, in which /sys shows
	// the host's interfaces and /sys/fs/bpf is an empty BPF file system. Without it
	// /sys shows the interfaces of this process, in any network namespace.
	OwnMounts bool
	// OwnSession starts the process as a service manager does: it leads a session, by which the
	// kernel schedules it (autogroup). Without it the process belongs to this one's session.
	OwnSession bool
}

// Process runs on a host until it ends, Stop, or the network's Close. It is killed
// if this process dies.
type Process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended
	err  error         // valid after done
}

// Start starts a process on the host.
func (h *Host) Start(c Command) (*Process, error) {
	p := &Process{cmd: exec.Command(c.Path, c.Args...), done: make(chan struct{})}
	p.cmd.Env = append(append(os.Environ(), c.Env...), environmentTag+"="+h.net.ID)
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = c.Dir, c.Stdout, c.Stderr
	p.cmd.WaitDelay = time.Second // for writers that a grandchild keeps open
	p.cmd.SysProcAttr = &syscall.SysProcAttr{
		// So that Stop reaches all descendants, and ^C does not reach them before us. A process
		// that leads a session leads a group, too.
		Setpgid: !c.OwnSession, Setsid: c.OwnSession,
		// Sent when the thread that started it ends: the goroutine below stays on
		// that thread until the process has ended.
		Pdeathsig: syscall.SIGKILL,
	}
	h.net.started.Store(true)
	started := make(chan error, 1)
	go func() {
		defer close(p.done)
		runtime.LockOSThread() // and never unlock: the thread ends with the goroutine
		if p.err = p.start(h.ns, c.OwnMounts); p.err != nil {
			started <- p.err
			return
		}
		started <- nil
		p.err = p.cmd.Wait()
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("%s: start %s: %w", h.Name, c.Path, err)
	}
	h.net.onClose(func() error { return p.Stop(5 * time.Second) })
	return p, nil
}

// start starts the process from this thread, whose namespaces it inherits.
func (p *Process) start(ns *namespace, ownMounts bool) error {
	if err := unix.Setns(int(ns.file.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter network namespace: %w", err)
	}
	if ownMounts {
		if err := mountOwn(); err != nil {
			return err
		}
	}
	return p.cmd.Start()
}

// mountOwn gives the calling thread its own view of /sys, as ip-netns(8) does.
func mountOwn() error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("unshare mounts: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("sysfs", "/sys", "sysfs", 0, ""); err != nil {
		return fmt.Errorf("mount /sys: %w", err)
	}
	if err := unix.Mount("bpf", "/sys/fs/bpf", "bpf", 0, ""); err != nil {
		return fmt.Errorf("mount /sys/fs/bpf: %w", err)
	}
	return nil
}

// PID is the process's number.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Signal sends a signal to the process.
func (p *Process) Signal(s os.Signal) error { return p.cmd.Process.Signal(s) }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err is how the process ended, as exec.Cmd.Wait says; nil while it runs.
func (p *Process) Err() error {
	select {
	case <-p.done:
		return p.err
	default:
		return nil
	}
}

// Stop asks the process and its descendants to end, and kills them after the grace. A process that
// ends because it was asked is no error.
func (p *Process) Stop(grace time.Duration) error {
	for _, step := range [...]struct {
		signal syscall.Signal
		wait   time.Duration
	}{{syscall.SIGTERM, grace}, {syscall.SIGKILL, 5 * time.Second}} {
		select {
		case <-p.done:
			return nil
		default:
		}
		if err := syscall.Kill(-p.PID(), step.signal); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("signal process %d: %w", p.PID(), err)
		}
		select {
		case <-p.done:
			return nil
		case <-time.After(step.wait):
		}
	}
	return fmt.Errorf("process %d does not die", p.PID())
}

// endProcesses kills what processes of the network started and left behind, and
// waits until it is gone. They are found by the network's ID in their environment.
func (n *Net) endProcesses() error {
	var left []int
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if left = processesWith(environmentTag + "=" + n.ID); len(left) == 0 {
			return nil
		}
		for _, pid := range left {
			_ = syscall.Kill(pid, syscall.SIGKILL) // gone in the meantime is as well
		}
	}
	return fmt.Errorf("processes do not die: %v", left)
}

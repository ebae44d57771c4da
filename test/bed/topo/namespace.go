package topo

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// namespace is a network namespace, held by a file descriptor.
type namespace struct {
	file *os.File
	name string // in /run/netns; empty if anonymous
}

// newNamespace makes a network namespace, bound to a name if there is one.
func newNamespace(name string) (*namespace, error) {
	ns := &namespace{name: name}
	err := onOwnThread(func() error {
		if name != "" {
			if err := mountNames(); err != nil {
				return err
			}
			h, err := netns.NewNamed(name)
			if err != nil {
				return fmt.Errorf("create network namespace %s: %w", name, err)
			}
			ns.file = os.NewFile(uintptr(h), "netns:"+name)
			return nil
		}
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("create network namespace (CAP_SYS_ADMIN is needed): %w", err)
		}
		f, err := currentNamespace()
		ns.file = f
		return err
	})
	if err != nil {
		return nil, err
	}
	return ns, nil
}

// mountNames makes the directory of names a shared mount of its own, as ip-netns(8) expects. If it
// is none, the next `ip netns add` of anybody binds the directory, with all names in it, onto
// itself. The lower mount of each name is then out of reach, and its file cannot be removed
// (EBUSY).
func mountNames() error {
	if err := os.MkdirAll(netnsDir, 0o755); err != nil {
		return err
	}
	dir, err := os.Open(netnsDir)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil { // ip netns takes the same lock
		return fmt.Errorf("lock %s: %w", netnsDir, err)
	}
	err = unix.Mount("", netnsDir, "", unix.MS_SHARED|unix.MS_REC, "")
	if errors.Is(err, unix.EINVAL) { // no mount
		if err = unix.Mount(netnsDir, netnsDir, "", unix.MS_BIND|unix.MS_REC, ""); err == nil {
			err = unix.Mount("", netnsDir, "", unix.MS_SHARED|unix.MS_REC, "")
		}
	}
	if err != nil {
		return fmt.Errorf("make %s a shared mount: %w", netnsDir, err)
	}
	return nil
}

func currentNamespace() (*os.File, error) { return os.Open("/proc/thread-self/ns/net") }

// run calls f on a thread that is in the namespace.
func (ns *namespace) run(f func() error) error {
	return onOwnThread(func() error {
		if err := unix.Setns(int(ns.file.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter network namespace: %w", err)
		}
		return f()
	})
}

func (ns *namespace) close() error {
	if ns.file == nil {
		return nil
	}
	err := ns.file.Close()
	ns.file = nil
	if ns.name != "" {
		err = errors.Join(err, netns.DeleteNamed(ns.name))
	}
	return err
}

// errExited is returned where a function ended its goroutine (t.FailNow does).
var errExited = errors.New("the function ended its goroutine instead of returning")

// onOwnThread calls f on a thread of its own and brings that thread back to the
// namespace it came from. A thread that cannot be brought back is given up: it ends
// with its goroutine. A panic of f becomes a panic of the caller, so that the
// caller's deferred Close still runs.
func onOwnThread(f func() error) error {
	type outcome struct {
		err      error
		panicked any
	}
	done := make(chan outcome, 1)
	go func() {
		o := outcome{err: errExited}
		runtime.LockOSThread()
		home, err := currentNamespace()
		if err != nil {
			done <- outcome{err: err}
			return
		}
		defer func() {
			o.panicked = recover()
			if unix.Setns(int(home.Fd()), unix.CLONE_NEWNET) == nil {
				runtime.UnlockOSThread()
			}
			home.Close()
			done <- o
		}()
		o.err = f()
	}()
	o := <-done
	if o.panicked != nil {
		panic(o.panicked)
	}
	return o.err
}

//go:build root

package neigh

import (
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

func newSpace(t *testing.T) *space {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("needs root: network namespaces")
	}
	s := &space{t: t, work: make(chan func())}
	ready := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlock: the thread ends with the namespace
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			s.fd, err = unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		}
		ready <- err
		for f := range s.work {
			f()
		}
	}()
	if err := <-ready; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		close(s.work)
		unix.Close(s.fd)
	})
	s.do(func() error { return s.up("lo") })
	return s
}

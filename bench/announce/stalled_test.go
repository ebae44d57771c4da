//go:build root

package announce

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/bench/machine"
	"sluice.dev/sluice/control/announce/view"
	"sluice.dev/sluice/internal/heartbeat"
)

// hangs mounts a file system over a directory, as a process sees it, that answers nothing: whoever
// reads the directory blocks in the kernel. The result ends that.
func hangs(t *testing.T, pid int, dir string) (release func()) {
	t.Helper()
	// A FUSE server that does not answer FUSE_INIT (fs/fuse/dev.c): all requests wait for that.
	server, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	must(t, err)
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", server.Fd())
	must(t, inMounts(pid, func() error { return unix.Mount("hangs", dir, "fuse", 0, options) }))
	released := false
	release = func() {
		if !released {
			released = true
			unmount := func() error { return unix.Unmount(dir, unix.MNT_DETACH) }
			check(t, errors.Join(server.Close(), inMounts(pid, unmount)))
		}
	}
	t.Cleanup(release)
	return release
}

// inMounts calls f in the mount namespace of a process, on a thread that ends with it.
func inMounts(pid int, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked
		mounts, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", pid))
		if err == nil {
			defer mounts.Close()
			err = unix.Unshare(unix.CLONE_FS)
		}
		if err == nil {
			err = unix.Setns(int(mounts.Fd()), unix.CLONE_NEWNS)
		}
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

// TestStalled: of two gateways one has a loop that has stalled, the one that reads manifests from a
// file system that does not answer. Within 15 s and what an impairment takes it is not ready, and
// the router prefers the other gateway; connections through either one work. Where both have
// stalled, both have the VIP again. Once its loop goes on, all is as before.
func TestStalled(t *testing.T) {
	t.Parallel()
	s := newRouted(t, "bird", 1)
	s.patience = impairedPatience
	one, other := s.gateways[0], s.gateways[1]
	vip, _ := near(0)
	s.by(vip, 30*time.Second, one, other)
	probe := func(m *member, what string) error {
		_, err := m.gate.Command(s.ctx, "probe", what)
		return err
	}
	ready := func(m *member, is bool) {
		t.Helper()
		s.within(30*time.Second, fmt.Sprintf("%s to be ready: %t", m.name, is), func() error {
			if err := probe(m, "ready"); (err == nil) != is {
				return fmt.Errorf("probe ready: %v", err)
			}
			return nil
		})
	}
	ready(one, true)
	// A scan without a change follows within 10 s.
	most := 10*time.Second + heartbeat.DefaultBounds.Unready + impairedMost
	release := hangs(t, one.gate.PID(), one.gate.Manifests())
	took := s.by(vip, most, other)
	report(t, "a gateway with a loop that has stalled, until another one is preferred", most, []time.Duration{took})
	s.said(one, vip, view.LastResort, "reader of manifests: stalled since")
	ready(one, false)
	must(t, probe(one, "live")) // for a minute
	says, err := one.gate.Command(s.ctx, "status")
	if err != nil || !strings.Contains(says, "reader of manifests: stalled") {
		t.Errorf("status: %v\n%s", err, says)
	}
	must(t, s.connect(vip, machine.Slower(5*time.Second)))

	releaseOther := hangs(t, other.gate.PID(), other.gate.Manifests())
	s.by(vip, most, one, other)
	must(t, s.connect(vip, machine.Slower(5*time.Second)))
	releaseOther()
	release()
	ready(one, true)
	ready(other, true)
	s.within(30*time.Second, "it is announced as before", func() error {
		l, err := one.line(vip)
		if err == nil && l.State != view.Announced {
			err = fmt.Errorf("%+v", l)
		}
		return err
	})
}

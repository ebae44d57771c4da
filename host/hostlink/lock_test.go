//go:build root

package hostlink

import (
	"bufio"
	"errors"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TestSecondInstance: a second process of the namespace gets ErrInUse while the first one runs, and
// adopts the pair when the first was killed.
func TestSecondInstance(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		first := exec.Command(os.Args[0])
		first.Env = append(os.Environ(), holdEnv+"=1")
		out := must[io.ReadCloser](t)(first.StdoutPipe())
		must[io.WriteCloser](t)(first.StdinPipe()) // closed at the end of this process, which ends the child
		if err := first.Start(); err != nil {
			t.Fatal(err)
		}
		defer first.Process.Kill()
		if line, err := bufio.NewReader(out).ReadString('\n'); line != held {
			t.Fatalf("the first instance writes %q, %v", line, err)
		}
		c := testConfig()
		c.MTU = 1400
		if _, err := Ensure(c); !errors.Is(err, ErrInUse) {
			t.Errorf("a second instance: %v", err)
		}
		if mtu := must[netlink.Link](t)(netlink.LinkByName("sluice0")).Attrs().MTU; mtu != 1500 {
			t.Errorf("the second instance changed the MTU to %d", mtu)
		}
		c.Name, c.KernelName, c.Addresses = "other0", "other1", []netip.Prefix{netip.MustParsePrefix("169.254.79.1/30")}
		other := must[*HostLink](t)(Ensure(c))
		if err := other.Remove(); err != nil {
			t.Error(err)
		}
		if err := first.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = first.Wait()
		h := must[*HostLink](t)(Ensure(testConfig()))
		if h.Created {
			t.Error("the pair of the killed process was not adopted")
		}
		if err := h.Remove(); err != nil {
			t.Error(err)
		}
		if h.lock != nil {
			t.Error("Remove keeps the lock")
		}
		must[*HostLink](t)(Ensure(testConfig())).Remove()
	})
}

// TestLockOfAnotherUser: a user of the node that has bound the lock's name does not prevent the
// gateway from starting.
func TestLockOfAnotherUser(t *testing.T) {
	for uid, want := range map[int]error{0: ErrInUse, 12345: nil} {
		inNamespace(t, func(t *testing.T) {
			holdName(t, uid)
			h, err := Ensure(testConfig())
			if !errors.Is(err, want) {
				t.Errorf("the name is bound by user %d: %v, want %v", uid, err, want)
			}
			if err != nil {
				return
			}
			if h.lock != nil {
				t.Error("it has a lock that another user has")
			}
			if err := h.Remove(); err != nil {
				t.Error(err)
			}
		})
	}
}

// holdName starts a process that has a socket with the name of the lock, created by the given user.
func holdName(t *testing.T, uid int) {
	t.Helper()
	if err := unix.Setfsuid(uid); err != nil { // for this thread
		t.Fatal(err)
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err := errors.Join(err, unix.Setfsuid(0)); err != nil {
		t.Fatal(err)
	}
	socket := os.NewFile(uintptr(fd), "lock")
	defer socket.Close()
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: lockName("sluice0")}); err != nil {
		t.Fatal(err)
	}
	other := exec.Command("sleep", "60")
	other.ExtraFiles = []*os.File{socket}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = other.Process.Kill()
		_ = other.Wait()
	})
}

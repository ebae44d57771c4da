//go:build root

package isolate

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if Called() {
		Main()
	}
	os.Exit(m.Run())
}

// shell runs a script in namespaces of its own and returns what it writes.
func shell(t *testing.T, script string, args ...string) (output string, status int) {
	t.Helper()
	var out strings.Builder
	status, err := Run(t.Context(), append([]string{"/bin/sh", "-ec", script, "sh"}, args...), &out, &out)
	if err != nil {
		t.Fatal(err)
	}
	return out.String(), status
}

func TestEmpty(t *testing.T) {
	pin, err := os.MkdirTemp("/dev/shm", "sluice-isolate-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(pin) })
	out, status := shell(t, `ls /run /dev/shm /run/tmp /sys/class/net; stat -f -c %T /sys/fs/bpf; echo $TMPDIR`)
	want := "/dev/shm:\n\n/run:\ntmp\n\n/run/tmp:\n\n/sys/class/net:\nlo\n" + "bpf_fs\n/run/tmp\n"
	if out != want || status != 0 {
		t.Errorf("status %d, a program sees:\n%s\nwant:\n%s", status, out, want)
	}
	outside, err := os.ReadDir("/sys/fs/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	if out, _ := shell(t, "ls -A /sys/fs/cgroup | wc -l"); out != fmt.Sprintf("%d\n", len(outside)) {
		t.Errorf("a program sees %q control groups, want %d", out, len(outside))
	}
}

// TestLoopback: the loopback interface is up, and has no sockets of other programs.
func TestLoopback(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	out, status := shell(t, `[ "$(cat /sys/class/net/lo/carrier)" = 1 ]; cat /proc/net/tcp`)
	if port := fmt.Sprintf(":%04X ", l.Addr().(*net.TCPAddr).Port); status != 0 || strings.Contains(out, port) {
		t.Errorf("status %d; the socket of another namespace is there: %s", status, out)
	}
}

func TestStatus(t *testing.T) {
	for script, want := range map[string]int{
		"exit 0": 0, "exit 7": 7, "kill -9 $$": 128 + int(syscall.SIGKILL), "( kill -9 $$ ) & exec sleep 60": 137,
	} {
		if _, status := shell(t, script); status != want {
			t.Errorf("%s: status %d, want %d", script, status, want)
		}
	}
	if status, err := Run(t.Context(), []string{"/no/such/program"}, nil, nil); status == 0 && err == nil {
		t.Error("a program that does not exist has run")
	}
}

// TestNothingIsLeft: a process without a parent, which ignores signals, ends with the program, and
// temporary files are removed.
func TestNothingIsLeft(t *testing.T) {
	mark := fmt.Sprintf("%d.%d", 100000+os.Getpid(), time.Now().UnixNano()%1e9)
	out, status := shell(t, `echo file >$TMPDIR/file
		(trap "" TERM HUP; exec setsid sleep "$1") >/dev/null 2>&1 &
		echo under way`, mark)
	if out != "under way\n" || status != 0 {
		t.Fatalf("%q, status %d", out, status)
	}
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline") // the pattern is well-formed
	for _, f := range files {
		if text, err := os.ReadFile(f); err == nil && strings.Contains(string(text), mark) {
			t.Errorf("%s is left: %q", f, text)
		}
	}
	left, err := filepath.Glob(filepath.Join(os.TempDir(), fmt.Sprintf("%s%d-*", prefix, os.Getpid())))
	if err != nil || len(left) > 0 {
		t.Errorf("temporary files are left: %v, %v", left, err)
	}
}

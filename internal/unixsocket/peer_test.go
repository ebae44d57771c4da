package unixsocket

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// listenAt is the environment variable with the path on which the child process of this test
// listens.
const listenAt = "UNIXSOCKET_LISTEN_AT"

// TestWhySilent distinguishes a stopped process from a running one.
func TestWhySilent(t *testing.T) {
	if path := os.Getenv(listenAt); path != "" {
		if _, err := net.Listen("unix", path); err != nil {
			t.Fatal(err)
		}
		select {}
	}
	path := filepath.Join(t.TempDir(), "s")
	c := exec.Command(os.Args[0], "-test.run=^TestWhySilent$")
	c.Env = append(os.Environ(), listenAt+"="+path)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = c.Process.Kill() // it does not end by itself
		_ = c.Wait()
	}()
	until(t, func() string { return WhySilent(path) }, fmt.Sprintf("process %d runs", c.Process.Pid))
	if err := c.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	until(t, func() string { return WhySilent(path) }, fmt.Sprintf("`kill -CONT %d`", c.Process.Pid))
}

func until(t *testing.T, says func() string, want string) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !strings.Contains(says(), want); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%q, want %q", says(), want)
		}
	}
}

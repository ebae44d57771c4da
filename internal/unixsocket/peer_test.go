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

// listenAt is the environment variable by which a process of this test knows where to listen.
const listenAt = "UNIXSOCKET_LISTEN_AT"

// TestWhySilent: a process that is stopped is told from one that runs.
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
		_ = c.Process.Kill() // it runs for ever, and ends in no other way
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

//go:build root

package cli

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"sluice.dev/sluice/serve/status"
)

// Environment of a process of a PID namespace of its own, as a probe in a container is.
const (
	containerVariable = "SLUICE_PROBE_DIRECTORY"
	waitsVariable     = "SLUICE_PROBE_WAITS"
)

// TestOwnSocket: a probe asks the process of its own container. Where the status socket is another
// container's, that is the process that waits. Where both sockets are, the probe fails.
func TestOwnSocket(t *testing.T) {
	listen := func(t *testing.T, path string) net.Listener {
		l, err := status.Listen(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		return l
	}
	if dir := os.Getenv(containerVariable); dir != "" {
		if os.Getenv(waitsVariable) != "" {
			listen(t, filepath.Join(dir, "waiting.sock"))
		}
		socket, err := ownSocket(filepath.Join(dir, "status.sock"))
		t.Logf("probed: %s, %v", filepath.Base(socket), err)
		return
	}
	for _, c := range []struct {
		name                   string
		forwards, waits, third bool // the process of the container waits; another one does
		want                   string
	}{
		{"nobody forwards", false, true, false, "probed: status.sock, <nil>"},
		{"this container's waits", true, true, false, "probed: waiting.sock, <nil>"},
		{"this container's has no socket", true, false, false, "probed: waiting.sock, <nil>"},
		{"a third one waits", true, false, true, "probed: ., processes of other containers have "},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			if c.forwards {
				listen(t, filepath.Join(dir, "status.sock"))
			}
			if c.third {
				listen(t, filepath.Join(dir, "waiting.sock"))
			}
			// Where all processes are seen it is the socket that was named.
			named := filepath.Join(dir, "status.sock")
			if got, err := ownSocket(named); got != named || err != nil {
				t.Errorf("on the host: %s, %v", got, err)
			}
			cmd := exec.Command("/proc/self/exe", "-test.run=^TestOwnSocket$", "-test.v")
			cmd.Env = append(os.Environ(), containerVariable+"="+dir)
			if c.waits {
				cmd.Env = append(cmd.Env, waitsVariable+"=1")
			}
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
			out, err := cmd.CombinedOutput()
			if err != nil || !strings.Contains(string(out), c.want) {
				t.Errorf("want %q, %v:\n%s", c.want, err, out)
			}
		})
	}
}

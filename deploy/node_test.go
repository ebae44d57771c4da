//go:build root

package deploy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/test/bed/topo"
)

// TestConfinedNode: with the privileges and mounts of its pod, `sluice node run` makes the tunnel,
// becomes ready, corrects a sysctl, and removes the tunnel when the pod ends.
func TestConfinedNode(t *testing.T) {
	pod := readNode(t).Spec.Template.Spec
	c := pod.Containers[0]
	var capabilities []string
	for _, name := range c.SecurityContext.Capabilities.Add {
		capabilities = append(capabilities, string(name))
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program := buildDaemon(t)
	node, err := topo.NewSpace()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { node.Close() })
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	logged := func() string { b, _ := os.ReadFile(log.Name()); return string(b) }
	confined := func(ctx context.Context, args ...string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, self, args...)
		cmd.Env = append(os.Environ(), daemonVariable+"="+program, rootVariable+"="+t.TempDir(),
			capabilitiesVariable+"="+strings.Join(capabilities, ","))
		return cmd
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	run := confined(ctx, c.Args...)
	run.Stdout, run.Stderr = log, log
	if err := node.Run(run.Start); err != nil {
		t.Fatal(err)
	}
	ended := false
	end := func() error {
		ended = true
		return errors.Join(run.Process.Signal(unix.SIGTERM), run.Wait())
	}
	t.Cleanup(func() {
		if !ended {
			end()
		}
	})
	ready := func(ctx context.Context) error {
		return node.Run(func() error {
			out, err := confined(ctx, c.ReadinessProbe.Exec.Command[1:]...).CombinedOutput()
			if err != nil {
				err = errors.New(string(out))
			}
			return err
		})
	}
	if err := topo.Until(ctx, 20*time.Second, 100*time.Millisecond, ready); err != nil {
		t.Fatalf("not ready: %v\n%s", err, logged())
	}
	const filter = "/proc/sys/net/ipv4/conf/sluice-dsr/rp_filter"
	strict := func(ctx context.Context) error { // run may correct it before the probe looks
		if err := node.Run(func() error { return os.WriteFile(filter, []byte("1"), 0) }); err != nil {
			t.Fatal(err)
		}
		if err := ready(ctx); err == nil || !strings.Contains(err.Error(), "1 (strict)") {
			return fmt.Errorf("the probe says %v", err)
		}
		return nil
	}
	if err := topo.Until(ctx, 20*time.Second, 100*time.Millisecond, strict); err != nil {
		t.Errorf("with strict rp_filter: %v", err)
	}
	if err := topo.Until(ctx, 20*time.Second, 100*time.Millisecond, ready); err != nil {
		t.Errorf("not corrected: %v", err)
	}
	if err := end(); err != nil {
		t.Errorf("%v\n%s", err, logged())
	}
	err = node.Run(func() error { _, err := os.Stat(filter); return err })
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the device is left behind: %v\n%s", err, logged())
	}
}

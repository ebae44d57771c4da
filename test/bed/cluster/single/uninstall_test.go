//go:build root

package single

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// leftOnNode is what a gateway has left on its node.
func (s *scenario) leftOnNode(ctx context.Context) (left []string) {
	s.t.Helper()
	for _, dir := range []string{"/run/sluice", "/sys/fs/bpf"} {
		names, _ := filepath.Glob(s.Gateway.Path(dir) + "/*") // the pattern is well-formed
		for _, name := range names {
			// A BPF file system has these two of the kernel's own (kernel/bpf/preload).
			if base := filepath.Base(name); base != "maps.debug" && base != "progs.debug" {
				left = append(left, filepath.Join(dir, base))
			}
		}
	}
	links, err := s.Gateway.Shell(ctx, "ip -o -d link show")
	s.must(err)
	for line := range strings.Lines(links) {
		if strings.Contains(line, "sluice") || strings.Contains(line, "xdp") {
			left = append(left, strings.TrimSpace(line))
		}
	}
	return left
}

// documented are the commands in docs/operations.md of the section about a gateway that is none any
// more.
func (s *scenario) documented() string {
	s.t.Helper()
	text, err := os.ReadFile("../../../../docs/operations.md")
	s.must(err)
	_, after, ok := strings.Cut(string(text), "**No gateway any more.**")
	_, block, ok2 := strings.Cut(after, "```\n")
	block, _, ok3 := strings.Cut(block, "```")
	if !ok || !ok2 || !ok3 {
		s.t.Fatal("docs/operations.md has no commands after \"No gateway any more.\"")
	}
	return block
}

// remove is `helm uninstall`, and waits until the pod is gone.
func (s *scenario) remove(ctx context.Context) {
	s.t.Helper()
	// The Namespace is not the release's: helm uninstall leaves it.
	_, rest, ok := strings.Cut(string(s.manifests), "\n---\n")
	if !ok {
		s.t.Fatal("the manifests are one document")
	}
	s.must(s.Remove(ctx, []byte(rest)))
	s.must(Eventually(ctx, patience, func(ctx context.Context) error {
		list, err := s.Client().CoreV1().Pods(ReleaseNamespace).List(ctx, metav1.ListOptions{})
		if err == nil && len(list.Items) > 0 {
			err = fmt.Errorf("pod %s is still there", list.Items[0].Name)
		}
		return err
	}))
}

// uninstall is `helm uninstall`: the gateway sees that its DaemonSet is gone, and leaves a clean
// node in spite of drain.handOver.
func (s *scenario) uninstall(ctx context.Context) {
	s.remove(ctx)
	s.wantClean(ctx, "after the DaemonSet is gone")
	s.silent(ctx)
}

// uninstallByHand installs again, and removes the release while the daemon is dead: all that stays
// goes by the documented command.
func (s *scenario) uninstallByHand(ctx context.Context) {
	s.apply(ctx, "b")
	s.must(s.Installed(ctx, patience))
	s.served(ctx, "web")
	s.counted(ctx, "web", "installed again", 20, func() string {
		return s.datagrams(ctx, netipAddrs(webVIP4, webVIP6),
			20)
	})
	s.copyFromPod("/bin/sluice", "/usr/local/bin/sluice", 0o755)
	s.copyFromPod("/etc/sluice/gateway.yaml", "/usr/local/etc/gateway.yaml", 0o600)
	s.killForGood(ctx)
	s.remove(ctx)
	left := s.leftOnNode(ctx)
	if len(left) == 0 {
		s.t.Fatal("the daemon left nothing, so nothing can be cleaned up")
	}
	s.t.Logf("the daemon left %d things", len(left))
	out, err := s.Gateway.Shell(ctx, "cd /usr/local/etc; PATH=$PATH:/usr/local/bin\n"+s.documented())
	s.must(err)
	s.t.Log(out)
	s.wantClean(ctx, "after the documented command")
	s.silent(ctx)
}

// copyFromPod gives the gateway's node a file of its pod.
func (s *scenario) copyFromPod(from, to string, mode os.FileMode) {
	s.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/root%s", s.daemon(), from))
	s.must(err)
	to = s.Gateway.Path(to)
	s.must(os.MkdirAll(filepath.Dir(to), 0o755))
	s.must(os.WriteFile(to, text, mode))
}

// killForGood kills the daemon until the kubelet waits before it starts it again.
func (s *scenario) killForGood(ctx context.Context) {
	s.t.Helper()
	s.must(Eventually(ctx, patience, func(ctx context.Context) error {
		pod, err := s.GatewayPod(ctx)
		if err != nil {
			return err
		}
		if len(pod.Status.ContainerStatuses) == 1 && pod.Status.ContainerStatuses[0].State.Waiting != nil {
			return nil
		}
		if pid, ok := s.findDaemon(); ok {
			err = syscall.Kill(pid, syscall.SIGKILL)
		}
		return errors.Join(err, errors.New("the daemon is started again and again"))
	}))
}

// wantClean waits a little: the kernel detaches what was pinned after the pin is gone
// (bpf_link_put, kernel/bpf/syscall.c).
func (s *scenario) wantClean(ctx context.Context, when string) {
	s.t.Helper()
	s.must(Eventually(ctx, 30*time.Second, func(ctx context.Context) error {
		if left := s.leftOnNode(ctx); len(left) > 0 {
			return fmt.Errorf("%s the node has %q", when, left)
		}
		return nil
	}))
	s.t.Logf("%s the node has no sluice0, no XDP program, no pin, nothing in /run/sluice", when)
}

// netipAddrs are addresses with the Services' port.
func netipAddrs(ips ...string) (list []netip.AddrPort) {
	for _, ip := range ips {
		list = append(list, at(ip, webPort))
	}
	return list
}

//go:build root

package single

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// daemon finds the daemon's process on the machine: the one of the gateway's node whose program is
// /bin/sluice.
func (s *scenario) daemon() (pid int) {
	s.t.Helper()
	pid, ok := s.findDaemon()
	if !ok {
		s.t.Fatal("no process of /bin/sluice runs on the gateway's node, or several do")
	}
	return pid
}

// findDaemon is daemon, where there may be none.
func (s *scenario) findDaemon() (pid int, ok bool) {
	s.t.Helper()
	group, _ := filepath.Glob("/proc/[0-9]*/exe") // the pattern is well-formed
	space, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", s.Gateway.PID()))
	s.must(err)
	var found []int
	for _, exe := range group {
		n, _ := strconv.Atoi(strings.Split(exe, "/")[2])
		if path, err := os.Readlink(exe); err != nil || path != "/bin/sluice" {
			continue
		}
		// A probe is the same program.
		if line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", n)); err != nil || !strings.Contains(string(line),
			"\x00run\x00") {
			continue
		}
		if own, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", n)); err == nil && own == space {
			found = append(found, n)
		}
	}
	if len(found) != 1 {
		return 0, false
	}
	return found[0], true
}

// capabilityNames are by number (linux/capability.h), of those that the chart names.
var capabilityNames = map[int]string{
	unix.CAP_NET_ADMIN: "NET_ADMIN", unix.CAP_NET_RAW: "NET_RAW", unix.CAP_BPF: "BPF", unix.CAP_PERFMON: "PERFMON",
	unix.CAP_IPC_LOCK: "IPC_LOCK", unix.CAP_SYS_NICE: "SYS_NICE",
}

// capabilities reads what the kernel lets the daemon do (proc_pid_status(5)).
func (s *scenario) capabilities(context.Context) {
	fields := map[string]string{}
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", s.daemon()))
	s.must(err)
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if name, value, ok := strings.Cut(lines.Text(), ":"); ok {
			fields[name] = strings.TrimSpace(value)
		}
	}
	want := slices.Sorted(maps.Values(capabilityNames))
	for _, set := range []string{"CapEff", "CapPrm", "CapBnd"} {
		bits, err := strconv.ParseUint(fields[set], 16, 64)
		s.must(err)
		var got []string
		for i := range 64 {
			if bits&(1<<i) == 0 {
				continue
			}
			name, ok := capabilityNames[i]
			if !ok {
				name = fmt.Sprintf("number %d", i)
			}
			got = append(got, name)
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			s.t.Errorf("%s has %v, want %v", set, got, want)
		}
	}
	for name, want := range map[string]string{
		"CapAmb": "0000000000000000", "NoNewPrivs": "1",
		"Seccomp": "2", // SECCOMP_MODE_FILTER
		"Uid":     "0\t0\t0\t0",
	} {
		if fields[name] != want {
			s.t.Errorf("%s is %q, want %q", name, fields[name], want)
		}
	}
	if !s.t.Failed() {
		s.t.Logf("effective, permitted and bounding set are %v; NoNewPrivs %s, Seccomp %s", want, fields["NoNewPrivs"],
			fields["Seccomp"])
	}
}

// mounts looks at the daemon's files by /proc/PID/root: which are the node's own, and which can be
// written.
func (s *scenario) mounts(ctx context.Context) {
	root := fmt.Sprintf("/proc/%d/root", s.daemon())
	readOnly := func(path string) bool {
		var st unix.Statfs_t
		s.must(unix.Statfs(filepath.Join(root, path), &st))
		return st.Flags&unix.ST_RDONLY != 0
	}
	for path, want := range map[string]bool{
		"/": true, "/etc/sluice": true, "/proc/sys": true, "/sys": true,
		"/run/sluice": false, "/sys/fs/bpf": false, "/host/proc/sys/net": false,
	} {
		if got := readOnly(path); got != want {
			s.t.Errorf("%s: read-only is %v, want %v", path, got, want)
		}
	}
	for _, path := range []string{"/run/sluice", "/sys/fs/bpf"} {
		var pods, nodes unix.Stat_t
		s.must(errors.Join(unix.Stat(filepath.Join(root, path), &pods), unix.Stat(s.Gateway.Path(path), &nodes)))
		if pods.Dev != nodes.Dev || pods.Ino != nodes.Ino {
			s.t.Errorf("%s of the pod is not the node's", path)
		}
	}
	// What the mounts are for: state and programs that outlive the pod, and a host link with
	// sysctls of its own, which is not made without them.
	onNode, err := s.Gateway.Shell(ctx,
		"ls /run/sluice /sys/fs/bpf/sluice; ip -o -d link show sluice0; ip -o -d link show front0; ip -o -d link "+
			"show back0")
	s.must(err)
	for _, want := range []string{"status.sock", "maps_", "sluice0@", "name host_link", "name steer"} {
		if !strings.Contains(onNode, want) {
			s.t.Errorf("on the node there is no %q:\n%s", want, onNode)
		}
	}
	if s.t.Failed() {
		return
	}
	s.t.Logf("read-only: /, /etc/sluice, /proc/sys, /sys; the node's own and writable: /run/sluice, /sys/fs/bpf, " +
		"/proc/sys/net at /host")
}

// probes stops the daemon's process where it stands: the pod must become unready, its container be
// started anew, and the Service be reached again.
func (s *scenario) probes(ctx context.Context) {
	before := s.daemon()
	s.must(syscall.Kill(before, syscall.SIGSTOP))
	began := time.Now()
	s.must(Eventually(ctx, patience, func(ctx context.Context) error {
		return s.podReady(ctx, corev1.ConditionFalse,
			0)
	}))
	unready := time.Since(began)
	s.must(Eventually(ctx, patience, func(ctx context.Context) error {
		return s.podReady(ctx, corev1.ConditionTrue,
			1)
	}))
	restarted := time.Since(began)
	if after := s.daemon(); after == before {
		s.t.Errorf("process %d is still the daemon", after)
	}
	s.counted(ctx, "web", "after the restart", 20, func() string {
		return s.datagrams(ctx, netipAddrs(webVIP4, webVIP6), 20)
	})
	s.t.Logf("a daemon that hangs: not Ready after %s, restarted and Ready after %s",
		unready.Round(100*time.Millisecond), restarted.Round(100*time.Millisecond))
}

// podReady reports whether the gateway's pod is Ready, or not, and its container was restarted so
// often.
func (s *scenario) podReady(ctx context.Context, want corev1.ConditionStatus, restarts int32) error {
	pod, err := s.GatewayPod(ctx)
	if err != nil {
		return err
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == want && len(pod.Status.ContainerStatuses) == 1 &&
			pod.Status.ContainerStatuses[0].RestartCount >= restarts {
			return nil
		}
	}
	return fmt.Errorf("pod %s is not yet Ready=%s after %d restarts: %+v", pod.Name, want, restarts,
		pod.Status.ContainerStatuses)
}

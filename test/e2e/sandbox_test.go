//go:build root

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/test/bed/topo"
)

// A running daemon is confined, each of its threads, and what needs capabilities again goes on
// working: a device that comes back is bound, with programs, packet memory and sockets of its own.
func TestDaemonIsConfined(t *testing.T) {
	t.Parallel()
	c := labConfig{Config: topo.Config{Backends: 2, Queues: 2}, interfaces: []string{"front0", "back0", spare}}
	c.prepare = func(l *lab) { addSpare(t, l.Gateway, l.Clients[0]) }
	l := newLab(t, c)
	checkConfined(t, l.gate.PID())
	l.onLink(spare, netlink.LinkDel)
	l.waitFor("the loss is reported", func(v *status.InterfaceView) bool { return v.Mode == "" && v.Reason != "" })
	addSpare(t, l.Gateway, l.Clients[0])
	l.waitFor("the interface is open again", func(v *status.InterfaceView) bool { return v.Mode != "" })
	l.wantServed("with the new device")
	checkConfined(t, l.gate.PID()) // threads of the new device, too
}

// mayKeep are the capabilities that the daemon may have after its start: the six of the chart, and
// CAP_SYS_ADMIN, since the laboratory's daemon mounts its own bpffs and unmounts it at its end.
const mayKeep = 1<<unix.CAP_NET_ADMIN | 1<<unix.CAP_NET_RAW | 1<<unix.CAP_BPF | 1<<unix.CAP_PERFMON |
	1<<unix.CAP_IPC_LOCK | 1<<unix.CAP_SYS_ADMIN | 1<<unix.CAP_SYS_NICE

// checkConfined reads the state of every thread from the kernel, not from the daemon.
func checkConfined(t *testing.T, pid int) {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil || len(files) == 0 {
		t.Fatalf("no threads of %d: %v", pid, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if os.IsNotExist(err) {
			continue // the thread has ended
		}
		if err != nil {
			t.Fatal(err)
		}
		fields := map[string]string{}
		for line := range strings.Lines(string(text)) {
			name, value, _ := strings.Cut(line, ":")
			fields[name] = strings.TrimSpace(value)
		}
		if fields["NoNewPrivs"] != "1" || fields["Seccomp"] != strconv.Itoa(unix.SECCOMP_MODE_FILTER) {
			t.Errorf("%s: NoNewPrivs %s, Seccomp %s", file, fields["NoNewPrivs"], fields["Seccomp"])
		}
		for _, set := range []string{"CapEff", "CapPrm", "CapBnd"} {
			bits, err := strconv.ParseUint(fields[set], 16, 64)
			if err != nil || bits&^uint64(mayKeep) != 0 {
				t.Errorf("%s: %s is %#x, of which %#x is too much (%v)", file, set, bits, bits&^uint64(mayKeep), err)
			}
		}
	}
}

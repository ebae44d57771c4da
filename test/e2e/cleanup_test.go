//go:build root

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"sluice.dev/sluice/test/bed/topo"
)

// TestCleanup: `sluice cleanup` removes all that a process left, killed or handed over: interfaces,
// programs, maps, mounts and files are those of before. It refuses while a process runs, and finds
// nothing the second time.
func TestCleanup(t *testing.T) {
	t.Parallel()
	l := newLab(t, labConfig{Config: topo.Config{Queues: 2}, options: handsOver})
	l.damaged = true // the last segments of connections reach a kernel that has no VIP
	out, err := l.gate.Command(l.ctx, "cleanup", "--config", l.gate.ConfigFile())
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("process %d", l.gate.PID())) {
		t.Errorf("while process %d runs: %q, %v", l.gate.PID(), out, err)
	}
	l.wantServed("after a cleanup that was refused")
	for _, end := range []struct {
		name string
		do   func() error
	}{{"killed", l.gate.Kill}, {"handed over", l.gate.Stop}} {
		objects := l.objects()
		if len(objects) < 6 {
			t.Fatalf("%s: the process holds only %v", end.name, objects)
		}
		if err := end.do(); err != nil {
			t.Fatal(err)
		}
		if left, err := l.gate.Leftovers(); err != nil || len(left) < 5 {
			t.Fatalf("%s: there is nothing to clean: %q, %v", end.name, left, err)
		}
		removed := l.cleanup()
		t.Logf("%s:\n%s", end.name, removed)
		for _, what := range []string{"XDP program on front0", "TCX program on back0", "BPF maps", "host link sluice0",
			"BPF file system", "/state/flows"} {
			if !strings.Contains(removed, what) {
				t.Errorf("%s: cleanup does not say that it removed %q", end.name, what)
			}
		}
		if left, err := l.gate.Leftovers(); err != nil || len(left) > 0 {
			t.Errorf("%s: left behind: %q, %v", end.name, left, err)
		}
		if again := l.cleanup(); !strings.Contains(again, "nothing was removed") {
			t.Errorf("%s: the second time: %s", end.name, again)
		}
		wantGone(t, end.name, objects)
		// Nothing of it is missed by a gateway that begins anew.
		if err := l.gate.Start(l.ctx); err != nil {
			t.Fatal(err)
		}
		l.wantServed("after cleaning up")
	}
	l.handOverNoMore()
}

func (l *lab) cleanup() string {
	l.t.Helper()
	out, err := l.gate.Command(l.ctx, "cleanup", "--config", l.gate.ConfigFile())
	if err != nil {
		l.t.Fatal(err)
	}
	return out
}

// objects lists the programs and maps of ours that the gateway's process holds. The kernel shows
// their IDs in the descriptors' fdinfo: also the program of a link (kernel/bpf/syscall.c).
func (l *lab) objects() (list []string) {
	l.t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", l.gate.PID()))
	if err != nil {
		l.t.Fatal(err)
	}
	held := map[string]bool{}
	for _, file := range files {
		text, _ := os.ReadFile(file) // it may have been closed
		for line := range strings.Lines(string(text)) {
			for field, kind := range map[string]string{"prog_id:": "program", "map_id:": "map"} {
				if id, ok := strings.CutPrefix(line, field); ok {
					held[kind+" "+strings.TrimSpace(id)] = true
				}
			}
		}
	}
	return slices.DeleteFunc(bpfObjects(l.t), func(o string) bool { return !held[o[:strings.LastIndexByte(o, ' ')]] })
}

// wantGone waits until the kernel has freed programs and maps. It frees a detached program, and the
// maps that only it held, a grace period of RCU later (__bpf_prog_put of kernel/bpf/syscall.c).
// Others may exist on the machine: tests of other packages run at the same time.
func wantGone(t *testing.T, name string, objects []string) {
	t.Helper()
	err := topo.Until(t.Context(), 5*time.Second, 10*time.Millisecond, func(context.Context) error {
		left := slices.DeleteFunc(bpfObjects(t), func(o string) bool { return !slices.Contains(objects, o) })
		if len(left) > 0 {
			return fmt.Errorf("%s: of the programs and maps %v these are left: %v", name, objects, left)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// bpfObjects lists the programs and maps of this machine that have names of ours.
func bpfObjects(t *testing.T) (list []string) {
	t.Helper()
	for id := ebpf.ProgramID(0); ; {
		var err error
		if id, err = ebpf.ProgramGetNextID(id); errors.Is(err, os.ErrNotExist) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		p, err := ebpf.NewProgramFromID(id)
		if err != nil {
			continue // it ended
		}
		if i, err := p.Info(); err == nil && slices.Contains([]string{"steer", "host_link", "egress"}, i.Name) {
			list = append(list, fmt.Sprintf("program %d %s", id, i.Name))
		}
		p.Close()
	}
	for id := ebpf.MapID(0); ; {
		var err error
		if id, err = ebpf.MapGetNextID(id); errors.Is(err, os.ErrNotExist) {
			return list
		} else if err != nil {
			t.Fatal(err)
		}
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			continue
		}
		if i, err := m.Info(); err == nil && slices.Contains([]string{"frontends", "addrs", "keep_sources"}, i.Name) {
			list = append(list, fmt.Sprintf("map %d %s", id, i.Name))
		}
		m.Close()
	}
}

//go:build root

package xdpprog

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/test/bed/machine"
)

// TestCapabilities: the error names the missing capabilities, and no others are needed.
func TestCapabilities(t *testing.T) {
	const bpf, netAdmin, perfmon = unix.CAP_BPF, unix.CAP_NET_ADMIN, unix.CAP_PERFMON
	for _, c := range []struct {
		name string
		have []int
		want string // in the error; empty: none
	}{
		{"all needed ones", []int{bpf, netAdmin, perfmon}, ""},
		{"none", nil, "lacks CAP_NET_ADMIN, CAP_BPF, CAP_PERFMON:"},
		{"no CAP_BPF", []int{netAdmin, perfmon}, "lacks CAP_BPF:"},
		{"no CAP_NET_ADMIN", []int{bpf, perfmon}, "lacks CAP_NET_ADMIN:"},
		{"no CAP_PERFMON", []int{bpf, netAdmin}, "lacks CAP_PERFMON:"},
	} {
		t.Run(c.name, func(t *testing.T) {
			isolate(t)
			nic, _ := veth(t, "nic", "peer")
			_, user := veth(t, "hl", "user")
			keepOnly(t, c.have...)
			s, err := Load(Config{})
			if c.want != "" {
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("Load returns %v, want %q", err, c.want)
				}
				return
			}
			must(t, err)
			p := attach(t, s, nic, "nic", Auto)
			must(t, s.AttachEgress(nic, "nic"))
			_, err = s.AttachHostLink(user, "user")
			must(t, err)
			keepOnly(t) // once attached, the daemon needs no capability in normal operation
			must(t, s.OpenFrontend(key(vip4, tcp, 80)))
			must(t, s.Heartbeat(1))
			must(t, p.Check())
			must(t, s.Close(true))
		})
	}
}

// keepOnly drops all other effective capabilities of the thread.
func keepOnly(t *testing.T, caps ...int) {
	t.Helper()
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	must(t, unix.Capget(&head, &data[0]))
	data[0].Effective, data[1].Effective = 0, 0
	for _, c := range caps {
		data[c/32].Effective |= 1 << (c % 32)
	}
	must(t, unix.Capset(&head, &data[0]))
}

// TestVerifierRejection: the error for a rejected program must not name a capability, although the
// errno is the same.
func TestVerifierRejection(t *testing.T) {
	needRoot(t)
	_, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.XDP, License: "Apache-2.0",
		Instructions: asm.Instructions{asm.LoadMem(asm.R0, asm.R1, 4096, asm.Word), asm.Return()},
	})
	if !errors.Is(err, unix.EACCES) {
		t.Fatalf("a program that reads beyond its context: %v", err)
	}
	err = explain(err)
	if !strings.Contains(err.Error(), "verifier rejects") || strings.Contains(err.Error(), "CAP_") {
		t.Errorf("explained as %v", err)
	}
}

// TestOutOfMemory: errors of a process that is out of descriptors or memory blame neither the
// kernel nor a capability, and do not mean that an interface has lost its program.
func TestOutOfMemory(t *testing.T) {
	needRoot(t)
	spec := &ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1}
	m, err := ebpf.NewMap(spec) // package ebpf keeps the answers of its first questions to the kernel
	must(t, err)
	must(t, m.Close())
	for _, errno := range machine.Shortages {
		machine.Short(t, errno, func() {
			_, err := ebpf.NewMap(spec)
			text := fmt.Sprint(explain(err))
			if !strings.Contains(text, errno.Error()) || strings.Contains(text, "Linux 6.12") ||
				strings.Contains(text, "CAP_") {
				t.Errorf("%v is explained as %s", errno, text)
			}
			if _, err := readHook(1); !errors.Is(err, errno) || Lost(err) {
				t.Errorf("the hook: %v, want %v", err, errno)
			}
		})
	}
}

// TestVerifierBudget: the verifier stops after a million instructions, and the verifiers of older
// kernels need more for the same program.
func TestVerifierBudget(t *testing.T) {
	b := newRig(t, Settings{}, Rules{})
	for _, p := range []*ebpf.Program{b.steer, b.egress} {
		info, err := p.Info()
		must(t, err)
		n, _ := info.VerifiedInstructions()
		t.Logf("%v: %d instructions verified", p, n)
		if n > 100_000 {
			t.Errorf("%v: the verifier walked %d instructions, want at most 100000", p, n)
		}
	}
}

func TestPinDirectory(t *testing.T) {
	isolate(t)
	dir := t.TempDir()
	if _, err := Load(Config{PinDir: filepath.Join(dir, "plain", "pins")}); !errors.Is(err, ErrNoBPFFS) {
		t.Errorf("pins on a plain file system: %v", err)
	}
	full := filepath.Join(dir, "full")
	must(t, os.MkdirAll(filepath.Join(full, "etc"), 0o700))
	if _, err := EnsureBPFFS(full); err == nil || !strings.Contains(err.Error(), "a mount would hide etc") {
		t.Errorf("EnsureBPFFS of a directory with files: %v", err)
	}
	if err := CheckBPFFS(full); err == nil || !strings.Contains(err.Error(), "a mount would hide etc") {
		t.Errorf("CheckBPFFS of a directory with files: %v", err)
	}
	mount := filepath.Join(dir, "bpf")
	must(t, CheckBPFFS(mount))
	keepOnly(t, unix.CAP_DAC_OVERRIDE)
	if err := CheckBPFFS(mount); err == nil || !strings.Contains(err.Error(), "lacks CAP_SYS_ADMIN") {
		t.Errorf("CheckBPFFS without the right to mount: %v", err)
	}
	restoreCapabilities(t)
	if _, err := os.Stat(mount); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("CheckBPFFS made the directory: %v", err)
	}
	for _, want := range []bool{true, false} { // mounted the first time, found the second time
		here, err := EnsureBPFFS(mount)
		if err != nil || here != want {
			t.Errorf("EnsureBPFFS: mounted %v, %v; want %v", here, err, want)
		}
		must(t, CheckBPFFS(mount))
	}
	below := filepath.Join(mount, "a", "b")
	if here, err := EnsureBPFFS(below); err != nil || here {
		t.Errorf("EnsureBPFFS below: mounted %v, %v", here, err)
	}
	s := load(t, Config{PinDir: below})
	must(t, os.WriteFile(filepath.Join(dir, "note"), nil, 0o600))
	must(t, s.Close(true))
	s = load(t, Config{PinDir: mount}) // a mount point cannot be removed, only emptied
	must(t, s.Close(true))
	must(t, os.Remove(filepath.Dir(below)))
	entries, err := os.ReadDir(mount)
	must(t, err)
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".debug") { // the kernel's own
			t.Errorf("left behind: %s", e.Name())
		}
	}
	must(t, UnmountBPFFS(mount))
	if ok, err := onBPFFS(mount); ok || err != nil {
		t.Errorf("still mounted: %v, %v", ok, err)
	}
	must(t, os.Remove(mount)) // the directory stays, and is empty
}

// TestFailedLoad: a failed Load leaves nothing if it is the first start, and keeps everything of a
// predecessor.
func TestFailedLoad(t *testing.T) {
	isolate(t)
	nic, _ := veth(t, "nic", "peer")
	c := Config{PinDir: pinDir(t)}
	fail := func(c Config) {
		t.Helper()
		keepOnly(t, unix.CAP_BPF, unix.CAP_DAC_OVERRIDE) // maps but no XDP program
		if _, err := Load(c); err == nil {
			t.Fatal("Load without CAP_NET_ADMIN: no error")
		}
		restoreCapabilities(t)
	}
	fail(c)
	if _, err := os.Stat(c.PinDir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a first start left its pin directory: %v", err)
	}
	s := load(t, c)
	p := attach(t, s, nic, "nic", Auto)
	must(t, s.Close(false))
	fail(c)
	if h, err := readHook(nic); err != nil || h.program != p.id {
		t.Errorf("the hook holds program %d, %v; want the predecessor's %d", h.program, err, p.id)
	}
	s = load(t, c)
	must(t, s.Close(true))

	t.Chdir(t.TempDir()) // "" means no pin directory, and not the working directory
	must(t, os.Mkdir(linkDir, 0o700))
	fail(Config{})
	if _, err := os.Stat(linkDir); err != nil {
		t.Error(err)
	}
}

func restoreCapabilities(t *testing.T) {
	t.Helper()
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	must(t, unix.Capget(&head, &data[0]))
	data[0].Effective, data[1].Effective = data[0].Permitted, data[1].Permitted
	must(t, unix.Capset(&head, &data[0]))
}

package results

import (
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestMachineOf(t *testing.T) {
	file := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }
	root := fstest.MapFS{
		"proc/cpuinfo": file("processor\t: 0\ncpu family\t: 26\nmodel\t\t: 2\nmodel name\t: AMD " +
			"EPYC\ncpu MHz\t\t: 2596.124\nflags\t\t: fpu hypervisor lahf_lm\n\nprocessor\t: 1\nmodel name\t: other\n"),
		"proc/meminfo":                               file("MemTotal:       24165172 kB\nMemFree: 1 kB\n"),
		"proc/sys/kernel/osrelease":                  file("6.18.44\n"),
		"sys/kernel/mm/transparent_hugepage/enabled": file("always [madvise] never\n"),
		"sys/class/dmi/id/sys_vendor":                file("QEMU\n"),
	}
	want := Machine{CPU: "AMD EPYC (family 26, model 2)", MHz: 2596.124, MemoryMB: 23598, Kernel: "6.18.44",
		Hypervisor: "QEMU", HugePages: "madvise"}
	if d := cmp.Diff(want, machineOf(root)); d != "" {
		t.Error(d)
	}
	bare := fstest.MapFS{"proc/cpuinfo": file("model name : X\nflags : fpu\n")}
	if got := machineOf(bare); got.Hypervisor != "none" || got.CPU != "X" || got.MemoryMB != 0 {
		t.Errorf("bare metal: %+v", got)
	}
}

func TestThisMachine(t *testing.T) {
	m := ThisMachine("veth")
	if m.Kernel == "" || m.Cores < 1 || m.MemoryMB < 100 || m.Go == "" || m.Link != "veth" {
		t.Errorf("%+v", m)
	}
	if d := m.Differ(ThisMachine("memory")); d != nil {
		t.Errorf("this machine differs from itself in %v", d)
	}
}

func TestDiffer(t *testing.T) {
	a := Machine{CPU: "a", Cores: 2, MHz: 2600, MemoryMB: 24000, Link: "veth"}
	b := Machine{CPU: "b", Cores: 2, MHz: 2700, MemoryMB: 23900, Link: "memory", Kernel: "6.18"}
	if d := cmp.Diff([]string{"processor", "kernel"}, a.Differ(b)); d != "" {
		t.Error(d)
	}
	a, b = Machine{Kernel: "6.18.44-cloud-3"}, Machine{Kernel: "6.18.44-cloud-4"}
	if d := a.Differ(b); d != nil {
		t.Errorf("builds of one kernel: %v", d)
	}
}

func TestCommandLine(t *testing.T) {
	t.Chdir(t.TempDir())
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	got := CommandLine([]string{"/opt/x/sluice-bench", "compare", "--sluice=" + here + "/bin/sluice", "--systems",
		"a b", "it's", ""})
	if want := `sluice-bench compare --sluice=bin/sluice --systems 'a b' 'it'\''s' ''`; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}

func TestBeginFinishLoadAll(t *testing.T) {
	dir := t.TempDir()
	first, second := Begin("veth"), Begin("memory")
	first.Began = first.Began.Add(-time.Hour)
	a, b := filepath.Join(dir, "a.json"), filepath.Join(dir, "b.json")
	for path, r := range map[string]*Run{a: second, b: first} {
		if err := r.Finish(path); err != nil {
			t.Fatal(err)
		}
	}
	runs, err := LoadAll(a, b)
	if err != nil {
		t.Fatal(err)
	}
	if len(runs) != 2 || runs[0].Machine.Link != "veth" || runs[0].Seconds < 3600 || runs[0].Version == "" ||
		runs[0].Command == "" {
		t.Errorf("loaded %+v", runs)
	}
	if _, err := LoadAll(filepath.Join(dir, "none.json")); err == nil {
		t.Error("a file that is not there was loaded")
	}
	if err := first.Finish(""); err != nil {
		t.Error(err)
	}
}

func TestKey(t *testing.T) {
	p := Point{Experiment: "e", System: "s", Metric: "m", Params: map[string]string{"flows": "1000", "a": "b"}}
	if got, want := p.Key(), "e|s|a b, flows 1000|m"; got != want {
		t.Errorf("key %q, want %q", got, want)
	}
	if got := p.Conditions("a"); got != "flows 1000" {
		t.Errorf("conditions %q", got)
	}
}

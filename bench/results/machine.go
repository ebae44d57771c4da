package results

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
)

// ThisMachine describes the machine on which this process runs. Link describes the packets' path,
// and may be empty.
func ThisMachine(link string) Machine {
	m := machineOf(os.DirFS("/"))
	m.Link, m.Cores, m.Go = link, runtime.NumCPU(), runtime.Version()+" "+runtime.GOOS+"/"+runtime.GOARCH
	if out, err := exec.Command("cc", "--version").Output(); err == nil {
		line, _, _ := bytes.Cut(out, []byte("\n"))
		m.CC = string(line)
	}
	return m
}

// machineOf reads the kernel's description of the machine below a root directory.
func machineOf(root fs.FS) Machine {
	text := func(path string) string {
		b, err := fs.ReadFile(root, path)
		if err != nil {
			return ""
		}
		return strings.TrimRight(string(b), "\n\x00")
	}
	cpu := fields(text("proc/cpuinfo"))
	m := Machine{Kernel: text("proc/sys/kernel/osrelease"), CPU: cpu["model name"], Hypervisor: "none"}
	if family := cpu["cpu family"]; family != "" {
		// Clouds hide the model's name; family and model identify the core.
		m.CPU += fmt.Sprintf(" (family %s, model %s)", family, cpu["model"])
	}
	m.MHz, _ = strconv.ParseFloat(cpu["cpu MHz"], 64)
	if strings.Contains(" "+cpu["flags"]+" ", " hypervisor ") {
		m.Hypervisor = strings.TrimSpace(text("sys/class/dmi/id/sys_vendor") + " " +
			text("sys/class/dmi/id/product_name"))
		if m.Hypervisor == "" {
			m.Hypervisor = "yes, without a name"
		}
	}
	kib, _ := strconv.Atoi(strings.TrimSuffix(fields(text("proc/meminfo"))["MemTotal"], " kB"))
	m.MemoryMB = kib >> 10
	if _, chosen, found := strings.Cut(text("sys/kernel/mm/transparent_hugepage/enabled"), "["); found {
		m.HugePages, _, _ = strings.Cut(chosen, "]")
	}
	return m
}

// fields reads "key : value" lines; the first value of a key is used.
func fields(text string) map[string]string {
	values := make(map[string]string)
	for line := range strings.Lines(text) {
		key, value, found := strings.Cut(line, ":")
		key = strings.TrimSpace(key)
		if _, known := values[key]; found && !known {
			values[key] = strings.TrimSpace(value)
		}
	}
	return values
}

// Line describes the machine in one sentence.
func (m Machine) Line() string {
	parts := []string{fmt.Sprintf("%d cores of %s", m.Cores, or(m.CPU, "an unknown processor"))}
	if m.MHz != 0 {
		parts = append(parts, fmt.Sprintf("%.0f MHz", m.MHz))
	}
	if m.MemoryMB != 0 {
		parts = append(parts, fmt.Sprintf("%.1f GiB", float64(m.MemoryMB)/1024))
	}
	if m.Hypervisor != "" {
		parts = append(parts, "hypervisor: "+m.Hypervisor)
	}
	parts = append(parts, "Linux "+or(m.Kernel, "unknown"))
	if m.HugePages != "" {
		parts = append(parts, "huge pages: "+m.HugePages)
	}
	for _, s := range [...]string{m.Go, m.CC, m.Link, m.Notes} {
		if s != "" {
			parts = append(parts, s)
		}
	}
	return strings.Join(parts, "; ")
}

// Differ names the properties that differ between two machines and make figures incomparable. It
// does not compare links and notes, which belong to an experiment.
func (m Machine) Differ(o Machine) (names []string) {
	for _, f := range [...]struct {
		name   string
		differ bool
	}{
		{"processor", m.CPU != o.CPU},
		{"cores", m.Cores != o.Cores},
		// The frequency of an idle core varies; a tenth means another machine.
		{"MHz", m.MHz > o.MHz*1.1 || o.MHz > m.MHz*1.1},
		{"memory", m.MemoryMB>>10 != o.MemoryMB>>10},
		{"hypervisor", m.Hypervisor != o.Hypervisor},
		{"kernel", upstream(m.Kernel) != upstream(o.Kernel)},
		{"huge pages", m.HugePages != o.HugePages},
		{"Go", m.Go != o.Go},
		{"C compiler", m.CC != o.CC},
	} {
		if f.differ {
			names = append(names, f.name)
		}
	}
	return names
}

// upstream is a kernel's version without the build's suffix (6.18.44 of 6.18.44-cloud-3).
func upstream(release string) string {
	version, _, _ := strings.Cut(release, "-")
	return version
}

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

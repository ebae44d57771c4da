package sandbox

import (
	"bufio"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	seccomp "github.com/elastic/go-seccomp-bpf"
	"github.com/elastic/go-seccomp-bpf/arch"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

var architectures = map[string]*arch.Info{"amd64": arch.X86_64, "arm64": arch.AARCH64}

// numberOfCall matches a system call's number in the sources of Go's runtime, assembly and Go.
var numberOfCall = regexp.MustCompile(`^(?:#define)?\s*SYS_(\w+)[\s=]+(\d+)\b`)

// runtimeCalls returns the system calls of the runtime of the Go that builds this test.
func runtimeCalls(t *testing.T, goarch string) map[string]int {
	t.Helper()
	calls := map[string]int{}
	for _, name := range []string{
		"runtime/sys_linux_" + goarch + ".s", "internal/runtime/syscall/linux/defs_linux_" + goarch + ".go",
	} {
		f, err := os.Open(filepath.Join(goRoot(t), "src", name))
		if err != nil {
			t.Fatalf("%v: has the runtime moved it?", err)
		}
		defer f.Close()
		found := 0
		for lines := bufio.NewScanner(f); lines.Scan(); {
			if m := numberOfCall.FindStringSubmatch(lines.Text()); m != nil {
				calls[m[1]], _ = strconv.Atoi(m[2])
				found++
			}
		}
		if found == 0 {
			t.Fatalf("%s has no system calls: has the runtime changed their form?", name)
		}
	}
	return calls
}

func goRoot(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// names returns the calls that the filter allows, always or for some arguments.
func names() map[string]bool {
	set := map[string]bool{}
	for _, name := range allowed {
		set[name] = true
	}
	for _, c := range conditions() {
		set[c.Name] = true
	}
	return set
}

// TestRuntimeCallsAreAllowed: the calls of this Go's runtime are allowed, on both architectures: a
// new Go fails here, not on a node.
func TestRuntimeCallsAreAllowed(t *testing.T) {
	for goarch, info := range architectures {
		t.Run(goarch, func(t *testing.T) {
			set := names()
			calls := runtimeCalls(t, goarch)
			if len(calls) < 30 {
				t.Errorf("only %d calls found: %v", len(calls), calls)
			}
			for name, number := range calls {
				if known := info.SyscallNumbers[number]; !set[known] {
					t.Errorf("the runtime calls %s (%d, %q), which is refused", name, number, known)
				}
			}
		})
	}
}

// legacy are names that only amd64 has: arm64 has the later forms of each, and fstatat.
var legacy = []string{
	"poll", "arch_prctl", "time", "getpgrp", "open", "creat", "stat", "lstat", "access", "readlink", "dup2", "pipe",
	"mkdir", "rmdir", "unlink", "rename", "chmod", "epoll_wait", "select", "newfstatat",
}

// A name that is misspelt would be left out without a word.
func TestNamesAreKnown(t *testing.T) {
	for goarch, info := range architectures {
		for name := range names() {
			_, known := info.SyscallNames[name]
			want := !slices.Contains(legacy, name)
			if goarch == "amd64" {
				want = name != "fstatat" // arm64's name of newfstatat, in the library
			}
			if known != want {
				t.Errorf("%s has %s: %t, want %t", goarch, name, known, want)
			}
		}
	}
}

// judge runs the filter on a system call, as the kernel does.
func judge(t *testing.T, vm *bpf.VM, id arch.AuditArch, number int, args ...uint64) seccomp.Action {
	t.Helper()
	// struct seccomp_data (linux/seccomp.h), in the byte order of the VM.
	data := make([]byte, 64)
	binary.BigEndian.PutUint32(data[0:], uint32(number))
	binary.BigEndian.PutUint32(data[4:], uint32(id))
	for i, a := range args {
		binary.BigEndian.PutUint32(data[16+8*i:], uint32(a))
		binary.BigEndian.PutUint32(data[20+8*i:], uint32(a>>32))
	}
	action, err := vm.Run(data)
	if err != nil {
		t.Fatal(err)
	}
	return seccomp.Action(uint32(action))
}

// TestRefusalIsAnError: calls on no list fail with EPERM and end nothing: calls of newer kernels,
// and of the machine's other ABIs.
func TestRefusalIsAnError(t *testing.T) {
	p, err := policy(&Config{})
	if err != nil {
		t.Fatal(err)
	}
	code, err := p.Assemble()
	if err != nil {
		t.Fatal(err)
	}
	vm, err := bpf.NewVM(code)
	if err != nil {
		t.Fatal(err)
	}
	native, err := arch.GetInfo("")
	if err != nil {
		t.Fatal(err)
	}
	call := func(name string) int { return native.SyscallNames[name] }
	for _, c := range []struct {
		name   string
		id     arch.AuditArch
		number int
		args   []uint64
		want   seccomp.Action
	}{
		{"read", native.ID, call("read"), nil, seccomp.ActionAllow},
		{"execve", native.ID, call("execve"), nil, errno(unix.EPERM)},
		{"a call of a later kernel", native.ID, 5000, nil, errno(unix.EPERM)},
		{"clone3", native.ID, call("clone3"), nil, errno(unix.ENOSYS)},
		{"read of i386", arch.I386.ID, arch.I386.SyscallNames["read"], nil, errno(unix.EPERM)},
		{"read of arm", arch.ARM.ID, arch.ARM.SyscallNames["read"], nil, errno(unix.EPERM)},
		{"a TCP socket", native.ID, call("socket"), []uint64{unix.AF_INET, unix.SOCK_STREAM}, seccomp.ActionAllow},
		{"a raw socket", native.ID, call("socket"), []uint64{unix.AF_INET, unix.SOCK_RAW}, errno(unix.EPERM)},
		{"a thread", native.ID, call("clone"), []uint64{unix.CLONE_THREAD | unix.CLONE_VM}, seccomp.ActionAllow},
		{"a thread in a namespace", native.ID, call("clone"), []uint64{unix.CLONE_THREAD | unix.CLONE_NEWNET},
			errno(unix.EPERM)},
		{"a signal to all", native.ID, call("kill"), []uint64{1<<64 - 1}, errno(unix.EPERM)},
	} {
		if got := judge(t, vm, c.id, c.number, c.args...); got != c.want {
			t.Errorf("%s: %#x, want %#x", c.name, uint32(got), uint32(c.want))
		}
	}
}

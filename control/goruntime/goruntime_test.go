package goruntime

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// TestMain runs what is named in a process of its own: settings are of a process.
func TestMain(m *testing.M) {
	switch os.Getenv("SLUICE_GORUNTIME") {
	case "":
		os.Exit(m.Run())
	case "threads":
		fmt.Print(threads())
	case "percent":
		s := Settings{GCPercent: 321, MemoryLimitBytes: 1 << 40}
		if err := s.Apply(); err != nil {
			fmt.Print(err)
		}
		fmt.Print(debug.SetGCPercent(1), " ", debug.SetMemoryLimit(-1)>>40)
	}
}

// threads makes some before and after the settings, and returns how many of all threads may run on
// the CPU that is to be kept free.
func threads() string {
	var before, after sync.WaitGroup
	release := make(chan struct{})
	occupy := func(g *sync.WaitGroup) {
		for range 8 {
			g.Add(1)
			go func() {
				runtime.LockOSThread()
				g.Done()
				<-release
			}()
		}
		g.Wait()
	}
	occupy(&before)
	var now unix.CPUSet
	_ = unix.SchedGetaffinity(0, &now) // of a thread that is ours
	cpu := 0
	for !now.IsSet(cpu) {
		cpu++
	}
	s := Settings{KeepOff: []int{cpu}, MaxProcs: 7}
	if err := s.Apply(); err != nil {
		return err.Error()
	}
	occupy(&after)
	tasks, _ := filepath.Glob("/proc/self/task/[0-9]*")
	on := 0
	for _, task := range tasks {
		tid, _ := strconv.Atoi(filepath.Base(task))
		var set unix.CPUSet
		if unix.SchedGetaffinity(tid, &set) == nil && set.IsSet(cpu) {
			on++
		}
	}
	close(release)
	which := "some"
	switch on {
	case 0:
		which = "none"
	case len(tasks):
		which = "all"
	}
	return fmt.Sprintf("%t %s %d", len(tasks) >= 16, which, runtime.GOMAXPROCS(0))
}

func in(t *testing.T, what string, env ...string) string {
	t.Helper()
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), append(env, "SLUICE_GORUNTIME="+what)...)
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return strings.TrimSpace(string(out))
}

// TestKeepOff: threads that exist and threads that come are off the workers' CPU.
func TestKeepOff(t *testing.T) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		t.Fatal(err)
	}
	want := "true none 7"
	if set.Count() == 1 { // nothing else is left for the others
		want = "true all 7"
	}
	if got := in(t, "threads"); got != want {
		t.Errorf("at least 16 threads, those on the CPU, Ps: %s, want %s", got, want)
	}
}

// TestEnvironmentTakesPrecedence: what the environment says is not overruled.
func TestEnvironmentTakesPrecedence(t *testing.T) {
	for _, c := range []struct{ name, env, want string }{
		{"ours", "X=", "321 1"},
		{"GOGC", "GOGC=77", "77 1"},
		{"GOMEMLIMIT", "GOMEMLIMIT=2TiB", "321 2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := in(t, "percent", c.env); got != c.want {
				t.Errorf("percent and TiB: %s, want %s", got, c.want)
			}
		})
	}
}

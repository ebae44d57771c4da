package gaps

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/bench/results"
)

// childVariable makes this program a measured process.
const childVariable = "SLUICE_GAPS_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) == "" {
		os.Exit(m.Run())
	}
	if err := RunChild(context.Background(), os.Args[len(os.Args)-1], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// TestRun measures a small population for a second or two, and reads the saved results.
func TestRun(t *testing.T) {
	t.Setenv(childVariable, "1")
	var out bytes.Buffer
	c := Defaults()
	c.Child, c.Out, c.Progress = []string{os.Args[0]}, &out, &bytes.Buffer{}
	c.Services, c.Windows, c.Window, c.JSON = 100, 2, 300*time.Millisecond, t.TempDir()+"/gaps.json"
	c.Variants = []string{"sluice", "quiet", "locked", "short-slice"}
	if _, err := Run(t.Context(), c); errors.Is(err, errOneCPU) && runtime.NumCPU() == 1 {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	run, err := results.Load(c.JSON)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]*results.Point{}
	for i := range run.Points {
		p := &run.Points[i]
		got[p.Params["variant"]+" "+p.System+" "+p.Metric] = p
		if len(p.Samples) != c.Windows {
			t.Errorf("%s of %s: %d samples of %d windows", p.Metric, p.System, len(p.Samples), c.Windows)
		}
	}
	if p := got["sluice sluice gaps_over_1ms_above_floor"]; p == nil || p.Target == nil || *p.Target != Target {
		t.Errorf("what is held is %+v", p)
	}
	// How many depends on what else the machine does.
	if p := got["sluice sluice published"]; p == nil || p.Median() <= 0 || p.Median() > 2*float64(c.Rate) {
		t.Errorf("%d changes/s made tables at %+v", c.Rate, p)
	}
	if p := got["quiet sluice published"]; p == nil || p.Median() != 0 {
		t.Errorf("without changes there were tables: %+v", p)
	}
	if !strings.Contains(out.String(), "quiet") {
		t.Errorf("the table lacks a variant:\n%s", out.String())
	}
}

// TestProbe: a gap is counted once, with what it was.
func TestProbe(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	p := newProbe(0)
	p.Receive(nil)
	taken := make(chan *Window)
	go func() { taken <- p.take() }()
	for p.finished.Load() == nil { // the window that began with the probe
		p.Receive(nil)
	}
	<-taken
	sleep := unix.NsecToTimespec(int64(5 * time.Millisecond))
	for { // the runtime's signals interrupt it, and it returns the time left
		left := uintptr(unsafe.Pointer(&sleep))
		_, _, errno := unix.RawSyscall(unix.SYS_NANOSLEEP, left, left, 0)
		if errno == 0 {
			break
		}
		if errno != unix.EINTR {
			t.Fatal(errno)
		}
	}
	p.Receive(nil)
	go func() { taken <- p.take() }()
	var w *Window
	for w == nil {
		p.Receive(nil)
		select {
		case w = <-taken:
		default:
		}
	}
	if w.HandedOver.Over1ms < 1 || w.Max < uint64(5*time.Millisecond) || w.All.Lost < w.Max || w.Nanos < w.Max {
		t.Errorf("a thread that slept for 5 ms had %+v", *w)
	}
	if w.All.Gaps != w.HandedOver.Gaps+w.Preempted.Gaps+w.InPlace.Gaps {
		t.Errorf("kinds do not add up: %+v", *w)
	}
}

func TestFloor(t *testing.T) {
	f, err := newFloor(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := f.close(); err != nil {
			t.Error(err)
		}
	}()
	cpus, err := allowed()
	if err != nil {
		t.Fatal(err)
	}
	length, w := 100*time.Millisecond, Window{}
	for {
		if w, err = f.window(t.Context(), cpus[0], length); err != nil {
			t.Fatal(err)
		}
		if w.Steps >= 10_000 || length > 5*time.Second { // a loop that shares its CPU makes fewer in a window
			break
		}
		length *= 4
	}
	if w.Steps < 10_000 || w.Nanos < uint64(length) {
		t.Errorf("%v of a loop around the clock had %d steps in %d ns", length, w.Steps, w.Nanos)
	}
	if w.HandedOver.Gaps > 0 {
		t.Errorf("a loop that never sleeps slept %d times", w.HandedOver.Gaps)
	}
	if _, err := f.window(t.Context(), 1<<10-1, time.Second); err == nil {
		t.Error("a CPU that is not there is no error")
	}
}

func TestWindow(t *testing.T) {
	w := Window{Nanos: uint64(2 * time.Second)}
	w.gap(uint64(2*time.Millisecond), true, true)
	w.gap(uint64(time.Millisecond), false, true) // not above 1 ms
	w.gap(uint64(50*time.Microsecond), false, false)
	want := Window{
		Nanos: w.Nanos, Max: 2_000_000,
		All:        Kind{Gaps: 3, Over100us: 2, Over1ms: 1, Lost: 3_050_000},
		HandedOver: Kind{Gaps: 1, Over100us: 1, Over1ms: 1, Lost: 2_000_000},
		Preempted:  Kind{Gaps: 1, Over100us: 1, Lost: 1_000_000},
		InPlace:    Kind{Gaps: 1, Lost: 50_000},
	}
	if w != want {
		t.Errorf("got  %+v\nwant %+v", w, want)
	}
	if got := w.per10s(w.All.Over1ms); got != 5 {
		t.Errorf("1 in 2 s is %v in 10 s", got)
	}
	if got := w.lost(); got != 0.1525 {
		t.Errorf("3.05 ms of 2 s are %v %%", got)
	}
}

func TestRefused(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Config)
		want   string
	}{
		{"variant", func(c *Config) { c.Variants = []string{"fast"} }, "go-defaults"},
		{"cpu", func(c *Config) { c.CPU = 4000 }, "CPU 4000"},
		{"window", func(c *Config) { c.Window = time.Millisecond }, "100ms"},
		{"rate", func(c *Config) { c.Rate = 0 }, "changes a second"},
		{"services", func(c *Config) { c.Services = 1 << 24 }, "endpoints are possible"},
		{"profiles", func(c *Config) { c.Profiles = "gaps_test.go/profiles" }, "directory for profiles"},
	} {
		t.Run(c.name, func(t *testing.T) {
			config := Defaults()
			c.change(&config)
			if _, err := config.check(); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want something with %q", err, c.want)
			}
		})
	}
}

package files

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/allocate/assign"
	"sluice.dev/sluice/control/compiler"
	"sluice.dev/sluice/control/tracker"
	"sluice.dev/sluice/internal/trusted"
	"sluice.dev/sluice/test/bed/machine"
)

// rig is a Watcher on a directory of its own.
type rig struct {
	*Watcher
	t   *testing.T
	dir string
}

func newRig(t *testing.T) *rig { return newRigWith(t, nil, 10*time.Millisecond) }

func newRigWith(t *testing.T, addresses *assign.Assigner, settle time.Duration) *rig {
	dir := t.TempDir()
	r := &rig{t: t, dir: dir, Watcher: New(Config{
		Log: slog.New(slog.DiscardHandler), Dir: dir, Tracker: tracker.New(), Settle: settle,
		Addresses: addresses,
	})}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = r.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return r
}

func (r *rig) write(name, text string) {
	r.t.Helper()
	if err := os.WriteFile(filepath.Join(r.dir, name), []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) replace(name, text string) {
	r.t.Helper()
	r.write(".new", text)
	if err := os.Rename(filepath.Join(r.dir, ".new"), filepath.Join(r.dir, name)); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) remove(name string) {
	r.t.Helper()
	if err := os.RemoveAll(filepath.Join(r.dir, name)); err != nil {
		r.t.Fatal(err)
	}
}

// served is what is served, and what is wrong, after a Sync.
func (r *rig) served() (vips string, problems []string) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 10*time.Second)
	defer cancel()
	if err := r.Sync(ctx); err != nil {
		r.t.Fatal(err)
	}
	r.Tracker.Changes()
	return r.now()
}

func (r *rig) now() (vips string, problems []string) {
	_, compiled, steer := compiler.New(compiler.Config{}).Full(r.Tracker.State())
	var all []string
	for _, k := range steer.Open.Frontends {
		all = append(all, k.Addr.String())
	}
	for _, p := range r.Tracker.Locate(compiled) {
		problems = append(problems, strings.ReplaceAll(p.String(), r.dir+"/", ""))
	}
	return strings.Join(all, " "), problems
}

func (r *rig) want(what, vips string, problems ...string) {
	r.t.Helper()
	got, wrong := r.served()
	if got != vips || fmt.Sprint(wrong) != fmt.Sprint(problems) {
		r.t.Errorf("%s:\ngot  %q, problems %q\nwant %q, problems %q", what, got, wrong, vips, problems)
	}
}

func service(name, vip string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: %s}\nspec: {ipFamilies: [IPv4], ports: "+
		"[{port: 80}]}\nstatus: {loadBalancer: {ingress: [{ip: %s}]}}\n", name, vip)
}

func TestWatch(t *testing.T) {
	r := newRig(t)
	r.want("empty directory", "")
	r.write("a.yaml", service("a", "10.0.0.1"))
	r.want("a file", "10.0.0.1")
	r.write("a.yaml", service("a", "10.0.0.2")+"---\n"+service("b", "10.0.0.3"))
	r.want("written in place", "10.0.0.2 10.0.0.3")
	r.replace("a.yaml", service("b", "10.0.0.3"))
	r.want("renamed over", "10.0.0.3")
	r.write("ignored.txt", service("c", "10.0.0.9"))
	r.write(".hidden.yaml", service("c", "10.0.0.9"))
	if err := os.Mkdir(filepath.Join(r.dir, "directory.yaml"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("nowhere", filepath.Join(r.dir, "dangling.yaml")); err != nil {
		t.Fatal(err)
	}
	r.want("other files", "10.0.0.3")
	r.write("z.yaml", service("b", "10.0.0.4"))
	r.want("one object in two files", "10.0.0.3",
		"z.yaml#1: Service default/b: is also in a.yaml#1, and that one is used")
	r.remove("a.yaml")
	r.want("one of them goes", "10.0.0.4")
	r.remove("z.yaml")
	r.want("both go", "")
}

func TestBadFiles(t *testing.T) {
	good, other := service("a", "10.0.0.1"), service("b", "10.0.0.2")
	for _, c := range []struct{ name, text, vips, problem string }{
		{"no YAML", "a: [", "10.0.0.1 10.0.0.2",
			"f.yaml#1: document 1: yaml: line 1: did not find expected node content; the objects it had before stay"},
		{"no YAML after a good document", other + "---\na: [", "10.0.0.1 10.0.0.2",
			"f.yaml#2: document 2: yaml: line 2: did not find expected node content; the objects it had before stay"},
		{"cut off", good[:len(good)-9], "10.0.0.1 10.0.0.2",
			"f.yaml#1: document 1: yaml: line 5: did not find expected ',' or '}'; the objects it had before stay"},
		{"empty", "", "10.0.0.1 10.0.0.2",
			"f.yaml: the file is empty; to take its objects away, delete it; the objects it had before stay"},
		{"no object", "hello: world", "10.0.0.1 10.0.0.2",
			"f.yaml#1: document 1: apiVersion and kind are missing: this is not a Kubernetes object; the objects it " +
				"had before stay"},
		{"no name", "apiVersion: v1\nkind: Service", "10.0.0.1 10.0.0.2",
			"f.yaml#1: document 1: Service: metadata.name is missing; the objects it had before stay"},
		{"a scalar", "just text", "10.0.0.1 10.0.0.2",
			"f.yaml#1: document 1: is a string, not an object; the objects it had before stay"},
		{"unknown field", strings.Replace(good, "ports:", "prots:", 1) + "---\n" + other, "10.0.0.1 10.0.0.2",
			`f.yaml#1: Service default/a: spec.prots: unknown field`},
		{"field twice", strings.Replace(good, "kind:", "kind: Service\nkind:", 1), "10.0.0.1 10.0.0.2",
			`f.yaml#1: document 1: yaml: unmarshal errors:   line 3: key "kind" already set in map; the objects it had before stay`},
		{"wrong type", strings.Replace(good, "80", "http", 1) + "---\n" + other, "10.0.0.1 10.0.0.2",
			"f.yaml#1: Service default/a: spec.ports.port: is a string where a int32 belongs"},
		{"other kind", good + "---\napiVersion: v1\nkind: Secret\nmetadata: {name: s}\n---\n" + other,
			"10.0.0.1 10.0.0.2", "f.yaml#2: Secret default/s: is of no kind that is read here, and is skipped"},
		{"only comments", "# nothing\n---\n# here\n", "", ""},
		{"an object gone", good, "10.0.0.1", ""},
		{
			"JSON", `{"apiVersion":"v1","kind":"Service","metadata":{"name":"j"},"spec":{"ipFamilies":["IPv4"],"externalIPs":["10.0.0.7"],"ports":[{"port":80}]}}`, "10.0.0.7", "",
		},
		{"a List", "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Service, metadata: {name: l}, spec: " +
			"{ipFamilies: [IPv4], externalIPs: [10.0.0.8], ports: [{port: 80}]}}\n", "10.0.0.8", ""},
		{"a bad item", "apiVersion: v1\nkind: List\nitems: [7]\n", "10.0.0.1 10.0.0.2",
			"f.yaml#1: document 1: items[0]: is a number, not an object; the objects it had before stay"},
		{"document end and windows lines", strings.ReplaceAll("--- # first\n"+good+"...\n---\n"+other, "\n", "\r\n"),
			"10.0.0.1 10.0.0.2", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			r.write("f.yaml", good+"---\n"+other)
			r.want("before", "10.0.0.1 10.0.0.2")
			r.write("f.yaml", c.text)
			var problems []string
			if c.problem != "" {
				problems = []string{c.problem}
			}
			r.want("after", c.vips, problems...)
			r.write("f.yaml", good)
			r.want("mended", "10.0.0.1")
		})
	}
}

// TestConfigMap does what kubelet does: files are links through ..data, a link
// that is swapped.
func TestConfigMap(t *testing.T) {
	r := newRig(t)
	version := func(n int, files map[string]string) {
		dir := filepath.Join(r.dir, fmt.Sprintf("..version-%d", n))
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		for name, text := range files {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			_ = os.Symlink(filepath.Join("..data", name), filepath.Join(r.dir, name)) // it may exist
		}
		tmp := filepath.Join(r.dir, "..data_tmp")
		if err := os.Symlink(filepath.Base(dir), tmp); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(tmp, filepath.Join(r.dir, "..data")); err != nil {
			t.Fatal(err)
		}
	}
	version(1, map[string]string{"a.yaml": service("a", "10.0.0.1"), "b.yaml": service("b", "10.0.0.2")})
	r.want("first", "10.0.0.1 10.0.0.2")
	version(2, map[string]string{"a.yaml": service("a", "10.0.0.3")})
	r.remove("..version-1")
	r.want("swapped", "10.0.0.3")
}

// TestNoticed: without Sync, by notification; the slow rescan is too slow for this.
func TestNoticed(t *testing.T) {
	r := newRig(t)
	r.want("empty", "")
	r.write("a.yaml", service("a", "10.0.0.1"))
	r.notice("10.0.0.1")
}

// TestEventsWithoutEnd: manifests are read although another file in the directory, such as a log,
// is written without end.
func TestEventsWithoutEnd(t *testing.T) {
	r := newRigWith(t, nil, 500*time.Millisecond)
	stop, done := make(chan struct{}), make(chan struct{})
	defer func() { close(stop); <-done }()
	go func() {
		defer close(done)
		for tick := time.NewTicker(5 * time.Millisecond); ; <-tick.C {
			select {
			case <-stop:
				tick.Stop()
				return
			default:
				_ = os.WriteFile(filepath.Join(r.dir, "x.log"), []byte("line"), 0o600)
			}
		}
	}()
	time.Sleep(100 * time.Millisecond)
	r.write("a.yaml", service("a", "10.0.0.1"))
	r.notice("10.0.0.1")
}

// notice waits until something is served, without a call of Sync.
func (r *rig) notice(want string) {
	r.t.Helper()
	deadline := time.After(5 * time.Second)
	for {
		select {
		case <-r.Tracker.Wake():
			r.Tracker.Changes()
			if got, _ := r.now(); got == want {
				return
			}
		case <-deadline:
			r.t.Fatal("a file was not noticed within 5 s")
		}
	}
}

// TestHalfWritten: no state in between is seen of a file that is written in
// pieces, each of them good YAML, nor of an object that moves between files.
func TestHalfWritten(t *testing.T) {
	w := New(Config{Log: slog.New(slog.DiscardHandler), Dir: t.TempDir(), Tracker: tracker.New(), Settle: time.Hour})
	path := filepath.Join(w.Dir, "a.yaml")
	start := time.Now()
	step := func(text string, after time.Duration, wantUnsettled bool, wantRead uint64) {
		t.Helper()
		writeAt(t, path, []byte(text), start.Add(after))
		unsettled, err := w.scan(start.Add(after))
		if err != nil || unsettled != wantUnsettled || w.Tracker.Read() != wantRead {
			t.Errorf("after %v: unsettled %v, %v; %d batches, want %v and %d", after, unsettled, err, w.Tracker.Read(),
				wantUnsettled, wantRead)
		}
	}
	step(service("a", "10.0.0.1"), 0, true, 0)
	step(service("a", "10.0.0.1")+"---\n"+service("b", "10.0.0.2"), 50*time.Minute, true, 0)
	if unsettled, err := w.scan(start.Add(100 * time.Minute)); !unsettled || err != nil || w.Tracker.Read() != 0 {
		t.Error("read before it settled")
	}
	if unsettled, err := w.scan(start.Add(111 * time.Minute)); unsettled || err != nil || w.Tracker.Read() != 1 {
		t.Error("not read after it settled")
	}
	if err := os.Rename(path, filepath.Join(w.Dir, "b.yaml")); err != nil {
		t.Fatal(err)
	}
	w.Tracker.Changes()
	if _, err := w.scan(start.Add(200 * time.Minute)); err != nil || w.Tracker.Read() != 2 {
		t.Errorf("%v, %d batches after a rename, want 2", err, w.Tracker.Read())
	}
	if n := w.Tracker.Changes().Len(); n != 0 {
		t.Errorf("%d objects changed by renaming their file", n)
	}
}

// writeAt writes a file at a time of the test's own.
func writeAt(t *testing.T, path string, data []byte, at time.Time) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(path, at, at); err != nil {
		t.Fatal(err)
	}
}

// TestFileThatNeverSettles: a file that never settles holds up the others only for a while.
func TestFileThatNeverSettles(t *testing.T) {
	w := New(Config{Log: slog.New(slog.DiscardHandler), Dir: t.TempDir(), Tracker: tracker.New(), Settle: time.Hour})
	start := time.Now()
	for name, text := range map[string]string{"a.yaml": service("a", "10.0.0.1"), "b.yaml": "x"} {
		writeAt(t, filepath.Join(w.Dir, name), []byte(text), start)
	}
	for n := range maxSettles + 2 {
		if n < maxSettles && w.Tracker.Read() != 0 {
			t.Fatal("read while something is being written")
		}
		now := start.Add(time.Duration(n) * time.Hour)
		writeAt(t, filepath.Join(w.Dir, "b.yaml"), make([]byte, n), now)
		if _, err := w.scan(now); err != nil {
			t.Fatal(err)
		}
	}
	if w.Tracker.Changes().Len() != 1 {
		t.Error("a file that is written without end holds up another")
	}
}

// TestOthersMayWrite: a manifest or a directory that others may write is refused, what was read
// before stays, and the mode alone ends that.
func TestOthersMayWrite(t *testing.T) {
	r := newRig(t)
	chmod := func(name string, mode os.FileMode) {
		if err := os.Chmod(filepath.Join(r.dir, name), mode); err != nil {
			t.Fatal(err)
		}
	}
	r.write("a.yaml", service("a", "10.0.0.1"))
	r.write("b.yaml", service("b", "10.0.0.2"))
	r.want("before", "10.0.0.1 10.0.0.2")
	chmod("b.yaml", 0o666)
	got, problems := r.served()
	if got != "10.0.0.1 10.0.0.2" || len(problems) != 1 || !strings.Contains(problems[0], "chmod go-w") {
		t.Errorf("a file that all may write: %q, problems %q", got, problems)
	}
	chmod("b.yaml", 0o644)
	r.want("its owner alone", "10.0.0.1 10.0.0.2")
	chmod("", 0o777)
	var refusal *trusted.Refusal
	if err := r.Sync(t.Context()); !errors.As(err, &refusal) {
		t.Errorf("a directory that all may write: %v", err)
	}
	chmod("", 0o755)
	r.want("the directory's owner alone", "10.0.0.1 10.0.0.2")
}

// TestAnyOwner: a program that only displays manifests also reads files that other users can write.
func TestAnyOwner(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a.yaml"), []byte(service("a", "10.0.0.1")), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Chmod(filepath.Join(dir, "a.yaml"), 0o666), os.Chmod(dir, 0o777)); err != nil {
		t.Fatal(err)
	}
	w := New(Config{Log: slog.New(slog.DiscardHandler), Dir: dir, Tracker: tracker.New(), AnyOwner: true})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	done := make(chan struct{})
	go func() { defer close(done); _ = w.Run(ctx) }()
	r := &rig{t: t, dir: dir, Watcher: w}
	r.want("anyone's", "10.0.0.1")
	cancel()
	<-done
}

func TestDirectoryGoneAndBack(t *testing.T) {
	r := newRig(t)
	r.write("a.yaml", service("a", "10.0.0.1"))
	r.want("there", "10.0.0.1")
	if err := os.Rename(r.dir, r.dir+"-away"); err != nil {
		t.Fatal(err)
	}
	if err := r.Sync(t.Context()); err == nil {
		t.Error("Sync of a directory that is gone succeeds")
	}
	if got, _ := r.now(); got != "10.0.0.1" {
		t.Errorf("served without the directory: %q", got)
	}
	if err := os.Rename(r.dir+"-away", r.dir); err != nil {
		t.Fatal(err)
	}
	r.write("b.yaml", service("b", "10.0.0.2"))
	r.want("back", "10.0.0.1 10.0.0.2")
	r.remove("b.yaml")
	r.notice("10.0.0.1")
}

func TestWrittenWhileRead(t *testing.T) {
	w := New(Config{Log: slog.New(slog.DiscardHandler), Dir: t.TempDir(), Tracker: tracker.New()})
	path, now := filepath.Join(w.Dir, "a.yaml"), time.Now()
	writeAt(t, path, []byte(service("a", "10.0.0.1")), now)
	f := w.look("a.yaml", now)
	writeAt(t, path, []byte(service("a", "10.0.0.2")), now.Add(time.Second))
	if w.read("a.yaml", f, &tracker.Batch{}) || len(f.objects) > 0 {
		t.Error("a file was taken that changed after it was looked at")
	}
}

// TestFileCannotBeOpened: a file keeps its objects while the process is out of descriptors or
// memory, and so does the directory. It is read once it can be, though it does not change any more.
func TestFileCannotBeOpened(t *testing.T) {
	w := New(Config{Log: slog.New(slog.DiscardHandler), Dir: t.TempDir(), Tracker: tracker.New()})
	r := &rig{t: t, dir: w.Dir, Watcher: w}
	now := time.Now()
	scan := func(what, vips string, problems ...string) {
		t.Helper()
		now = now.Add(time.Minute)
		if _, err := w.scan(now); err != nil {
			t.Fatal(what, err)
		}
		w.Tracker.Changes()
		if got, wrong := r.now(); got != vips || fmt.Sprint(wrong) != fmt.Sprint(problems) {
			t.Errorf("%s: %q, problems %q, want %q, %q", what, got, wrong, vips, problems)
		}
	}
	r.write("a.yaml", service("a", "10.0.0.1"))
	scan("at first", "10.0.0.1")
	is := "10.0.0.1"
	for i, errno := range machine.Shortages {
		next := fmt.Sprintf("10.0.0.%d", 2+i)
		r.replace("a.yaml", service("a", next))
		names, err := w.list()
		if err != nil {
			t.Fatal(err)
		}
		machine.Short(t, errno, func() {
			if _, err := w.scan(now); !errors.Is(err, errno) {
				t.Errorf("the directory: %v, want %v", err, errno)
			}
			var batch tracker.Batch
			read := w.look(names[0], now.Add(time.Minute))
			read.read = w.read(names[0], read, &batch)
			w.Tracker.Apply(&batch)
			w.Tracker.Changes()
			if got, wrong := r.now(); got != is || len(wrong) != 1 || !strings.Contains(wrong[0], errno.Error()) {
				t.Errorf("with %v: %q, problems %q", errno, got, wrong)
			}
		})
		scan(fmt.Sprintf("after %v", errno), next)
		is = next
	}
}

// TestUnreadableFile: a file whose kind cannot be read is a problem, and the others are served.
func TestUnreadableFile(t *testing.T) {
	r := newRig(t)
	r.write("a.yaml", service("a", "10.0.0.1"))
	if err := os.Symlink("loop.yaml", filepath.Join(r.dir, "loop.yaml")); err != nil {
		t.Fatal(err)
	}
	vips, problems := r.served()
	if vips != "10.0.0.1" || len(problems) != 1 || !strings.Contains(problems[0], "too many levels of symbolic links") {
		t.Errorf("%q, problems %q", vips, problems)
	}
	r.remove("loop.yaml")
	r.want("removed", "10.0.0.1")
}

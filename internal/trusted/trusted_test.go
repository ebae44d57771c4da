package trusted

import (
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// sandbox returns a directory that is trusted, whatever the umask.
func sandbox(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	must(t, os.Chmod(dir, 0o755))
	return dir
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func file(t *testing.T, path string, mode fs.FileMode) {
	t.Helper()
	must(t, os.WriteFile(path, []byte("content"), 0o600))
	must(t, os.Chmod(path, mode))
}

func directoryOf(t *testing.T, path string, mode fs.FileMode) {
	t.Helper()
	must(t, os.Mkdir(path, 0o700))
	must(t, os.Chmod(path, mode))
}

// refusal is a case that must be rejected, and the text of its message.
type refusal struct {
	name string
	make func(t *testing.T, dir string) (path string)
	want string
}

// both has the cases that are rejected for the daemon's own files and for an operator's.
var both = []refusal{
	{"a FIFO", func(t *testing.T, dir string) string {
		path := filepath.Join(dir, "f")
		must(t, unix.Mkfifo(path, 0o600))
		return path
	}, "is a FIFO, not a regular file"},
	{"a socket", func(t *testing.T, dir string) string {
		path := filepath.Join(dir, "f")
		l, err := net.Listen("unix", path)
		must(t, err)
		t.Cleanup(func() { l.Close() })
		must(t, os.Chmod(path, 0o600))
		return path
	}, "is a socket, not a regular file"},
	{"a directory", func(t *testing.T, dir string) string {
		path := filepath.Join(dir, "f")
		directoryOf(t, path, 0o700)
		return path
	}, "is a directory, not a regular file"},
	{"a file that all may write", func(t *testing.T, dir string) string {
		path := filepath.Join(dir, "f")
		file(t, path, 0o606)
		return path
	}, "may be written by users other than its owner (mode 0606)"},
	{"a file that its group may write", func(t *testing.T, dir string) string {
		path := filepath.Join(dir, "f")
		file(t, path, 0o660)
		return path
	}, "chmod go-w"},
	{"a directory that all may write", func(t *testing.T, dir string) string {
		directoryOf(t, filepath.Join(dir, "d"), 0o757)
		file(t, filepath.Join(dir, "d/f"), 0o600)
		return filepath.Join(dir, "d/f")
	}, "/d may be written by users other than its owner (mode 0757)"},
	{"a sticky directory", func(t *testing.T, dir string) string {
		directoryOf(t, filepath.Join(dir, "d"), 0o777|fs.ModeSticky)
		file(t, filepath.Join(dir, "d/f"), 0o600)
		return filepath.Join(dir, "d/f")
	}, "use a directory that only root may write"},
	{"a directory above that all may write", func(t *testing.T, dir string) string {
		directoryOf(t, filepath.Join(dir, "d"), 0o777)
		directoryOf(t, filepath.Join(dir, "d/e"), 0o700)
		file(t, filepath.Join(dir, "d/e/f"), 0o600)
		return filepath.Join(dir, "d/e/f")
	}, "/d may be written"},
	{"a link on the way, in a directory that all may write", func(t *testing.T, dir string) string {
		directoryOf(t, filepath.Join(dir, "d"), 0o777)
		directoryOf(t, filepath.Join(dir, "real"), 0o700)
		file(t, filepath.Join(dir, "real/f"), 0o600)
		must(t, os.Symlink("../real", filepath.Join(dir, "d/link")))
		return filepath.Join(dir, "d/link/f")
	}, ""},
}

// refuse checks that use rejects each case, with a message that names the path.
func refuse(t *testing.T, cases []refusal, use func(path string) error) {
	t.Helper()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			path := c.make(t, sandbox(t))
			err := use(path)
			var r *Refusal
			if !errors.As(err, &r) {
				t.Fatalf("%v, want a refusal", err)
			}
			if !strings.Contains(err.Error(), c.want) || r.Do == "" {
				t.Errorf("%v, want %q and what to do", err, c.want)
			}
		})
	}
}

// TestStateIsRefused: a file that others could have made or changed is not accepted as the daemon's
// own. No case blocks: a FIFO has no other end.
func TestStateIsRefused(t *testing.T) {
	cases := append([]refusal{
		{"a link", func(t *testing.T, dir string) string {
			file(t, filepath.Join(dir, "target"), 0o600)
			must(t, os.Symlink("target", filepath.Join(dir, "f")))
			return filepath.Join(dir, "f")
		}, "is a symbolic link, not a regular file"},
		{"a link to nothing", func(t *testing.T, dir string) string {
			must(t, os.Symlink("target", filepath.Join(dir, "f")))
			return filepath.Join(dir, "f")
		}, "is a symbolic link"},
		{"a directory that is a link", func(t *testing.T, dir string) string {
			directoryOf(t, filepath.Join(dir, "real"), 0o700)
			file(t, filepath.Join(dir, "real/f"), 0o600)
			must(t, os.Symlink("real", filepath.Join(dir, "d")))
			return filepath.Join(dir, "d/f")
		}, "/d is a symbolic link, not a directory"},
	}, both...)
	t.Run("read", func(t *testing.T) {
		refuse(t, cases, func(path string) error { _, err := ReadState(path); return err })
	})
	t.Run("made", func(t *testing.T) {
		refuse(t, cases, func(path string) error {
			f, err := OpenState(path, os.O_RDWR|os.O_CREATE)
			if err == nil {
				f.Close()
			}
			return err
		})
	})
}

// TestOperatorsFileIsRefused: the same for a configuration or a manifest; the targets of links are
// checked, too.
func TestOperatorsFileIsRefused(t *testing.T) {
	open := func(path string) error {
		f, err := Open(path)
		if err == nil {
			f.Close()
		}
		return err
	}
	t.Run("itself", func(t *testing.T) { refuse(t, both, open) })
	t.Run("behind a link", func(t *testing.T) {
		refuse(t, both, func(path string) error {
			link := filepath.Join(sandbox(t), "link")
			must(t, os.Symlink(path, link))
			return open(link)
		})
	})
}

// TestSocketIsRefused: only a socket in one of the daemon's own directories is accepted.
func TestSocketIsRefused(t *testing.T) {
	refuse(t, []refusal{
		{"a file", func(t *testing.T, dir string) string {
			file(t, filepath.Join(dir, "s"), 0o600)
			return filepath.Join(dir, "s")
		}, "is a regular file, not a socket"},
		{"a link", func(t *testing.T, dir string) string {
			must(t, os.Symlink("elsewhere", filepath.Join(dir, "s")))
			return filepath.Join(dir, "s")
		}, "is a symbolic link, not a socket"},
		{"a directory that all may write", func(t *testing.T, dir string) string {
			directoryOf(t, filepath.Join(dir, "d"), 0o777)
			return filepath.Join(dir, "d/s")
		}, "/d may be written"},
	}, Socket)
	if err := Socket(filepath.Join(sandbox(t), "s")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing socket: %v", err)
	}
}

// TestStateIsWritten: WriteState replaces a file atomically, for its owner alone, and does not
// follow a link at the temporary name.
func TestStateIsWritten(t *testing.T) {
	dir := sandbox(t)
	path, victim := filepath.Join(dir, "f"), filepath.Join(dir, "victim")
	file(t, victim, 0o600)
	must(t, os.Symlink(victim, path+NewSuffix))
	if _, err := ReadState(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
	for _, text := range []string{"first", "second"} {
		must(t, WriteState(path, []byte(text)))
		got, err := ReadState(path)
		if err != nil || string(got) != text {
			t.Errorf("read %q, %v, want %q", got, err, text)
		}
	}
	if info, err := os.Lstat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, %v, want a file of mode 0600", info.Mode(), err)
	}
	if text, err := os.ReadFile(victim); err != nil || string(text) != "content" {
		t.Errorf("what the link named is %q, %v", text, err)
	}
	if _, err := os.Lstat(path + NewSuffix); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file is left: %v", err)
	}
}

// configMap makes the files that kubelet makes for a ConfigMap with one key, and returns the key's
// path.
func configMap(t *testing.T, dir string) string {
	t.Helper()
	directoryOf(t, filepath.Join(dir, "..2026_01_01"), 0o755)
	file(t, filepath.Join(dir, "..2026_01_01/key"), 0o644)
	must(t, os.Symlink("..2026_01_01", filepath.Join(dir, "..data")))
	must(t, os.Symlink("..data/key", filepath.Join(dir, "key")))
	return filepath.Join(dir, "key")
}

func reads(t *testing.T, path string) {
	t.Helper()
	f, err := Open(path)
	must(t, err)
	defer f.Close()
	if text, err := io.ReadAll(f); err != nil || string(text) != "content" {
		t.Errorf("read %q, %v", text, err)
	}
}

// TestLinksAreFollowed: absolute and relative links to the files of a ConfigMap are followed; a
// loop of links ends with an error.
func TestLinksAreFollowed(t *testing.T) {
	dir := sandbox(t)
	key := configMap(t, dir)
	reads(t, key)
	must(t, os.Symlink(key, filepath.Join(dir, "absolute")))
	reads(t, filepath.Join(dir, "absolute"))
	must(t, os.Symlink("../"+filepath.Base(dir)+"/absolute", filepath.Join(dir, "up")))
	reads(t, filepath.Join(dir, "up"))
	must(t, os.Symlink("loop", filepath.Join(dir, "loop")))
	if _, err := Open(filepath.Join(dir, "loop")); !errors.Is(err, unix.ELOOP) {
		t.Errorf("a loop: %v", err)
	}
	if _, err := Open(filepath.Join(dir, "missing")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
}

package unixsocket

import (
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestShare: the socket and a directory that Share makes are the group's, whatever the mask, and
// the path is free until Publish.
func TestShare(t *testing.T) {
	for _, mask := range []int{0o022, 0o077} {
		path := filepath.Join(t.TempDir(), "d", "s")
		defer syscall.Umask(syscall.Umask(mask))
		leave(t, path)
		s, err := Share(path, os.Getgid())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("before Publish: %v", err)
		}
		if err := s.Publish(); err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string]fs.FileMode{path: 0o660, filepath.Dir(path): 0o750} {
			if info, err := os.Lstat(name); err != nil || info.Mode().Perm() != want {
				t.Errorf("mask %o: %s has mode %v, %v, want %v", mask, name, info.Mode(), err, want)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) > 0 {
			t.Errorf("left: %v, %v", left, err)
		}
	}
}

// leave makes the directory and the socket of a process that was killed before Publish.
func leave(t *testing.T, path string) {
	t.Helper()
	s, err := Share(path, os.Getgid())
	if err != nil {
		t.Fatal(err)
	}
	s.Listener.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestShareRefuses: a directory that others may write, a file at the path and a path without a
// directory above it are errors.
func TestShareRefuses(t *testing.T) {
	dir := t.TempDir()
	open := filepath.Join(dir, "open")
	if err := errors.Join(os.Mkdir(open, 0o777), os.Chmod(open, 0o777)); err != nil {
		t.Fatal(err)
	}
	_, err := Share(filepath.Join(open, "s"), os.Getgid())
	if err == nil || !strings.Contains(err.Error(), "chmod go-w") {
		t.Errorf("a directory that all may write: %v", err)
	}
	if _, err := Share(filepath.Join(dir, "none", "d", "s"), os.Getgid()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no directory: %v", err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := Share(file, os.Getgid())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Publish(); err == nil || !strings.Contains(err.Error(), "not a socket") {
		t.Errorf("a file at the path: %v", err)
	}
}

// TestPublishReplaces: clients of the path reach the later of two processes, and at no time none.
func TestPublishReplaces(t *testing.T) {
	path := filepath.Join(t.TempDir(), "d", "s")
	var first *Shared
	for _, name := range []string{"1", "2"} {
		s, err := Share(path, os.Getgid())
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = s
		} else {
			answers(t, path, "1")
			defer s.Close()
		}
		go func() {
			for {
				conn, err := s.Accept()
				if err != nil {
					return
				}
				_, _ = conn.Write([]byte(name))
				conn.Close()
			}
		}()
		if err := s.Publish(); err != nil {
			t.Fatal(err)
		}
		answers(t, path, name)
	}
	_ = first.Listener.Close() // as at the end of a process that has handed over
	answers(t, path, "2")
}

func answers(t *testing.T, path, want string) {
	t.Helper()
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if got, err := io.ReadAll(conn); err != nil || string(got) != want {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
}

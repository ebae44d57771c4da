package cli

import (
	"net"
	"path/filepath"
	"testing"

	"sluice.dev/sluice/config"
)

// TestDefaultSocket: the socket for readers is the default only where the other one cannot be
// opened.
func TestDefaultSocket(t *testing.T) {
	dir := t.TempDir()
	c := config.Default()
	c.StateDir, c.Readers.Socket = dir, filepath.Join(dir, "readers.sock")
	check := func(when, want string) {
		if got := defaultSocket(c); got != want {
			t.Errorf("%s: %s, want %s", when, got, want)
		}
	}
	check("without both", c.StatusSocket())
	listen(t, c.Readers.Socket)
	check("without the first", c.Readers.Socket)
	listen(t, c.StatusSocket())
	check("with both", c.StatusSocket())
}

func listen(t *testing.T, path string) {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
}

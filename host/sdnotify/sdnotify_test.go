package sdnotify

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// manager is a socket in place of systemd's.
type manager struct {
	*testing.T
	*net.UnixConn
	n     notifier
	ready bool
	dead  []string
}

func newManager(t *testing.T, quiet bool) *manager {
	t.Helper()
	m := &manager{T: t}
	path := filepath.Join(t.TempDir(), "notify")
	var err error
	if m.UnixConn, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.UnixConn.Close() })
	m.n = notifier{socket: path, Config: Config{Log: slog.New(slog.DiscardHandler), Quiet: quiet,
		Ready: func() bool { return m.ready }, Dead: func() []string { return m.dead }}}
	return m
}

// want runs the notifier's steps for some seconds, and compares its messages.
func (m *manager) want(after time.Duration, text string) {
	m.Helper()
	m.n.step(time.Unix(1000, 0).Add(after))
	if err := m.SetReadDeadline(time.Now().Add(10 * time.Millisecond)); err != nil {
		m.Fatal(err)
	}
	var b [256]byte
	n, err := m.Read(b[:])
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		m.Fatal(err)
	}
	if got := string(b[:n]); got != text {
		m.Errorf("after %v: %q, want %q", after, got, text)
	}
}

// TestMessages: systemd waits for a process that starts and makes progress, hears once that it
// serves, and hears nothing while loops have stalled, before or after that.
func TestMessages(t *testing.T) {
	m := newManager(t, false)
	m.want(0, extend)
	m.want(time.Second, "")
	m.want(5*time.Second, extend)
	m.dead = []string{"control loop"}
	m.want(10*time.Second, "")
	m.dead = nil
	m.want(15*time.Second, extend)
	m.ready = true
	m.want(16*time.Second, "READY=1\nWATCHDOG=1")
	m.want(17*time.Second, "")
	m.want(21*time.Second, "WATCHDOG=1")
	m.ready = false // it drains, or a cable is out
	m.want(26*time.Second, "WATCHDOG=1")
	m.dead = []string{"control loop"}
	m.want(31*time.Second, "")
	m.want(60*time.Second, "")
	m.dead = nil
	m.want(61*time.Second, "WATCHDOG=1")
}

// TestQuiet: the next process of a reload sends nothing before systemd counts it as the main one.
func TestQuiet(t *testing.T) {
	m := newManager(t, true)
	m.want(0, "")
	m.want(10*time.Second, "")
	m.ready = true
	m.want(11*time.Second, "")
	m.want(15*time.Second, "")
	m.want(16*time.Second, "WATCHDOG=1")
	m.want(21*time.Second, "WATCHDOG=1")
}

// TestStalledFromTheStart: READY=1 waits, too, for loops that make progress.
func TestStalledFromTheStart(t *testing.T) {
	m := newManager(t, false)
	m.ready, m.dead = true, []string{"control loop"}
	m.want(0, "")
	m.dead = nil
	m.want(5*time.Second, "READY=1\nWATCHDOG=1")
}
